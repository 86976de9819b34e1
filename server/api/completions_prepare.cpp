// The worker's half of a generation: from the typed request to engine requests.
#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "server/api/completions.h"
#include "server/api/engine_constraint.h"

namespace bam {

// Receives the events of one prompt on the engine thread and wakes the loop.
class GenerationJob::Sink : public EventSink {
 public:
  Sink(std::shared_ptr<GenerationJob> job, size_t prompt) : job_(std::move(job)), prompt_(prompt) {}

  bool on_events(std::vector<Event>&& events) override {
    // The engine was told to stop or cancel; saying that nobody listens would overtake that and count as an abort.
    if (job_->abandoned_.load(std::memory_order_acquire)) return true;
    bool wake = false;
    {
      const std::lock_guard lock(job_->inbox_mutex_);
      for (Event& event : events) {
        if (std::holds_alternative<TokenEvent>(event)) {
          job_->last_token_ = Clock::now();
          if (!job_->first_token_) job_->first_token_ = job_->last_token_;
        }
        job_->inbox_.emplace_back(prompt_, std::move(event));
      }
      wake = !std::exchange(job_->inbox_scheduled_, true);
    }
    if (wake) job_->exchange_->loop()->queueInLoop([job = job_] { job->drain_inbox(); });
    return true;
  }

 private:
  std::shared_ptr<GenerationJob> job_;
  size_t prompt_;
};

GenerationJob::GenerationJob(ServerContext& context, const ServingModel& model, std::shared_ptr<Exchange> exchange,
                             GenerationRequest request)
    : context_(context), model_(model), exchange_(std::move(exchange)), request_(std::move(request)) {
  if (!request_.request_id.empty()) exchange_->request_id = request_.request_id;
  const bool chat = request_.kind == ApiKind::kChat;
  meta_.kind = request_.kind;
  meta_.id = (chat ? "chatcmpl-" : "cmpl-") + exchange_->request_id;
  meta_.model = request_.model.value_or(context_.config.served_model_names.front());
  meta_.system_fingerprint = model_.system_fingerprint;
  meta_.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  reply_options_ = {.logprobs = request_.wants_logprobs(),
                    .num_top = std::max(0, request_.sampling.num_logprobs),
                    .token_ids = request_.return_token_ids};
  exchange_->log.is_generation = true;
}

GenerationJob::~GenerationJob() {
  if (registered_) context_.jobs.remove(caller().tenant, meta_.id, exchange_->request_id);
}

void GenerationJob::start() {
  std::optional<ApiError> error = prepare();
  if (!error) error = submit();
  if (error) {
    abandoned_.store(true, std::memory_order_release);
    cancel_engine_requests();
    exchange_->reply(*error);
    return;
  }
  exchange_->loop()->queueInLoop([job = shared_from_this()] { job->open(); });
}

std::optional<ApiError> GenerationJob::prepare() {
  if (request_.model) {
    const auto& names = context_.config.served_model_names;
    if (std::find(names.begin(), names.end(), *request_.model) == names.end()) {
      return ApiError::not_found(fmt::format("The model '{}' does not exist; this server has '{}'.",
                                             request_.model->substr(0, 200), names.front()),
                                 "model_not_found");
    }
  }
  const int32_t most = context_.config.max_priority;
  if (!caller().admin && (request_.priority < -most || request_.priority > most)) {
    return ApiError::invalid(fmt::format("'priority' must be from {} to {}; beyond that it needs the admin key.", -most, most),
                             "priority");
  }
  if (auto error = check_token_ids()) return error;
  if (auto error = compile_constraint()) return error;
  if (auto error = tokenize_prompts()) return error;
  return check_reply_size();
}

// A few fields multiply: a request of 100 KB could ask for a reply of 600 MB.
std::optional<ApiError> GenerationJob::check_reply_size() const {
  const int64_t top = request_.wants_logprobs() ? 1 + std::max(0, request_.sampling.num_logprobs) : 0;
  const int64_t prompt_top = request_.prompt_logprobs ? 1 + std::max(0, request_.sampling.num_prompt_logprobs) : 0;
  int64_t entries = 0;
  for (const Prompt& prompt : prompts_) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    const int64_t generated = std::min(request_.max_tokens.value_or(0), model_.engine.config().max_model_len);
    entries += request_.n * ((request_.echo ? length : 0) + generated) * top + request_.n * length * prompt_top;
  }
  if (entries <= limits::kLogprobEntries) return std::nullopt;
  return ApiError::invalid(
      fmt::format("The reply would have {} log-probabilities (n × tokens × (logprobs + 1), with echo and prompt_logprobs "
                  "over the prompt as well); at most {} are allowed.",
                  entries, limits::kLogprobEntries),
      top > 0 ? "logprobs" : "prompt_logprobs");
}

