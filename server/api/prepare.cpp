#include "server/api/prepare.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/model_config.h"
#include "server/api/chat_prompt.h"
#include "server/api/engine_constraint.h"
#include "server/api/token_filter.h"

namespace bam {

namespace {

std::optional<ApiError> check_priority(const ServerContext& context, const Caller& caller,
                                       const GenerationRequest& request) {
  const int32_t most = context.config.max_priority, asked = request.engine.priority;
  if (caller.admin || (asked >= -most && asked <= most)) return std::nullopt;
  return ApiError::invalid(
      fmt::format("'priority' must be from {} to {}; beyond that it needs the admin key.", -most, most), "priority");
}

std::optional<ApiError> check_token_ids(const ServingModel& model, const GenerationRequest& request) {
  const int64_t vocab = model.engine.model_config().vocab_size;
  const auto outside = [vocab](int32_t id) { return id < 0 || id >= vocab; };
  const auto refuse = [vocab](const char* field, int32_t id) {
    return ApiError::invalid(fmt::format("'{}': {} is no token id; the vocabulary has {} tokens.", field, id, vocab),
                             field);
  };
  for (const auto& [id, bias] : request.engine.sampling.logit_bias) {
    if (outside(id)) return refuse("logit_bias", id);
  }
  for (const int32_t id : request.engine.sampling.stop_token_ids) {
    if (outside(id)) return refuse("stop_token_ids", id);
  }
  for (const int32_t id : request.allowed_token_ids) {
    if (outside(id)) return refuse("allowed_token_ids", id);
  }
  for (const PromptInput& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (!ids) continue;
    const auto bad = std::find_if(ids->begin(), ids->end(), outside);
    if (bad != ids->end()) return refuse("prompt", *bad);
  }
  return std::nullopt;
}

std::optional<ApiError> compile_constraint(const ServingModel& model, GenerationRequest& request) {
  const ConstraintSpec& spec = request.constraint;
  const bool tools = request.tools.active();
  if (spec.kind == ConstraintSpec::Kind::kNone && !tools) return std::nullopt;
  const ConstraintVocabulary& vocabulary = model.constraint_vocabulary();
  const auto compiled = [&]() -> ConstraintResult {
    if (tools) return compile_tool_calls(tool_call_grammar(request.tools, spec), vocabulary);
    switch (spec.kind) {
      case ConstraintSpec::Kind::kJsonSchema: return compile_json_schema(spec.text, vocabulary);
      case ConstraintSpec::Kind::kRegex: return compile_regex(spec.text, vocabulary);
      case ConstraintSpec::Kind::kGrammar: return compile_grammar(spec.text, vocabulary);
      case ConstraintSpec::Kind::kChoice: return compile_choice(spec.choices, vocabulary);
      default: return compile_json_object(vocabulary);
    }
  }();
  const std::string param = tools ? "tools" : spec.param;
  if (!compiled) return ApiError::invalid(fmt::format("'{}': {}", param, compiled.error().what()), param);
  request.engine.constraint = engine_constraint(**compiled);
  request.constraint = {};
  request.constraint_fields.push_back(param);
  return std::nullopt;
}

bool is_never(const std::pair<int32_t, float>& bias) { return std::isinf(bias.second) && bias.second < 0; }

void filter_tokens(const ServingModel& model, GenerationRequest& request) {
  if (!request.allowed_token_ids.empty()) request.constraint_fields.emplace_back("allowed_token_ids");
  if (!request.bad_words.empty()) request.constraint_fields.emplace_back("bad_words");
  if (std::ranges::any_of(request.engine.sampling.logit_bias, is_never)) {
    request.constraint_fields.emplace_back("logit_bias");
  }
  if (request.allowed_token_ids.empty() && request.bad_words.empty()) return;
  request.engine.constraint = filtered_constraint(
      std::move(request.engine.constraint),
      {.allowed = std::move(request.allowed_token_ids), .bad_words = BadWords(model.tokenizer, request.bad_words)});
}

// Fields that each make sense may contradict each other. The first mask stays in the cache that all choices share.
std::optional<ApiError> check_first_token(const ServingModel& model, const GenerationRequest& request) {
  const auto vocab = static_cast<size_t>(model.engine.model_config().vocab_size);
  std::vector<uint32_t> allowed((vocab + 31) / 32, 0);
  if (request.engine.constraint) {
    const auto constraint = request.engine.constraint->clone_initial();
    constraint->allowed_tokens(allowed);
    if (!constraint->failure().empty()) return constraint_error(request, constraint->failure());
  } else {
    std::ranges::fill(allowed, ~0u);
  }
  for (const auto& bias : request.engine.sampling.logit_bias) {
    const auto token = static_cast<uint32_t>(bias.first);
    if (is_never(bias)) allowed[token / 32] &= ~(1u << (token % 32));
  }
  if (vocab % 32 != 0) allowed.back() &= (1u << (vocab % 32)) - 1;
  if (std::ranges::any_of(allowed, [](uint32_t word) { return word != 0; })) return std::nullopt;
  return constraint_error(request, "no token may come first");
}

// Whatever says which tokens may come, as one constraint for the engine.
std::optional<ApiError> make_constraint(const ServingModel& model, GenerationRequest& request) {
  if (auto error = compile_constraint(model, request)) return error;
  filter_tokens(model, request);
  return request.constraint_fields.empty() ? std::nullopt : check_first_token(model, request);
}

const char* prompt_field(const GenerationRequest& request) {
  return request.kind == ApiKind::kChat ? "messages" : "prompt";
}

// Truncates if that was asked for; refuses what the context cannot hold.
std::optional<ApiError> fit_length(const ServingModel& model, const GenerationRequest& request,
                                   std::vector<int32_t>& ids) {
  const int64_t limit = model.engine.config().max_model_len;
  const int64_t wanted = request.max_tokens.value_or(1);
  const char* param = prompt_field(request);
  if (request.truncate_prompt_tokens) {
    int64_t keep = *request.truncate_prompt_tokens;
    if (keep < 0) keep = std::max<int64_t>(1, limit - wanted);
    if (static_cast<int64_t>(ids.size()) > keep) {
      if (request.truncate_right) {
        ids.resize(static_cast<size_t>(keep));
      } else {
        ids.erase(ids.begin(), ids.end() - keep);
      }
    }
  }
  if (ids.empty()) return ApiError::invalid(fmt::format("'{}' is empty.", param), param);
  const int64_t length = static_cast<int64_t>(ids.size());
  if (length + wanted <= limit) return std::nullopt;
  return ApiError::invalid(
      // Clients look for these words: litellm for the first ones, LangChain for the code, which newer clients of OpenAI
      // leave out of their errors' texts.
      fmt::format(
          "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the {}, {} in "
          "the completion). Please reduce the length of the {} or completion (context_length_exceeded).",
          limit, length + wanted, length, param, wanted, param),
      param, "context_length_exceeded");
}

// Where each prompt token's text begins. Of the first `silent` tokens the text has nothing.
std::vector<TokenRecord> prompt_records(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t silent,
                                        bool skip_special) {
  StreamDetokenizer detokenizer(tokenizer, true, skip_special);
  int64_t offset = 0;
  std::vector<TokenRecord> records;
  records.reserve(ids.size());
  for (const int32_t id : ids) {
    records.push_back({.id = id, .text_offset = offset});
    if (records.size() > silent) offset += count_characters(detokenizer.push(id));
  }
  return records;
}

// How long an answer gets when the request does not say.
int64_t default_tokens(const ServerContext& context, const ServingModel& model) {
  if (model.defaults.max_new_tokens) return *model.defaults.max_new_tokens;
  return context.config.default_max_tokens > 0 ? context.config.default_max_tokens : limits::kMaxTokens;
}

// Every token of a text that logit_bias names gets its bias.
std::optional<ApiError> resolve_text_bias(const ServingModel& model, GenerationRequest& request) {
  auto& bias = request.engine.sampling.logit_bias;
  for (const auto& [text, value] : std::exchange(request.text_bias, {})) {
    for (const int32_t id : model.tokenizer.encode(text, false, true)) bias.emplace_back(id, value);
  }
  if (bias.size() <= limits::kBiasEntries) return std::nullopt;
  return ApiError::invalid(
      fmt::format("'logit_bias' names {} tokens; at most {} are allowed.", bias.size(), limits::kBiasEntries),
      "logit_bias");
}

// A few fields multiply: a request of 100 KB could ask for a reply of 600 MB.
std::optional<ApiError> check_reply_size(const ServingModel& model, const GenerationRequest& request,
                                         const std::vector<PreparedPrompt>& prompts) {
  const int64_t n = request.engine.n;
  const int64_t top = request.wants_logprobs() ? 1 + request.engine.sampling.num_logprobs : 0;
  const int64_t prompt_top = request.prompt_logprobs ? 1 + *request.prompt_logprobs : 0;
  int64_t entries = 0, text_bytes = 0;
  for (const PreparedPrompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    // Most streams hold nothing of what they generate: their reader sets the pace.
    const int64_t generated =
        request.stream && !request.keeps_stream ? 0 : std::min(prompt.max_tokens, model.engine.config().max_model_len);
    entries += n * ((request.echo ? length : 0) + generated) * top + n * length * prompt_top;
    text_bytes += n * static_cast<int64_t>(prompt.text.size());
  }
  const int64_t allowed = request.reply_is_tree ? limits::kTreeLogprobEntries : limits::kLogprobEntries;
  if (entries > allowed) {
    return ApiError::invalid(
        fmt::format(
            "The reply would have {} log-probabilities (n × tokens × (logprobs + 1), with echo and prompt_logprobs "
            "over the prompt as well); at most {} are allowed.",
            entries, allowed),
        top > 0 ? "logprobs" : "prompt_logprobs");
  }
  if (text_bytes > limits::kEchoBytes) {
    return ApiError::invalid(fmt::format("The reply would echo {} bytes of prompts (n × their text); at most {} are "
                                         "allowed.",
                                         text_bytes, limits::kEchoBytes),
                             "echo");
  }
  return std::nullopt;
}

// A list of prompts that no empty queue would take would be told to come back for ever.
std::optional<ApiError> check_queue_limits(const ServingModel& model, const std::vector<PreparedPrompt>& prompts) {
  if (prompts.size() < 2) return std::nullopt;
  const EngineConfig& config = model.engine.config();
  if (static_cast<int64_t>(prompts.size()) > config.max_queue) {
    return ApiError::invalid(
        fmt::format("The request has {} prompts; at most {} (--max-queue) can wait at once. Send fewer.",
                    prompts.size(), config.max_queue),
        "prompt");
  }
  int64_t tokens = 0;
  for (const PreparedPrompt& prompt : prompts) tokens += static_cast<int64_t>(prompt.ids.size());
  if (tokens <= config.max_queued_tokens) return std::nullopt;
  return ApiError::invalid(
      fmt::format("The prompts have {} tokens in all; at most {} (--max-queued-tokens) can wait at "
                  "once. Send fewer.",
                  tokens, config.max_queued_tokens),
      "prompt");
}

// Tokenises one after the other and keeps of each what the reply needs.
class Tokenising {
 public:
  Tokenising(const ServerContext& context, const ServingModel& model, GenerationRequest& request, std::string& log_text)
      : context_(context), model_(model), request_(request), log_text_(log_text) {}

