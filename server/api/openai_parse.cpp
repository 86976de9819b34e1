#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "server/api/constraint_fields.h"
#include "server/api/openai_api.h"

namespace bam {

namespace {

void read_sampling(FieldReader& in, const SamplingDefaults& defaults, SamplingParams& out) {
  out.temperature = static_cast<float>(in.number("temperature", 0, 100).value_or(defaults.temperature));
  out.top_p = static_cast<float>(in.number("top_p", 0, 1).value_or(defaults.top_p));
  if (in.ok() && !(out.top_p > 0)) in.fail("top_p", "'top_p' must be greater than 0 and at most 1.");
  out.top_k = static_cast<int32_t>(std::max<int64_t>(0, in.integer("top_k", -1, INT32_MAX).value_or(defaults.top_k)));
  out.min_p = static_cast<float>(in.number("min_p", 0, 1).value_or(defaults.min_p));
  if (in.ok() && !(out.min_p < 1)) in.fail("min_p", "'min_p' must be at least 0 and less than 1.");
  out.presence_penalty = static_cast<float>(in.number("presence_penalty", -2, 2).value_or(0));
  out.frequency_penalty = static_cast<float>(in.number("frequency_penalty", -2, 2).value_or(0));
  const char* name = in.has("repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
  in.raw("repeat_penalty");
  out.repetition_penalty = static_cast<float>(in.number(name, 0, 100).value_or(defaults.repetition_penalty));
  if (in.ok() && !(out.repetition_penalty > 0)) {
    in.fail(name, fmt::format("'{}' must be greater than 0.", name));
  }
  if (const auto seed = in.integer("seed", INT64_MIN, INT64_MAX)) {
    out.seed = static_cast<uint64_t>(*seed);
  }
  out.ignore_eos = in.boolean("ignore_eos").value_or(false);
  out.min_tokens = in.integer("min_tokens", 0, limits::kMaxTokens).value_or(0);
  if (const Json* ids = in.array("stop_token_ids", limits::kStopTokenIds)) {
    if (auto tokens = read_token_ids(in, "stop_token_ids", *ids)) out.stop_token_ids = *std::move(tokens);
  }
}

void add_bias(FieldReader& in, std::optional<int64_t> id, const Json& bias, SamplingParams& out) {
  if (!id) {
    in.fail("logit_bias", "'logit_bias' must map token ids to numbers.");
    return;
  }
  if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
    in.fail("logit_bias", fmt::format("'logit_bias' of token {} must be a number between -100 and 100.", *id));
    return;
  }
  out.logit_bias.emplace_back(static_cast<int32_t>(*id), bias.get<float>());
}

// {"15": -1.5} or [[15, -1.5]]
void read_logit_bias(FieldReader& in, SamplingParams& out) {
  const Json* bias = in.raw("logit_bias");
  if (!bias) return;
  if (!bias->is_object() && !bias->is_array()) {
    in.fail("logit_bias", "'logit_bias' must be an object or an array of [id, bias] pairs.");
    return;
  }
  if (bias->size() > limits::kBiasEntries) {
    in.fail("logit_bias",
            fmt::format("'logit_bias' has {} entries; at most {} are allowed.", bias->size(), limits::kBiasEntries));
    return;
  }
  if (bias->is_array()) {
    for (const Json& pair : *bias) {
      const bool valid = pair.is_array() && pair.size() == 2;
      add_bias(in, valid ? as_integer(pair[0], 0, INT32_MAX) : std::nullopt, valid ? pair[1] : Json(), out);
    }
    return;
  }
  for (const auto& [key, value] : bias->items()) {
    int32_t id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool valid = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() && id >= 0;
    add_bias(in, valid ? std::optional<int64_t>(id) : std::nullopt, value, out);
  }
}

void read_stop(FieldReader& in, GenerationRequest& out) {
  const Json* stop = in.raw("stop");
  if (!stop) return;
  if (stop->is_string()) {
    out.stop.push_back(stop->get<std::string>());
  } else if (const Json* list = in.array("stop", limits::kStopStrings)) {
    for (const Json& entry : *list) {
      if (!entry.is_string()) {
        in.fail("stop", "'stop' must be a string or an array of strings.");
        return;
      }
      out.stop.push_back(entry.get<std::string>());
    }
  }
  for (const std::string& text : out.stop) {
    if (text.empty()) in.fail("stop", "'stop' has an empty string, which would match everywhere.");
    if (text.size() > limits::kStopStringBytes) {
      in.fail("stop", fmt::format("a 'stop' string is longer than {} bytes.", limits::kStopStringBytes));
    }
  }
}

void read_logprobs(FieldReader& in, GenerationRequest& out) {
  if (out.kind == ApiKind::kCompletion) {
    if (const auto count = in.integer("logprobs", 0, limits::kLogprobs)) {
      out.engine.sampling.num_logprobs = static_cast<int32_t>(*count);
    }
  } else {
    const bool enabled = in.boolean("logprobs").value_or(false);
    const auto top = in.integer("top_logprobs", 0, limits::kLogprobs);
    if (top && *top > 0 && !enabled) in.fail("top_logprobs", "'top_logprobs' needs 'logprobs': true.");
    if (enabled) out.engine.sampling.num_logprobs = static_cast<int32_t>(top.value_or(0));
  }
  if (const auto count = in.integer("prompt_logprobs", 0, limits::kLogprobs)) {
    out.prompt_logprobs = static_cast<int32_t>(*count);
    out.engine.sampling.num_prompt_logprobs = *out.prompt_logprobs;
  }
}

// An echoed prompt carries logprobs too.
void read_echo(FieldReader& in, GenerationRequest& out) {
  out.echo = in.boolean("echo").value_or(false);
  if (out.echo && out.wants_logprobs()) {
    out.engine.sampling.num_prompt_logprobs = std::max(out.engine.sampling.num_prompt_logprobs, out.engine.sampling.num_logprobs);
  }
  if (out.max_tokens == 0 && !out.echo && !out.prompt_logprobs) {
    in.fail("max_tokens", "'max_tokens': 0 generates nothing; it is allowed with 'echo': true.");
  }
  if (out.stream && out.prompt_logprobs) {
    in.fail("prompt_logprobs", "'prompt_logprobs' is not available with 'stream': true.");
  }
}

void read_prompts(FieldReader& in, GenerationRequest& out) {
  const Json* prompt = in.raw("prompt");
  if (!prompt) {
    in.fail("prompt", "'prompt' is missing.");
    return;
  }
  if (prompt->is_string()) {
    out.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array() || prompt->empty()) {
    in.fail("prompt",
            "'prompt' must be a string, an array of strings, an array of token ids or an "
            "array of such arrays, and not empty.");
    return;
  }
  if (prompt->front().is_number()) {
    if (auto ids = read_token_ids(in, "prompt", *prompt)) out.prompts.emplace_back(*std::move(ids));
    return;
  }
  if (prompt->size() > limits::kPrompts) {
    in.fail("prompt", fmt::format("'prompt' has {} prompts; at most {} are allowed per request.", prompt->size(),
                                  limits::kPrompts));
    return;
  }
  for (const Json& entry : *prompt) {
    if (entry.is_string()) {
      out.prompts.emplace_back(entry.get<std::string>());
    } else if (entry.is_array()) {
      if (auto ids = read_token_ids(in, "prompt", entry)) out.prompts.emplace_back(*std::move(ids));
    } else {
      in.fail("prompt", "'prompt' must hold strings or arrays of token ids.");
    }
    if (!in.ok()) return;
  }
}

void refuse_unsupported(FieldReader& in, const GenerationRequest& out) {
  if (const Json* suffix = in.raw("suffix"); suffix && *suffix != "") {
    in.fail("suffix",
            "'suffix' is not supported: BAM models read left to right and were not trained "
            "to fill in the middle.");
  }
  if (out.kind != ApiKind::kChat) return;
  if (const Json* functions = in.raw("functions"); functions && !(functions->is_array() && functions->empty())) {
    in.fail("functions", "'functions' is not supported: use 'tools'.");
  }
  if (const Json* call = in.raw("function_call"); call && *call != "none" && *call != "auto") {
    in.fail("function_call", "'function_call' is not supported: use 'tool_choice'.");
  }
}

void read_delivery(FieldReader& in, GenerationRequest& out) {
  out.stream = in.boolean("stream").value_or(false);
  if (const Json* options = in.object("stream_options")) {
    FieldReader fields(*options, "stream_options");
    out.include_usage = fields.boolean("include_usage").value_or(false);
    out.continuous_usage_stats = fields.boolean("continuous_usage_stats").value_or(false) && out.include_usage;
    in.adopt(fields);
    if (!out.stream) in.fail("stream_options", "'stream_options' needs 'stream': true.");
  }
  out.return_token_ids = in.boolean("return_token_ids").value_or(false);
  out.return_progress = in.boolean("return_progress").value_or(false);
  out.engine.priority = static_cast<int32_t>(in.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  out.engine.cache_salt = in.text("cache_salt", limits::kCacheSaltBytes).value_or("");
  if (auto id = in.text("request_id", limits::kRequestIdBytes)) {
    if (!is_valid_request_id(*id)) {
      in.fail("request_id", "'request_id' must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -");
    }
    out.request_id = *std::move(id);
  }
  if (const auto seconds = in.number("timeout", 0, 7 * 86400.0)) {
    if (!(*seconds > 0)) in.fail("timeout", "'timeout' must be greater than 0.");
    out.engine.timeout = std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(*seconds * 1000)));
  }
  out.truncate_prompt_tokens = in.integer("truncate_prompt_tokens", -1, limits::kMaxTokens);
  if (out.truncate_prompt_tokens == 0) {
    in.fail("truncate_prompt_tokens", "'truncate_prompt_tokens' must be -1 or at least 1.");
  }
  out.add_special_tokens = in.boolean("add_special_tokens");
}

void read_counts(FieldReader& in, GenerationRequest& out) {
  out.max_tokens = in.integer("max_tokens", 0, limits::kMaxTokens);
  if (const auto limit = in.integer("max_completion_tokens", 0, limits::kMaxTokens)) {
    if (out.max_tokens && *out.max_tokens != *limit) {
      in.fail("max_completion_tokens", "'max_tokens' and 'max_completion_tokens' disagree.");
    }
    out.max_tokens = *limit;
  }
  if (out.kind == ApiKind::kCompletion && !out.max_tokens) out.max_tokens = 16;
  out.engine.n = static_cast<int32_t>(in.integer("n", 1, limits::kChoices).value_or(1));
  if (const auto best_of = in.integer("best_of", 1, limits::kChoices); best_of && *best_of != out.engine.n) {
    in.fail("best_of", *best_of > out.engine.n ? "'best_of' greater than 'n' is not supported: choices are not ranked."
                                        : "'best_of' must not be less than 'n'.");
  }
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
  FieldReader in(body);
  out.model = in.text("model", 1024);
  if (kind == ApiKind::kCompletion) {
    read_prompts(in, out);
  } else {
    out.messages = read_messages(in, "messages");
    out.add_generation_prompt = in.boolean("add_generation_prompt").value_or(true);
  }
  read_counts(in, out);
  read_sampling(in, defaults, out.engine.sampling);
  read_logit_bias(in, out.engine.sampling);
  read_stop(in, out);
  out.include_stop_str_in_output = in.boolean("include_stop_str_in_output").value_or(false);
  read_logprobs(in, out);
  read_delivery(in, out);
  if (kind == ApiKind::kCompletion) {
    read_echo(in, out);
  } else if (out.max_tokens == 0) {
    in.fail("max_tokens", "'max_tokens' must be at least 1.");
  }
  read_constraints(in, out);
  if (kind == ApiKind::kChat) out.tools = read_tools(in, out.constraint);
  refuse_unsupported(in, out);
  in.raw("user");  // accepted and ignored by contract
  if (in.ok() && out.max_tokens && out.engine.sampling.min_tokens > *out.max_tokens) {
    in.fail("min_tokens", "'min_tokens' is greater than 'max_tokens'.");
  }
  if (!in.ok()) return ApiError::invalid(in.error());
  out.ignored_fields = in.unread();
  return out;
}

}  // namespace bam
