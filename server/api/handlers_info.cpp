#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/dialect.h"
#include "server/api/handlers.h"
#include "server/api/openapi.h"
#include "server/api/web_assets.h"

namespace bam {

namespace {

Json model_json(const ServerContext& context, const ServingModel& model, const std::string& name) {
  const Engine& engine = model.engine;
  const ModelConfig& config = engine.model_config();
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "bam"},
          {"type", "model"},  // this and the next three are for clients of /v1/messages
          {"lifecycle", "active"},
          {"display_name", name},
          {"created_at", utc_time(model.created)},
          {"root", context.config.served_model_names.front()},
          {"max_model_len", engine.config().max_model_len},
          {"meta",
           {{"vocab_size", config.vocab_size},
            {"num_parameters", model.num_parameters},
            {"size_bytes", model.weight_bytes},
            {"training_context", config.max_position_embeddings},
            {"position_encoding", position_encoding_name(config.position_encoding)},
            {"weight_dtype", model.weight_dtype},
            {"device", model.device},
            {"chat", model.chat_template.has_value()}}}};
}

// What each stage is, and has done so far.
Json stages_json(const EnginePicture& picture) {
  Json list = Json::array();
  for (const StagePicture& stage : picture.stages) {
    list.push_back({{"first_layer", stage.first_layer},
                    {"layers", stage.num_layers},
                    {"device", stage.device},
                    {"kv_pages",
                     {{"total", stage.pages_total},
                      {"free", stage.pages_free},
                      {"cached", stage.pages_cached},
                      {"used", stage.pages_used}}},
                    {"steps", stage.steps},
                    {"busy_seconds", 1e-3 * stage.busy_ms},
                    {"wait_seconds", 1e-3 * stage.wait_ms},
                    {"step_ms", stage.step_ms}});
  }
  return list;
}

struct Readiness {
  bool ready = false;
  const char* state = "ok";
};

Readiness readiness(const ServerContext& context) {
  const ServingModel* model = context.model.load(std::memory_order_acquire);
  if (context.draining.load(std::memory_order_relaxed)) return {false, "draining"};
  if (!model) return {false, "loading"};
  if (!model->engine.healthy()) return {false, "stalled"};
  if (!model->engine.ready()) return {false, "waiting for a lost rank"};
  return {true, "ok"};
}

}  // namespace

void handle_models(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  Json list = Json::array();
  for (const std::string& name : context.config.served_model_names) list.push_back(model_json(context, model, name));
  const auto& names = context.config.served_model_names;
  call->reply_json(dump_json({{"object", "list"},
                              {"data", std::move(list)},
                              {"has_more", false},
                              {"first_id", names.front()},
                              {"last_id", names.back()}}));
}

void handle_model(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  for (const std::string& name : context.config.served_model_names) {
    if (name == call->path_parameter) {
      call->reply_json(dump_json(model_json(context, model, name)));
      return;
    }
  }
  call->reply(ApiError::not_found(fmt::format("The model '{}' does not exist.", call->path_parameter.substr(0, 200)),
                                  "model_not_found"));
}

void handle_livez(ServerContext&, CallPtr call) { call->reply_json(R"({"status":"ok"})"); }

void handle_readyz(ServerContext& context, CallPtr call) {
  const Readiness now = readiness(context);
  call->reply(HttpReply{.status = now.ready ? 200 : 503, .body = fmt::format(R"({{"status":"{}"}})", now.state)});
}

void handle_health(ServerContext& context, CallPtr call) {
  const Readiness now = readiness(context);
  if (!call->caller.known) return handle_readyz(context, std::move(call));
  Json json{{"status", now.state}};
  json["uptime_seconds"] =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - context.started).count();
  if (const ServingModel* model = context.model.load(std::memory_order_acquire)) {
    const auto picture = model->engine.picture();
    json["model"] = context.config.served_model_names.front();
    json["running"] = picture->running;
    json["waiting"] = picture->waiting;
    json["queued_tokens"] = picture->queued_tokens;
    json["queued_work_seconds"] = picture->queued_work_s;
    json["last_step_age_seconds"] = picture->last_step_age_s;
    json["kv_pages"] = {{"total", picture->pages_total},
                        {"free", picture->pages_free},
                        {"cached", picture->pages_cached},
                        {"used", picture->pages_used}};
  }
  json["connections"] = context.metrics.open_connections.load(std::memory_order_relaxed);
  call->reply(HttpReply{.status = now.ready ? 200 : 503, .body = dump_json(json)});
}

void handle_metrics(ServerContext& context, CallPtr call) {
  const ServingModel* model = context.model.load(std::memory_order_acquire);
  const MetricsInput input{.http = context.metrics,
                           .engine = model ? &model->engine : nullptr,
                           .model_name = context.config.served_model_names.front(),
                           .vllm_names = context.config.vllm_metrics};
  call->reply(HttpReply{.body = format_metrics(input), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void handle_version(ServerContext& context, CallPtr call) {
  call->reply_json(dump_json({{"version", context.version}, {"server", "bam"}}));
}

void handle_props(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const Engine& engine = model.engine;
  const EngineConfig& resolved = engine.config();
  Json json;
  json["version"] = context.version;
  json["config"] = Json::parse(context.props_json);
  json["model"] = model_json(context, model, context.config.served_model_names.front());
  json["engine"] = {{"kv_dtype", dtype_name(resolved.kv_dtype)},         {"kv_memory_bytes", resolved.kv_memory_bytes},
                    {"capacity_tokens", engine.capacity_tokens()},       {"page_size", resolved.page_size},
                    {"max_model_len", resolved.max_model_len},           {"max_num_seqs", resolved.max_num_seqs},
                    {"max_batched_tokens", resolved.max_batched_tokens}, {"prefix_cache", resolved.prefix_cache}};
  json["stages"] = stages_json(*engine.picture());
  json["default_generation_settings"] = {{"temperature", model.defaults.temperature},
                                         {"top_p", model.defaults.top_p},
                                         {"top_k", model.defaults.top_k},
                                         {"min_p", model.defaults.min_p},
                                         {"repetition_penalty", model.defaults.repetition_penalty},
                                         {"n_ctx", resolved.max_model_len}};
  json["total_slots"] = resolved.max_num_seqs;
  json["chat_template"] = model.chat_template ? Json(model.tokenizer.chat_template()) : Json();
  call->reply_json(dump_json(json));
}

void handle_openapi(ServerContext& context, CallPtr call) {
  static const std::string document = openapi_document(context.version);
  call->reply_json(document);
}

void handle_asset(ServerContext&, CallPtr call) {
  for (const WebAsset& asset : web_assets()) {
    if (asset.path != call->path) continue;
    HttpReply reply;
    reply.headers.emplace_back("etag", asset.etag);
    reply.headers.emplace_back("cache-control", "no-cache");
    // The page needs nothing from anywhere else, so nothing else may run in it.
    reply.headers.emplace_back("content-security-policy",
                               "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                               "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                               "frame-ancestors 'none'");
    reply.headers.emplace_back("x-content-type-options", "nosniff");
    reply.headers.emplace_back("referrer-policy", "no-referrer");
    if (call->header("if-none-match") == asset.etag) {
      reply.status = 304;
    } else {
      reply.content_type = asset.content_type;
      reply.body = asset.data;
    }
    call->reply(std::move(reply));
    return;
  }
  call->reply(ApiError::not_found("There is no such page."));
}

}  // namespace bam