  std::optional<ApiError> chat() {
    const Tokenizer& tokenizer = model_.tokenizer;
    auto rendered = render_chat(model_, std::exchange(request_.messages, {}), request_.tools, request_.chat);
    if (!rendered) return rendered.error();
    // Templates write their own BOS.
    auto ids = tokenizer.encode(*rendered, request_.add_special_tokens.value_or(false), true);
    return add(std::move(ids), *std::move(rendered));
  }

  std::optional<ApiError> completions() {
    for (PromptInput& prompt : std::exchange(request_.prompts, {})) {
      std::optional<ApiError> error;
      if (auto* text = std::get_if<std::string>(&prompt)) {
        auto ids = model_.tokenizer.encode(*text, request_.add_special_tokens.value_or(true), request_.parse_special);
        error = add(std::move(ids), std::move(*text));
      } else {
        error = add(std::move(std::get<std::vector<int32_t>>(prompt)), std::nullopt);
      }
      if (error) return error;
    }
    return std::nullopt;
  }

  std::vector<PreparedPrompt> take() { return std::move(prompts_); }

 private:
  std::optional<ApiError> add(std::vector<int32_t> ids, std::optional<std::string> text) {
    const Tokenizer& tokenizer = model_.tokenizer;
    const size_t length = ids.size();
    if (auto error = fit_length(model_, request_, ids)) return error;
    const bool log = context_.config.log_prompts;
    if (ids.size() != length) text.reset();  // truncated
    const bool given = text.has_value();
    if ((request_.echo || log) && !given) text = tokenizer.decode(ids, request_.skip_special_tokens);
    if (log) log_text_ += *text;
    PreparedPrompt& prompt = prompts_.emplace_back();
    const int64_t room = model_.engine.config().max_model_len - static_cast<int64_t>(ids.size());
    prompt.max_tokens = request_.max_tokens.value_or(std::min(room, default_tokens(context_, model_)));
    if (request_.prompt_logprobs || (request_.echo && request_.wants_logprobs())) {
      // A text that was given spells its special tokens, but not the BOS that was put in front of it.
      const bool bos = given && request_.add_special_tokens.value_or(true) && tokenizer.add_bos();
      prompt.records = prompt_records(tokenizer, ids, bos ? 1 : 0, !given && request_.skip_special_tokens);
    }
    if (request_.echo) {
      prompt.text = *std::move(text);
      prompt.text_length = count_characters(prompt.text);
    }
    prompt.ids = std::move(ids);
    return std::nullopt;
  }

