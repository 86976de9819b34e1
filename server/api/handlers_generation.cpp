#include "server/api/completions.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

void start_generation(ServerContext& context, CallPtr call, ApiKind kind) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  call->log.is_generation = true;
  auto json = parse_json_object(call->body);
  call->drop_body();
  if (!json) return call->reply(json.error());
  auto request = parse_generation_request(*json, kind, model.defaults);
  *json = Json();
  if (!request) return call->reply(request.error());
  std::make_shared<GenerationJob>(context, model, std::move(call), *std::move(request))->start();
}

}  // namespace

void handle_completions(ServerContext& context, CallPtr call) {
  start_generation(context, std::move(call), ApiKind::kCompletion);
}

void handle_chat_completions(ServerContext& context, CallPtr call) {
  start_generation(context, std::move(call), ApiKind::kChat);
}

void start_dialect(ServerContext& context, CallPtr call, const Json& body, ApiKind kind, Dialect dialect) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  call->log.is_generation = true;
  auto request = parse_generation_request(body, kind, model.defaults);
  if (!request) return call->reply(dialect.in_own_words(request.error()));
  // The short default of a completion is OpenAI's alone.
  if (!body.contains("max_tokens")) request->max_tokens.reset();
  request->engine.pooling = dialect.pooling;
  std::make_shared<GenerationJob>(context, model, std::move(call), *std::move(request), std::move(dialect))->start();
}

}  // namespace bam