std::optional<ApiError> GenerationJob::check_token_ids() const {
  const int64_t vocab = model_.engine.model_config().vocab_size;
  const auto outside = [vocab](int32_t id) { return id < 0 || id >= vocab; };
  for (const auto& [id, bias] : request_.sampling.logit_bias) {
    if (outside(id)) {
      return ApiError::invalid(fmt::format("'logit_bias': {} is no token id; the vocabulary has {} tokens.", id, vocab),
                               "logit_bias");
    }
  }
  for (const int32_t id : request_.sampling.stop_token_ids) {
    if (outside(id)) {
      return ApiError::invalid(
          fmt::format("'stop_token_ids': {} is no token id; the vocabulary has {} tokens.", id, vocab),
          "stop_token_ids");
    }
  }
  for (const PromptInput& prompt : request_.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (!ids) continue;
    const auto bad = std::find_if(ids->begin(), ids->end(), outside);
    if (bad != ids->end()) {
      return ApiError::invalid(fmt::format("'prompt': {} is no token id; the vocabulary has {} tokens.", *bad, vocab),
                               "prompt");
    }
  }
  return std::nullopt;
}

std::optional<ApiError> GenerationJob::compile_constraint() {
  const ConstraintSpec& spec = request_.constraint;
  if (spec.kind == ConstraintSpec::Kind::kNone) return std::nullopt;
  const ConstraintVocabulary& vocabulary = model_.constraint_vocabulary();
  auto compiled = [&]() -> ConstraintResult {
    switch (spec.kind) {
      case ConstraintSpec::Kind::kJsonSchema: return compile_json_schema(spec.text, vocabulary);
      case ConstraintSpec::Kind::kRegex: return compile_regex(spec.text, vocabulary);
      case ConstraintSpec::Kind::kChoice: return compile_choice(spec.choices, vocabulary);
      default: return compile_json_object(vocabulary);
    }
  }();
  if (!compiled) {
    return ApiError::invalid(fmt::format("'{}': {}", spec.param, compiled.error().what()), spec.param);
  }
  constraint_ = engine_constraint(**compiled);
  return std::nullopt;
}

std::optional<ApiError> GenerationJob::tokenize_prompts() {
  const Tokenizer& tokenizer = model_.tokenizer;
  if (request_.kind == ApiKind::kChat) {
    if (!model_.chat_template) {
      return ApiError::invalid("Chat is not available: " + model_.chat_template_error +
                                   " Use /v1/completions, or add a chat_template to tokenizer_config.json.",
                               "messages", "no_chat_template");
    }
    const auto rendered =
        model_.chat_template->render(request_.messages, {.bos_token = tokenizer.bos_token(),
                                                         .eos_token = tokenizer.eos_token(),
                                                         .add_generation_prompt = request_.add_generation_prompt});
    if (!rendered) {
      return ApiError::invalid(std::string("The chat template refused the messages: ") + rendered.error().what(),
                               "messages");
    }
    // Templates write their own BOS.
    return add_prompt(tokenizer.encode(*rendered, request_.add_special_tokens.value_or(false), true), *rendered);
  }
  for (PromptInput& prompt : request_.prompts) {
    std::optional<ApiError> error;
    if (auto* text = std::get_if<std::string>(&prompt)) {
      std::vector<int32_t> encoded = tokenizer.encode(*text, request_.add_special_tokens.value_or(true));
      error = add_prompt(std::move(encoded), std::move(*text));
    } else {
      auto& ids = std::get<std::vector<int32_t>>(prompt);
      std::string decoded;
      if (request_.echo || context_.config.log_prompts) decoded = tokenizer.decode(ids);
      error = add_prompt(std::move(ids), std::move(decoded));
    }
    if (error) return error;
  }
  return std::nullopt;
}