  const ServerContext& context_;
  const ServingModel& model_;
  GenerationRequest& request_;
  std::string& log_text_;
  std::vector<PreparedPrompt> prompts_;
};

}  // namespace

std::optional<ApiError> check_model(const ServerContext& context, const std::optional<std::string>& name) {
  const auto& names = context.config.served_model_names;
  if (!name || std::ranges::find(names, *name) != names.end()) return std::nullopt;
  return ApiError::not_found(
      fmt::format("The model '{}' does not exist; this server has '{}'.", name->substr(0, 200), names.front()),
      "model_not_found");
}

ApiResult<std::vector<PreparedPrompt>> prepare_prompts(const ServerContext& context, const ServingModel& model,
                                                       const Caller& caller, GenerationRequest& request,
                                                       std::string& log_text) {
  if (auto error = check_model(context, request.model)) return *error;
  if (auto error = check_priority(context, caller, request)) return *error;
  if (auto error = check_token_ids(model, request)) return *error;
  if (auto error = resolve_text_bias(model, request)) return *error;
  if (auto error = make_constraint(model, request)) return *error;
  Tokenising tokenising(context, model, request, log_text);
  if (auto error = request.kind == ApiKind::kChat ? tokenising.chat() : tokenising.completions()) return *error;
  std::vector<PreparedPrompt> prompts = tokenising.take();
  if (auto error = check_reply_size(model, request, prompts)) return *error;
  if (auto error = check_queue_limits(model, prompts)) return *error;
  if (context.config.request_timeout_s > 0) {
    const std::chrono::milliseconds limit(static_cast<int64_t>(context.config.request_timeout_s * 1000));
    request.own_timeout = request.engine.timeout && *request.engine.timeout <= limit;
    if (!request.own_timeout) request.engine.timeout = limit;
  } else {
    request.own_timeout = request.engine.timeout.has_value();
  }
  if (context.config.cache_salt_per_key && !caller.tenant.empty()) request.engine.cache_salt += "#" + caller.tenant;
  return prompts;
}

ApiError constraint_error(const GenerationRequest& request, std::string_view why) {
  const auto& fields = request.constraint_fields;
  return ApiError::invalid(fmt::format("'{}': {}", fmt::join(fields, "' and '"), why), fields.front());
}

DecodeOptions decode_options(const ServingModel& model, const GenerationRequest& request) {
  const SamplingParams& sampling = request.engine.sampling;
  DecodeOptions options;
  options.at_text_start = request.kind == ApiKind::kChat && !request.chat.continue_final_message;
  options.stop = request.stop;
  options.tool_calls = request.tools.active();
  options.only_tool_calls = request.tools.choice == ToolUse::Choice::kRequired;
  options.skip_special = request.skip_special_tokens && !request.tools.active();  // a marker may be one
  options.space_specials = request.spaces_between_special_tokens;
  options.token_texts = request.kind == ApiKind::kChat && request.wants_logprobs();
  options.include_stop_str = request.include_stop_str_in_output;
  options.stop_ids = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    options.eos_ids = model.engine.model_config().eos_token_ids;
    options.stop_ids.insert(options.stop_ids.end(), options.eos_ids.begin(), options.eos_ids.end());
  }
  return options;
}

}  // namespace bam
