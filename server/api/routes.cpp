#include <algorithm>

#include "server/api/completions.h"
#include "server/api/handlers.h"
#include "server/api/route.h"
#include "server/api/web_assets.h"

namespace bam {

namespace {

std::vector<Route> make_routes() {
  using enum Access;
  using enum RunOn;
  constexpr bool kModel = true, kWork = true;
  std::vector<Route> routes = {
      {"POST", "/v1/completions", handle_completions, kKey, kWorker, kModel, kWork, "Complete a prompt"},
      {"POST", "/v1/chat/completions", handle_chat_completions, kKey, kWorker, kModel, kWork, "Answer a chat"},
      {"GET", "/v1/stream/{id}", handle_stream, kKey, kLoop, kModel, false, "Go on with a resumable stream"},
      {"DELETE", "/v1/stream/{id}", handle_stream_delete, kKey, kLoop, kModel, false, "Cancel a resumable stream"},
      {"POST", "/v1/responses", handle_responses, kKey, kWorker, kModel, kWork, "Answer, with items in and out"},
      {"GET", "/v1/responses/{id}", handle_response, kKey, kLoop, kModel, false, "A stored response"},
      {"DELETE", "/v1/responses/{id}", handle_response_delete, kKey, kLoop, kModel, false, "Forget a stored response"},
      {"POST", "/v1/responses/{id}/cancel", handle_response_cancel, kKey, kLoop, kModel, false, "Cancel a response"},
      {"GET", "/v1/responses/{id}/input_items", handle_response_input, kKey, kLoop, kModel, false,
       "What a stored response answers"},
      {"POST", "/v1/messages", handle_messages, kKey, kWorker, kModel, kWork, "Answer a chat, Anthropic's form",
       anthropic_error},
      {"POST", "/v1/messages/count_tokens", handle_count_tokens, kKey, kWorker, kModel, false,
       "Tokens of a chat, Anthropic's form", anthropic_error},
      {"POST", "/api/chat", handle_ollama_chat, kKey, kWorker, kModel, kWork, "Answer a chat, Ollama's form",
       ollama_error},
      {"POST", "/api/generate", handle_ollama_generate, kKey, kWorker, kModel, kWork, "Answer a prompt, Ollama's form",
       ollama_error},
      {"GET", "/api/tags", handle_ollama_tags, kKey, kLoop, kModel, false, "List the served model, Ollama's form",
       ollama_error},
      {"GET", "/api/ps", handle_ollama_running, kKey, kLoop, kModel, false, "The loaded model, Ollama's form",
       ollama_error},
      {"POST", "/api/show", handle_ollama_show, kKey, kWorker, kModel, false,
       "Describe the served model, Ollama's form", ollama_error},
      {"GET", "/api/version", handle_ollama_version, kKey, kLoop, false, false, "Version of the server, Ollama's form",
       ollama_error},
      {"POST", "/v1/embeddings", handle_embeddings, kKey, kWorker, kModel, kWork, "Vectors of texts"},
      {"POST", "/api/embed", handle_ollama_embed, kKey, kWorker, kModel, kWork, "Vectors of texts, Ollama's form",
       ollama_error},
      {"POST", "/api/embeddings", handle_ollama_embedding, kKey, kWorker, kModel, kWork,
       "Vector of a text, Ollama's older form", ollama_error},
      {"POST", "/v1/files", handle_file_upload, kKey, kSlow, kModel, false, "Upload a file of requests"},
      {"GET", "/v1/files", handle_files, kKey, kSlow, kModel, false, "List files"},
      {"GET", "/v1/files/{id}", handle_file, kKey, kSlow, kModel, false, "Describe a file"},
      {"DELETE", "/v1/files/{id}", handle_file_delete, kKey, kSlow, kModel, false, "Delete a file"},
      {"GET", "/v1/files/{id}/content", handle_file_content, kKey, kSlow, kModel, false, "The content of a file"},
      {"POST", "/v1/batches", handle_batch_create, kKey, kSlow, kModel, kWork, "Answer a file of requests"},
      {"GET", "/v1/batches", handle_batches, kKey, kSlow, kModel, false, "List batches"},
      {"GET", "/v1/batches/{id}", handle_batch, kKey, kSlow, kModel, false, "How far a batch is"},
      {"POST", "/v1/batches/{id}/cancel", handle_batch_cancel, kKey, kSlow, kModel, false, "Cancel a batch"},
      {"POST", "/completion", handle_llamacpp_completion, kKey, kWorker, kModel, kWork,
       "Complete a prompt, llama.cpp's form"},
      {"POST", "/apply-template", handle_apply_template, kKey, kWorker, kModel, false, "The prompt of a chat"},
      {"GET", "/v1/models", handle_models, kKey, kLoop, kModel, false, "List the served model"},
      {"GET", "/v1/models/{id}", handle_model, kKey, kLoop, kModel, false, "Describe the served model"},
      {"POST", "/tokenize", handle_tokenize, kKey, kWorker, kModel, false, "Turn text into token ids"},
      {"POST", "/detokenize", handle_detokenize, kKey, kWorker, kModel, false, "Turn token ids into text"},
      {"GET", "/tokenizer_info", handle_tokenizer_info, kKey, kLoop, kModel, false, "Describe the tokenizer"},
      {"GET", "/v1/requests", handle_requests, kKey, kLoop, kModel, false, "List live requests"},
      {"POST", "/v1/requests/{id}/cancel", handle_cancel, kKey, kLoop, kModel, false, "Cancel a request"},
      {"POST", "/v1/requests/cancel_all", handle_cancel_all, kAdmin, kLoop, kModel, false, "Cancel all requests"},
      {"POST", "/v1/kv/save", handle_kv_save, kAdmin, kSlow, kModel, false, "Save a prompt's KV pages to a file"},
      {"POST", "/v1/kv/restore", handle_kv_restore, kAdmin, kSlow, kModel, false, "Load saved KV pages"},
      {"GET", "/v1/prior", handle_prior, kKey, kLoop, kModel, false, "The positional prior of every head"},
      {"POST", "/v1/attention", handle_attention, kKey, kWorker, kModel, kWork, "Where a row looks, in every head"},
      {"POST", "/v1/selftest/passkey", handle_passkey, kKey, kWorker, kModel, kWork, "Find hidden numbers"},
      {"GET", "/health", handle_health, kOpen, kLoop, false, false, "Readiness, with details for those with a key"},
      {"GET", "/livez", handle_livez, kPublic, kLoop, false, false, "The process answers"},
      {"GET", "/readyz", handle_readyz, kPublic, kLoop, false, false, "Ready for requests"},
      {"GET", "/metrics", handle_metrics, kKey, kLoop, false, false, "Prometheus metrics"},
      {"GET", "/version", handle_version, kKey, kLoop, false, false, "Version of the server"},
      {"GET", "/props", handle_props, kKey, kLoop, kModel, false, "Resolved configuration"},
      {"GET", "/slots", handle_slots, kKey, kLoop, kModel, false, "Sequences in the batch"},
      {"GET", "/openapi.json", handle_openapi, kKey, kLoop, false, false, "This description"},
  };
  for (const WebAsset& asset : web_assets()) {
    routes.push_back({"GET", std::string(asset.path), handle_asset, kPublic, kLoop, false, false, ""});
  }
  return routes;
}

}  // namespace

const std::vector<Route>& all_routes() {
  static const std::vector<Route> routes = make_routes();
  return routes;
}

ErrorBody error_body_beside(std::string_view path) {
  const auto family = [](std::string_view name) {
    if (name.starts_with("/v1/")) name.remove_prefix(3);
    return name.substr(0, name.find('/', 1));
  };
  const auto& routes = all_routes();
  const auto it = std::ranges::find_if(routes, [&](const Route& route) { return family(route.path) == family(path); });
  return it == routes.end() ? nullptr : it->error_body;
}

}  // namespace bam