std::optional<ApiError> GenerationJob::add_prompt(std::vector<int32_t> ids, std::string text) {
  const size_t length = ids.size();
  if (auto error = check_length(ids)) return error;
  if (ids.size() != length) text = model_.tokenizer.decode(ids);  // truncated
  if (context_.config.log_prompts) exchange_->log.prompt += text;
  Prompt& prompt = prompts_.emplace_back();
  prompt.ids = std::move(ids);
  prompt.text = std::move(text);
  if (request_.echo || request_.prompt_logprobs) build_echo(prompt);
  exchange_->log.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  return std::nullopt;
}

std::optional<ApiError> GenerationJob::check_length(std::vector<int32_t>& ids) {
  const int64_t limit = model_.engine.config().max_model_len;
  const int64_t wanted = request_.max_tokens.value_or(1);
  const char* param = request_.kind == ApiKind::kChat ? "messages" : "prompt";
  if (request_.truncate_prompt_tokens) {
    int64_t keep = *request_.truncate_prompt_tokens;
    if (keep < 0) keep = std::max<int64_t>(1, limit - wanted);
    if (static_cast<int64_t>(ids.size()) > keep) ids.erase(ids.begin(), ids.end() - keep);
  }
  if (ids.empty()) return ApiError::invalid(fmt::format("'{}' is empty.", param), param);
  const int64_t length = static_cast<int64_t>(ids.size());
  if (length + wanted > limit) {
    return ApiError::invalid(
        fmt::format("The context holds {} tokens, but {} were requested: {} of the prompt and {} to generate.", limit,
                    length + wanted, length, wanted),
        param, "context_length_exceeded");
  }
  return std::nullopt;
}

// Where each prompt token's text begins; its logprobs are filled in when the engine sends them.
void GenerationJob::build_echo(Prompt& prompt) {
  StreamDetokenizer detokenizer(model_.tokenizer, true);
  int64_t offset = 0;
  prompt.records.reserve(prompt.ids.size());
  for (const int32_t id : prompt.ids) {
    prompt.records.push_back({id, std::nullopt, offset});
    offset += count_characters(detokenizer.push(id));
  }
  prompt.text_length = count_characters(prompt.text);
}

DecodeOptions GenerationJob::decode_options() const {
  DecodeOptions options;
  options.at_text_start = request_.kind == ApiKind::kChat;
  options.stop = request_.stop;
  options.include_stop_str = request_.include_stop_str_in_output;
  options.stop_ids = request_.sampling.stop_token_ids;
  if (!request_.sampling.ignore_eos) {
    options.eos_ids = model_.engine.model_config().eos_token_ids;
    options.stop_ids.insert(options.stop_ids.end(), options.eos_ids.begin(), options.eos_ids.end());
  }
  return options;
}

