#include "base/json_discard.h"
#include "server/api/completions.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

// The last steps of all APIs. The header is for those whose bodies have no field for it.
void start_job(ServerContext& context, const ServingModel& model, CallPtr call, GenerationRequest request,
               Dialect dialect = {}) {
  const bool asked = call->header("x-resumable") == "true";
  if (asked && !request.stream) {
    return call->reply(ApiError::invalid("'X-Resumable' is for streams.", "X-Resumable"));
  }
  if (asked || request.resumable) call = resumable_call(context, std::move(call));
  if (!call) return;
  std::make_shared<GenerationJob>(context, model, std::move(call), std::move(request), std::move(dialect))->start();
}

void start_generation(ServerContext& context, CallPtr call, ApiKind kind) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  call->log.is_generation = true;
  auto json = parse_json_object(call->body);
  call->drop_body();
  if (!json) return call->reply(json.error());
  const DiscardAtEnd at_end(*json);
  auto request = parse_generation_request(*json, kind, model.defaults);
  discard(*json);
  if (!request) return call->reply(request.error());
  start_job(context, model, std::move(call), *std::move(request));
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
  request->engine.look = dialect.look;
  request->reply_is_tree = true;
  request->keeps_stream = dialect.keeps_stream;
  if (dialect.look) request->max_tokens = 0;
  start_job(context, model, std::move(call), *std::move(request), std::move(dialect));
}

}  // namespace bam
