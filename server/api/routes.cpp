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
      {"POST", "/v1/attention", handle_attention, kKey, kSlow, kModel, kWork, "What one head looks at"},
      {"POST", "/v1/selftest/passkey", handle_passkey, kKey, kWorker, kModel, kWork, "Find hidden numbers"},
      {"GET", "/health", handle_health, kKey, kLoop, false, false, "Readiness with details"},
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

}  // namespace bam
