// One function per endpoint; the table in routes.cpp says where each runs and who may call it.
#pragma once

#include <memory>

#include "server/http/exchange.h"
#include "server/api/server_context.h"

namespace bam {

using ExchangePtr = std::shared_ptr<Exchange>;

// handlers_info.cpp: what the server and its model are
void handle_models(ServerContext& context, ExchangePtr exchange);
void handle_model(ServerContext& context, ExchangePtr exchange);
void handle_health(ServerContext& context, ExchangePtr exchange);
void handle_livez(ServerContext& context, ExchangePtr exchange);
void handle_readyz(ServerContext& context, ExchangePtr exchange);
void handle_metrics(ServerContext& context, ExchangePtr exchange);
void handle_version(ServerContext& context, ExchangePtr exchange);
void handle_props(ServerContext& context, ExchangePtr exchange);
void handle_openapi(ServerContext& context, ExchangePtr exchange);
void handle_asset(ServerContext& context, ExchangePtr exchange);

// handlers_requests.cpp: live requests
void handle_requests(ServerContext& context, ExchangePtr exchange);
void handle_slots(ServerContext& context, ExchangePtr exchange);
void handle_cancel(ServerContext& context, ExchangePtr exchange);
void handle_cancel_all(ServerContext& context, ExchangePtr exchange);
void handle_kv_save(ServerContext& context, ExchangePtr exchange);
void handle_kv_restore(ServerContext& context, ExchangePtr exchange);

// handlers_tokens.cpp: texts and tokens
void handle_tokenize(ServerContext& context, ExchangePtr exchange);
void handle_detokenize(ServerContext& context, ExchangePtr exchange);
void handle_tokenizer_info(ServerContext& context, ExchangePtr exchange);

// handlers_prior.cpp: what the heads look at
void handle_prior(ServerContext& context, ExchangePtr exchange);
void handle_attention(ServerContext& context, ExchangePtr exchange);
void handle_passkey(ServerContext& context, ExchangePtr exchange);

}  // namespace bam
