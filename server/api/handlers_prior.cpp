#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

#include "server/api/handlers.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

constexpr int64_t kMaxAttentionTokens = 2048;
constexpr size_t kMaxPasskeyTrials = 20;

// Collects a greedy answer for a handler that waits. The engine's last event always comes: finish, timeout or cancel.
class WaitingSink : public EventSink {
 public:
  bool on_events(std::vector<Event>&& events) override {
    const std::lock_guard lock(mutex_);
    for (Event& event : events) {
      if (const auto* token = std::get_if<TokenEvent>(&event)) {
        if (tokens_.empty()) first_token_ = Clock::now();
        tokens_.push_back(token->token);
      } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
        finish_ = *finish;
        done_.notify_all();
      }
    }
    return true;
  }

  const FinishEvent& wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return finish_.has_value(); });
    return *finish_;
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  Clock::time_point first_token() const { return first_token_; }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<int32_t> tokens_;
  Clock::time_point first_token_;
  std::optional<FinishEvent> finish_;
};

// The first run of digits in the answer begins with the key.
bool is_hit(const std::string& answer, const std::string& key) {
  const size_t first = answer.find_first_of("0123456789");
  return first != std::string::npos && answer.compare(first, key.size(), key) == 0;
}

const char* form_name(PriorForm form) { return form == PriorForm::kScaleOutside ? "scale_outside" : "scale_inside"; }

ApiResult<Json> run_trial(const ServingModel& model, const PasskeyPrompt& prompt, double depth, const std::string& id,
                          const std::string& salt) {
  Request request;
  request.id = id;
  request.prompt = prompt.tokens;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = prompt.max_tokens;
  request.cache_salt = salt;
  auto sink = std::make_shared<WaitingSink>();
  const auto started = Clock::now();
  const SubmitResult submitted = model.engine.submit(std::move(request), sink);
  if (submitted.status == SubmitStatus::kQueueFull) {
    return ApiError::queue_full(submitted.message, submitted.retry_after_s);
  }
  if (submitted.status != SubmitStatus::kAccepted) return ApiError::invalid(submitted.message, "length");
  const FinishEvent& finish = sink->wait();
  if (finish.reason == FinishReason::kError) return ApiError::internal(finish.message);
  const std::string answer = model.tokenizer.decode(sink->tokens());
  const double ttft_ms =
      sink->tokens().empty() ? 0 : std::chrono::duration<double, std::milli>(sink->first_token() - started).count();
  return Json{{"depth", depth},
              {"key", prompt.answer},
              {"answer", answer},
              {"hit", is_hit(answer, prompt.answer)},
              {"prompt_tokens", prompt.tokens.size()},
              {"cached_tokens", finish.cached_tokens},
              {"ttft_ms", std::round(ttft_ms * 10) / 10}};
}

std::vector<double> read_depths(FieldReader& fields) {
  std::vector<double> depths;
  if (const Json* list = fields.array("depths", kMaxPasskeyTrials)) {
    for (const Json& entry : *list) {
      if (!entry.is_number() || !(entry.get<double>() >= 0 && entry.get<double>() <= 1)) {
        fields.fail("depths", "'depths' must hold numbers between 0 and 1.");
        return depths;
      }
      depths.push_back(entry.get<double>());
    }
    if (depths.empty()) fields.fail("depths", "'depths' is empty.");
    return depths;
  }
  return {0.1, 0.5, 0.9};
}

}  // namespace

void handle_prior(ServerContext& context, ExchangePtr exchange) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const ModelConfig& config = model.engine.model_config();
  const auto snapshot = model.engine.snapshot();
  Json heads = Json::array();
  const auto& reports = model.engine.heads();
  for (size_t i = 0; i < reports.size(); ++i) {
    const HeadReport& head = reports[i];
    const AttentionCounters counters = i < snapshot->attention.size() ? snapshot->attention[i] : AttentionCounters{};
    heads.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"alpha", head.alpha},
                     {"beta", head.beta},
                     {"theta_mu", head.theta_mu},
                     {"mu", 2 * std::sinh(head.theta_mu)},
                     {"seq_scale", head.seq_scale},
                     {"class", head_class(config, head)},
                     {"reach", head.reach < 0 ? Json() : Json(head.reach)},
                     {"logit_bound", head.logit_bound},
                     {"tiles_visited", counters.visited},
                     {"tiles_skipped", counters.skipped},
                     {"bound_tests", counters.bound_tests},
                     {"left_out_bound", counters.left_out}});
  }
  exchange->reply_json(dump_json({{"position_encoding", position_encoding_name(config.position_encoding)},
                                  {"prior_form", form_name(config.prior_form)},
                                  {"prior_eps", config.prior_eps},
                                  {"ssmax", config.ssmax},
                                  {"ssmax_prior", config.ssmax_prior},
                                  {"head_dim", config.head_dim},
                                  {"num_layers", config.num_layers},
                                  {"num_heads", config.num_heads},
                                  {"num_kv_heads", config.num_kv_heads},
                                  {"max_model_len", model.engine.config().max_model_len},
                                  {"heads", std::move(heads)}}));
}

