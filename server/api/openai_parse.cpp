#include <algorithm>

#include <fmt/format.h>

#include "server/api/openai_api.h"

namespace bam {

namespace {

// What generation_config.json says, before the request says otherwise.
void set_defaults(const SamplingDefaults& defaults, SamplingParams& out) {
  out.temperature = defaults.temperature;
  out.top_p = defaults.top_p;
  out.top_k = defaults.top_k;
  out.min_p = defaults.min_p;
  out.repetition_penalty = defaults.repetition_penalty;
}

// Fields that need each other.
void check_counts(FieldReader& in, GenerationRequest& out) {
  const bool chat = out.kind == ApiKind::kChat;
  if (out.best_of && *out.best_of != out.engine.n) {
    in.fail("best_of", *out.best_of > out.engine.n
                           ? "'best_of' greater than 'n' is not supported: choices are not ranked."
                           : "'best_of' must not be less than 'n'.");
  }
  if (!out.max_tokens && !chat) out.max_tokens = kDefaultCompletionTokens;
  const char* name = in.has("max_tokens") ? "max_tokens" : "max_completion_tokens";
  if (out.max_tokens == 0 && chat) in.fail(name, fmt::format("'{}' must be at least 1.", name));
  if (out.max_tokens == 0 && !out.echo && !out.prompt_logprobs) {
    in.fail(name, fmt::format("'{}': 0 generates nothing; it is allowed with 'echo': true.", name));
  }
  if (out.max_tokens && out.engine.sampling.min_tokens > *out.max_tokens) {
    in.fail("min_tokens", "'min_tokens' is greater than 'max_tokens'.");
  }
}

void check_logprobs(FieldReader& in, GenerationRequest& out) {
  SamplingParams& sampling = out.engine.sampling;
  if (out.top_logprobs && *out.top_logprobs > 0 && !out.wants_logprobs()) {
    in.fail("top_logprobs", "'top_logprobs' needs 'logprobs': true.");
  }
  if (out.top_logprobs && out.wants_logprobs()) sampling.num_logprobs = *out.top_logprobs;
  // An echoed prompt carries logprobs too.
  if (out.echo && out.wants_logprobs()) {
    sampling.num_prompt_logprobs = std::max(sampling.num_prompt_logprobs, sampling.num_logprobs);
  }
  if (out.stream && out.prompt_logprobs) {
    in.fail("prompt_logprobs", "'prompt_logprobs' is not available with 'stream': true.");
  }
}

void check_stream(FieldReader& in, GenerationRequest& out) {
  if (in.has("stream_options") && !out.stream) in.fail("stream_options", "'stream_options' needs 'stream': true.");
  if (out.resumable && !out.stream) in.fail("resumable", "'resumable' needs 'stream': true.");
  out.continuous_usage_stats = out.continuous_usage_stats && out.include_usage;
}

// A constraint by its name, of a kind that this server does not know: nobody would notice that it was left out.
bool is_constraint_name(std::string_view name) {
  return name.starts_with("guided_") || name.starts_with("structured_") || name.starts_with("grammar_");
}

}  // namespace

bool is_valid_request_id(std::string_view id) {
  if (id.empty() || id.size() > limits::kRequestIdBytes) return false;
  return std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == ':' || c == '-';
  });
}

std::optional<std::vector<int32_t>> read_token_ids(FieldReader& reader, const std::string& key, const Json& array) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& entry : array) {
    const auto id = as_integer(entry, 0, INT32_MAX);
    if (!id) {
      reader.fail(key, fmt::format("'{}': entry {} is not a token id.", reader.name_of(key), ids.size()));
      return std::nullopt;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

ApiResult<GenerationRequest> parse_generation_request(const Json& body, ApiKind kind,
                                                      const SamplingDefaults& defaults) {
  GenerationRequest out;
  out.kind = kind;
  set_defaults(defaults, out.engine.sampling);
  FieldReader in(body);
  read_fields(in, generation_fields(), kind == ApiKind::kChat ? kInChat : kInCompletions, out);
  if (kind == ApiKind::kChat) out.tools = read_tools(in, out.constraint);
  if (in.ok()) check_counts(in, out);
  if (in.ok()) check_logprobs(in, out);
  if (in.ok()) check_stream(in, out);
  out.ignored_fields = in.unread();
  for (const std::string& name : out.ignored_fields) {
    if (is_constraint_name(name)) in.fail(name, fmt::format("'{}' is not supported.", name));
  }
  if (!in.ok()) return ApiError::invalid(in.error());
  return out;
}

}  // namespace bam