// A list of prompts that no empty queue would take would be told to come back for ever.
std::optional<ApiError> GenerationJob::check_queue_limits() const {
  if (prompts_.size() < 2) return std::nullopt;
  const EngineConfig& config = model_.engine.config();
  if (static_cast<int64_t>(prompts_.size()) > config.max_queue) {
    return ApiError::invalid(
        fmt::format("The request has {} prompts; at most {} (--max-queue) can wait at once. Send fewer.",
                    prompts_.size(), config.max_queue),
        "prompt");
  }
  int64_t tokens = 0;
  for (const Prompt& prompt : prompts_) tokens += static_cast<int64_t>(prompt.ids.size());
  if (tokens <= config.max_queued_tokens) return std::nullopt;
  return ApiError::invalid(
      fmt::format("The prompts have {} tokens in all; at most {} (--max-queued-tokens) can wait at "
                  "once. Send fewer.",
                  tokens, config.max_queued_tokens),
      "prompt");
}

std::optional<ApiError> GenerationJob::submit() {
  if (auto error = check_queue_limits()) return error;
  decode_options_ = decode_options();
  if (!context_.jobs.add(caller().tenant, meta_.id, exchange_->request_id, shared_from_this())) {
    if (!request_.request_id.empty()) {
      return ApiError::invalid(fmt::format("A request with the id '{}' is running.", request_.request_id), "request_id",
                               "duplicate_request_id");
    }
    // A proxy may send one X-Request-Id for several calls.
    exchange_->request_id += fmt::format("-{:08x}", std::random_device{}());
    meta_.id = (request_.kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + exchange_->request_id;
    if (!context_.jobs.add(caller().tenant, meta_.id, exchange_->request_id, shared_from_this())) {
      return ApiError::internal("No unique request id was found.");
    }
  }
  registered_ = true;
  double timeout_s = request_.timeout_s.value_or(0);
  const double server_limit_s = context_.config.request_timeout_s;
  if (server_limit_s > 0 && (timeout_s <= 0 || timeout_s > server_limit_s)) timeout_s = server_limit_s;
  const int64_t context_length = model_.engine.config().max_model_len;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    Prompt& prompt = prompts_[i];
    // No id has a '#', so that no client can name its request like a part of another.
    prompt.engine_id = LiveJobs::engine_name(caller().tenant, prompts_.size() == 1 ? meta_.id : fmt::format("{}#{}", meta_.id, i));
    for (int32_t k = 0; k < request_.n; ++k) {
      prompt.choices.emplace_back().decoder =
          std::make_unique<ChoiceDecoder>(model_.tokenizer, decode_options_, request_.echo ? prompt.text_length : 0);
    }
  }
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (!exchange_->is_open()) return ApiError::invalid("The client left.");
    Prompt& prompt = prompts_[i];
    Request request;
    request.id = prompt.engine_id;
    request.prompt = prompt.ids;
    request.sampling = request_.sampling;
    request.sampling.max_tokens =
        request_.max_tokens.value_or(context_length - static_cast<int64_t>(prompt.ids.size()));
    request.n = request_.n;
    request.priority = request_.priority;
    request.cache_salt = request_.cache_salt;
    if (context_.config.cache_salt_per_key) request.cache_salt += "#" + caller().tenant;
    if (timeout_s > 0) {
      request.timeout = std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(timeout_s * 1000)));
    }
    request.constraint = constraint_;
    const SubmitResult result = model_.engine.submit(std::move(request), std::make_shared<Sink>(shared_from_this(), i));
    switch (result.status) {
      case SubmitStatus::kAccepted: prompt.submitted = true; break;
      case SubmitStatus::kInvalid:
        return ApiError::invalid(result.message, request_.kind == ApiKind::kChat ? "messages" : "prompt",
                                 "context_length_exceeded");
      case SubmitStatus::kQueueFull:
        context_.metrics.rejected_queue.fetch_add(1, std::memory_order_relaxed);
        return ApiError::queue_full(result.message, result.retry_after_s);
      case SubmitStatus::kDraining: return ApiError::unavailable("The server is shutting down.", "draining", 5);
      case SubmitStatus::kDuplicateId:
        return ApiError::invalid(fmt::format("A request with the id '{}' is running.", prompt.engine_id), "request_id",
                                 "duplicate_request_id");
    }
  }
  return std::nullopt;
}

}  // namespace bam