void handle_attention(ServerContext& context, ExchangePtr exchange) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  const ModelConfig& config = model.engine.model_config();
  auto body = parse_json_object(exchange->body);
  if (!body) return exchange->reply(body.error());
  FieldReader fields(*body);
  std::vector<int32_t> tokens;
  if (const Json* ids = fields.array("tokens", kMaxAttentionTokens)) {
    if (auto list = read_token_ids(fields, "tokens", *ids)) tokens = *std::move(list);
  } else if (auto text = fields.text("prompt", 1 << 20)) {
    tokens = model.tokenizer.encode(*text, fields.boolean("add_special_tokens").value_or(true));
  }
  if (fields.ok() && tokens.empty()) fields.fail("prompt", "'prompt' or 'tokens' is missing or empty.");
  if (fields.ok() && static_cast<int64_t>(tokens.size()) > kMaxAttentionTokens) {
    fields.fail("prompt",
                fmt::format("the prompt has {} tokens; at most {} are shown.", tokens.size(), kMaxAttentionTokens));
  }
  for (const int32_t id : tokens) {
    if (id >= config.vocab_size) fields.fail("tokens", fmt::format("'tokens': {} is no token id.", id));
  }
  const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t layer = fields.integer("layer", 0, config.num_layers - 1).value_or(0);
  const int64_t head = fields.integer("head", 0, config.num_heads - 1).value_or(0);
  const int64_t position = fields.ok() ? fields.integer("position", 0, last).value_or(last) : 0;
  if (!fields.ok()) return exchange->reply(ApiError::invalid(fields.error()));
  const auto row = model.engine.attention_row(tokens, static_cast<int>(layer), static_cast<int>(head), position);
  if (!row) return exchange->reply(ApiError::invalid(row.error().what()));
  exchange->reply_json(dump_json(
      {{"layer", layer}, {"head", head}, {"position", position}, {"tokens", tokens}, {"probabilities", *row}}));
}

void handle_passkey(ServerContext& context, ExchangePtr exchange) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  if (!model.passkey_prompt) {
    return exchange->reply(ApiError::not_built("This server was built without the passkey self test."));
  }
  Json body = Json::object();
  if (!exchange->body.empty()) {
    auto parsed = parse_json_object(exchange->body);
    if (!parsed) return exchange->reply(parsed.error());
    body = *std::move(parsed);
  }
  FieldReader fields(body);
  const int64_t room = model.engine.config().max_model_len - 16;
  const int64_t length =
      fields.integer("length", 1, std::max<int64_t>(room, 1)).value_or(std::min<int64_t>(1024, room));
  const std::vector<double> depths = read_depths(fields);
  const auto seed = static_cast<uint64_t>(fields.integer("seed", 0, INT64_MAX).value_or(1));
  if (!fields.ok()) return exchange->reply(ApiError::invalid(fields.error()));
  Json trials = Json::array();
  int64_t hits = 0;
  for (const double depth : depths) {
    if (!exchange->is_open()) return exchange->reply(ApiError::invalid("The client left."));
    const auto prompt = model.passkey_prompt(length, depth, seed);
    if (!prompt) return exchange->reply(ApiError::invalid(prompt.error().what(), "length"));
    const std::string id = fmt::format("passkey-{}-{}", exchange->request_id, trials.size());
    auto trial = run_trial(model, *prompt, depth, id, "");
    if (!trial) return exchange->reply(trial.error());
    hits += (*trial)["hit"].get<bool>() ? 1 : 0;
    trials.push_back(*std::move(trial));
  }
  exchange->reply_json(dump_json({{"length", length},
                                  {"hits", hits},
                                  {"trials", trials.size()},
                                  {"accuracy", static_cast<double>(hits) / static_cast<double>(trials.size())},
                                  {"results", std::move(trials)}}));
}

}  // namespace bam
