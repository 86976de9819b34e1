// One function per endpoint; the table in routes.cpp says where each runs and who may call it.
#pragma once

#include "server/api/call.h"
#include "server/api/server_context.h"

namespace bam {

// handlers_info.cpp: what the server and its model are
void handle_models(ServerContext& context, CallPtr call);
void handle_model(ServerContext& context, CallPtr call);
void handle_health(ServerContext& context, CallPtr call);
void handle_livez(ServerContext& context, CallPtr call);
void handle_readyz(ServerContext& context, CallPtr call);
void handle_metrics(ServerContext& context, CallPtr call);
void handle_version(ServerContext& context, CallPtr call);
void handle_props(ServerContext& context, CallPtr call);
void handle_openapi(ServerContext& context, CallPtr call);
void handle_asset(ServerContext& context, CallPtr call);

// handlers_requests.cpp: live requests
void handle_requests(ServerContext& context, CallPtr call);
void handle_slots(ServerContext& context, CallPtr call);
void handle_cancel(ServerContext& context, CallPtr call);
void handle_cancel_all(ServerContext& context, CallPtr call);
void handle_kv_save(ServerContext& context, CallPtr call);
void handle_kv_restore(ServerContext& context, CallPtr call);

// handlers_streams.cpp: streams that outlive their connection
void handle_stream(ServerContext& context, CallPtr call);
void handle_stream_delete(ServerContext& context, CallPtr call);

// handlers_tokens.cpp: texts and tokens
void handle_tokenize(ServerContext& context, CallPtr call);
void handle_detokenize(ServerContext& context, CallPtr call);
void handle_tokenizer_info(ServerContext& context, CallPtr call);
Json tokenize_schema();  // of their requests
Json detokenize_schema();

// handlers_attention.cpp: where a row looks
void handle_attention(ServerContext& context, CallPtr call);
Json attention_schema();  // of its requests

// handlers_prior.cpp: what the heads are made to look at
void handle_prior(ServerContext& context, CallPtr call);
void handle_passkey(ServerContext& context, CallPtr call);

// handlers_batch.cpp: files and batches
void handle_file_upload(ServerContext& context, CallPtr call);
void handle_files(ServerContext& context, CallPtr call);
void handle_file(ServerContext& context, CallPtr call);
void handle_file_content(ServerContext& context, CallPtr call);
void handle_file_delete(ServerContext& context, CallPtr call);
void handle_batch_create(ServerContext& context, CallPtr call);
void handle_batches(ServerContext& context, CallPtr call);
void handle_batch(ServerContext& context, CallPtr call);
void handle_batch_cancel(ServerContext& context, CallPtr call);

// dialect_responses.cpp: OpenAI's responses
void handle_responses(ServerContext& context, CallPtr call);

// handlers_responses.cpp: stored ones
void handle_response(ServerContext& context, CallPtr call);
void handle_response_input(ServerContext& context, CallPtr call);
void handle_response_cancel(ServerContext& context, CallPtr call);
void handle_response_delete(ServerContext& context, CallPtr call);

// dialect_anthropic.cpp
void handle_messages(ServerContext& context, CallPtr call);
void handle_count_tokens(ServerContext& context, CallPtr call);
std::string anthropic_error(const ApiError& error);

// dialect_ollama.cpp
void handle_ollama_chat(ServerContext& context, CallPtr call);
void handle_ollama_generate(ServerContext& context, CallPtr call);
void handle_ollama_tags(ServerContext& context, CallPtr call);
void handle_ollama_running(ServerContext& context, CallPtr call);
void handle_ollama_show(ServerContext& context, CallPtr call);
void handle_ollama_version(ServerContext& context, CallPtr call);
std::string ollama_error(const ApiError& error);

// dialect_embeddings.cpp
void handle_embeddings(ServerContext& context, CallPtr call);
void handle_ollama_embed(ServerContext& context, CallPtr call);
void handle_ollama_embedding(ServerContext& context, CallPtr call);

// dialect_llamacpp.cpp
void handle_llamacpp_completion(ServerContext& context, CallPtr call);
void handle_apply_template(ServerContext& context, CallPtr call);

}  // namespace bam
