#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/handlers.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

const char* state_name(RequestState state) {
  switch (state) {
    case RequestState::kQueued: return "queued";
    case RequestState::kPrefill: return "prefill";
    case RequestState::kDecode: return "decode";
    case RequestState::kPreempted: return "preempted";
    case RequestState::kPaused: return "paused";
  }
  return "unknown";
}

// With several keys, a caller sees its own requests only.
bool may_see(const Caller& caller, const std::string& engine_name) {
  return caller.admin || LiveJobs::belongs_to(engine_name, caller.tenant);
}

ApiResult<std::string> snapshot_name(FieldReader& fields) {
  const std::string name = fields.text("name", 128).value_or("");
  if (fields.ok() && !is_valid_request_id(name)) {
    fields.fail("name", "'name' must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -");
  }
  if (!fields.ok()) return ApiError::invalid(fields.error());
  return name;
}

void reply_result(Call& call, const SnapshotResult& result) {
  if (!result) {
    const char* message = result.error().what();
    switch (result.error().fault()) {
      case SnapshotFault::kRefused: return call.reply(ApiError::invalid(message));
      case SnapshotFault::kFailed: return call.reply(ApiError::internal(message));
      case SnapshotFault::kBusy: return call.reply(ApiError::unavailable(message, "snapshot_busy", 5));
    }
  }
  call.reply_json(dump_json({{"status", "ok"}, {"message", *result}}));
}

}  // namespace

void handle_requests(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const auto picture = model.engine.picture();
  Json list = Json::array();
  for (const LiveRequest& live : picture->requests) {
    if (!may_see(call->caller, live.id)) continue;
    list.push_back({{"id", LiveJobs::shown_name(live.id)},
                    {"state", state_name(live.state)},
                    {"priority", live.priority},
                    {"n", live.n},
                    {"prompt_tokens", live.prompt_tokens},
                    {"cached_tokens", live.cached_tokens},
                    {"processed_tokens", live.processed_tokens},
                    {"generated_tokens", live.generated_tokens},
                    {"age_ms", live.age_ms},
                    {"eta_ms", live.eta_ms}});
  }
  call->reply_json(dump_json({{"object", "list"},
                              {"data", std::move(list)},
                              {"running", picture->running},
                              {"waiting", picture->waiting},
                              {"paused", picture->paused},
                              {"queued_tokens", picture->queued_tokens},
                              {"queued_work_seconds", picture->queued_work_s}}));
}

// llama.cpp's shape: one entry per sequence that may run at a time.
void handle_slots(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const auto picture = model.engine.picture();
  Json list = Json::array();
  const int64_t slots = model.engine.config().max_num_seqs;
  for (const LiveRequest& live : picture->requests) {
    if (live.state == RequestState::kQueued || static_cast<int64_t>(list.size()) >= slots) continue;
    if (!may_see(call->caller, live.id)) continue;
    list.push_back({{"id", list.size()},
                    {"id_task", LiveJobs::shown_name(live.id)},
                    {"n_ctx", model.engine.config().max_model_len},
                    {"is_processing", true},
                    {"state", state_name(live.state)},
                    {"n_prompt_tokens", live.prompt_tokens},
                    {"n_prompt_tokens_processed", live.processed_tokens},
                    {"n_prompt_tokens_cache", live.cached_tokens},
                    {"n_decoded", live.generated_tokens}});
  }
  while (static_cast<int64_t>(list.size()) < slots) {
    list.push_back({{"id", list.size()},
                    {"id_task", nullptr},
                    {"n_ctx", model.engine.config().max_model_len},
                    {"is_processing", false}});
  }
  call->reply_json(dump_json(list));
}

void handle_cancel(ServerContext& context, CallPtr call) {
  // "ID~3" is the fourth prompt of a request; they are cancelled together.
  const std::string name = call->path_parameter.substr(0, call->path_parameter.find('~'));
  const auto job = call->caller.admin ? context.jobs.find_any(name) : context.jobs.find(call->caller.tenant, name);
  if (!job) {
    return call->reply(ApiError::not_found(
        fmt::format("No request '{}' is running.", call->path_parameter.substr(0, 200)), "request_not_found"));
  }
  job->cancel();
  call->reply_json(dump_json({{"id", job->id()}, {"cancelled", true}}));
}

void handle_cancel_all(ServerContext& context, CallPtr call) {
  const auto jobs = context.jobs.all();
  for (const auto& job : jobs) job->cancel();
  call->reply_json(dump_json({{"cancelled", jobs.size()}}));
}

void handle_kv_save(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = parse_json_object(call->body);
  if (!body) return call->reply(body.error());
  FieldReader fields(*body);
  auto name = snapshot_name(fields);
  if (!name) return call->reply(name.error());
  std::vector<int32_t> tokens;
  if (const Json* ids = fields.raw("tokens")) {
    if (!ids->is_array()) fields.fail("tokens", "'tokens' must be an array of token ids.");
    if (auto list = fields.ok() ? read_token_ids(fields, "tokens", *ids) : std::nullopt) tokens = *std::move(list);
  } else if (auto text = fields.text("prompt", SIZE_MAX)) {
    tokens = model.tokenizer.encode(*text, fields.boolean("add_special_tokens").value_or(true), true);
  }
  const std::string salt = fields.text("cache_salt", limits::kCacheSaltBytes).value_or("");
  if (fields.ok() && tokens.empty()) fields.fail("prompt", "'prompt' or 'tokens' is missing.");
  if (!fields.ok()) return call->reply(ApiError::invalid(fields.error()));
  for (const int32_t id : tokens) {
    if (id >= model.engine.model_config().vocab_size) {
      return call->reply(ApiError::invalid(fmt::format("'tokens': {} is no token id.", id), "tokens"));
    }
  }
  reply_result(*call, model.engine.save_snapshot(*name, tokens, salt));
}

void handle_kv_restore(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  auto body = parse_json_object(call->body);
  if (!body) return call->reply(body.error());
  FieldReader fields(*body);
  auto name = snapshot_name(fields);
  if (!name) return call->reply(name.error());
  reply_result(*call, model.engine.restore_snapshot(*name));
}

}  // namespace bam
