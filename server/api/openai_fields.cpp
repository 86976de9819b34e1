#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "server/api/constraint_fields.h"
#include "server/api/openai_api.h"

namespace bam {

namespace {

using Kinds = FieldKinds<GenerationRequest>;

Json ids_schema() { return {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}}; }

Json list_of(Json items, size_t min_items, size_t max_items) {
  Json schema = {{"type", "array"}, {"items", std::move(items)}, {"minItems", min_items}};
  if (max_items != SIZE_MAX) schema["maxItems"] = max_items;
  return schema;
}

Json any_of(const std::vector<Json>& schemas) { return {{"anyOf", schemas}}; }

FieldKind<GenerationRequest> prompts() {
  const Json text = {{"type", "string"}}, ids = list_of(ids_schema(), 1, SIZE_MAX);
  return Kinds::custom(
      any_of({text, list_of(text, 1, limits::kPrompts), ids, list_of(ids, 1, limits::kPrompts)}),
      [](FieldReader& in, const std::string& key, GenerationRequest& out) {
        const Json& prompt = *in.raw(key);
        if (prompt.is_string()) {
          out.prompts.emplace_back(prompt.get<std::string>());
          return;
        }
        if (!prompt.is_array() || prompt.empty()) {
          in.fail(key,
                  "'prompt' must be a string, an array of strings, an array of token ids or an array of such arrays, "
                  "and not empty.");
          return;
        }
        if (prompt.front().is_number()) {
          if (auto ids = read_token_ids(in, key, prompt)) out.prompts.emplace_back(*std::move(ids));
          return;
        }
        if (prompt.size() > limits::kPrompts) {
          in.fail(key, fmt::format("'prompt' has {} prompts; at most {} are allowed per request.", prompt.size(),
                                   limits::kPrompts));
          return;
        }
        for (const Json& entry : prompt) {
          if (entry.is_string()) {
            out.prompts.emplace_back(entry.get<std::string>());
          } else if (entry.is_array()) {
            if (auto ids = read_token_ids(in, key, entry)) out.prompts.emplace_back(*std::move(ids));
          } else {
            in.fail(key, "'prompt' must hold strings or arrays of token ids.");
          }
          if (!in.ok()) return;
        }
      });
}

FieldKind<GenerationRequest> messages() {
  return Kinds::custom(
      list_of({{"$ref", "#/components/schemas/Message"}}, 1, limits::kMessages),
      [](FieldReader& in, const std::string& key, GenerationRequest& out) { out.messages = read_messages(in, key); });
}

// Some clients send "" for whatever is served.
FieldKind<GenerationRequest> model() {
  return Kinds::custom({{"type", "string"}, {"maxLength", limits::kModelBytes}},
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         auto name = in.text(key, limits::kModelBytes);
                         if (name && !name->empty()) out.model = *std::move(name);
                       });
}

FieldKind<GenerationRequest> top_k() {
  return Kinds::custom({{"type", "integer"}, {"minimum", -1}, {"maximum", INT32_MAX}},
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         if (const auto k = in.integer(key, -1, INT32_MAX)) {
                           out.engine.sampling.top_k = static_cast<int32_t>(std::max<int64_t>(0, *k));
                         }
                       });
}

FieldKind<GenerationRequest> seed() {
  return Kinds::custom({{"type", "integer"}, {"minimum", INT64_MIN}, {"maximum", INT64_MAX}},
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         if (const auto seed = in.integer(key, INT64_MIN, INT64_MAX)) {
                           out.engine.sampling.seed = static_cast<uint64_t>(*seed);
                         }
                       });
}

FieldKind<GenerationRequest> stop() {
  const Json text = {{"type", "string"}, {"minLength", 1}, {"maxLength", limits::kStopStringBytes}};
  return Kinds::custom(any_of({text, list_of(text, 0, limits::kStopStrings)}),
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         if (const Json& stop = *in.raw(key); stop.is_string()) {
                           out.stop.push_back(stop.get<std::string>());
                         } else if (const Json* list = in.array(key, limits::kStopStrings)) {
                           for (const Json& entry : *list) {
                             if (!entry.is_string())
                               return in.fail(key, "'stop' must be a string or an array of strings.");
                             out.stop.push_back(entry.get<std::string>());
                           }
                         }
                         for (const std::string& text : out.stop) {
                           if (text.empty()) in.fail(key, "'stop' has an empty string, which would match everywhere.");
                           if (text.size() > limits::kStopStringBytes) {
                             in.fail(key,
                                     fmt::format("a 'stop' string is longer than {} bytes.", limits::kStopStringBytes));
                           }
                         }
                       });
}

FieldKind<GenerationRequest> stop_token_ids() {
  return Kinds::custom(list_of(ids_schema(), 0, limits::kStopTokenIds),
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         const Json* list = in.array(key, limits::kStopTokenIds);
                         if (!list) return;
                         if (auto ids = read_token_ids(in, key, *list)) {
                           out.engine.sampling.stop_token_ids = *std::move(ids);
                         }
                       });
}

// The token id that a key of logit_bias means; nothing when it is a text.
std::optional<int64_t> bias_id(std::string_view key) {
  const std::string_view digits = key.starts_with('-') ? key.substr(1) : key;
  const bool number = !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                                     [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  if (!number || digits == ".") return std::nullopt;
  int32_t id = -1;
  const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
  return parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() ? id : -1;
}

// `id`: a token's, negative when it is none; nothing when `text` is to be tokenised.
void add_bias(FieldReader& in, const std::string& key, std::optional<int64_t> id, const std::string& text,
              const Json& bias, GenerationRequest& out) {
  const std::string name = text.empty() && id ? std::to_string(*id) : quote_json(text);
  if ((id && *id < 0) || (!id && text.empty())) {
    return in.fail(key, fmt::format("'{}': {} is neither a token id nor a text.", key, name));
  }
  float value = 0;
  if (bias == false) {
    value = -std::numeric_limits<float>::infinity();  // llama.cpp: never
  } else if (bias.is_number() && std::abs(bias.get<double>()) <= limits::kMaxBias) {
    value = bias.get<float>();
  } else {
    return in.fail(key, fmt::format("'{}' of {} must be a number between -{} and {}, or false.", key, name,
                                    limits::kMaxBias, limits::kMaxBias));
  }
  if (id) {
    out.engine.sampling.logit_bias.emplace_back(static_cast<int32_t>(*id), value);
  } else {
    out.text_bias.emplace_back(text, value);
  }
}

// {"15": -1.5, " the": 2} or [[15, -1.5], ["the", false]]
FieldKind<GenerationRequest> logit_bias() {
  const Json value =
      any_of({{{"type", "number"}, {"minimum", -limits::kMaxBias}, {"maximum", limits::kMaxBias}}, {{"const", false}}});
  const Json pair = {{"type", "array"},
                     {"prefixItems", {any_of({ids_schema(), {{"type", "string"}, {"minLength", 1}}}), value}},
                     {"minItems", 2},
                     {"maxItems", 2}};
  const Json object = {{"type", "object"}, {"additionalProperties", value}, {"maxProperties", limits::kBiasEntries}};
  return Kinds::custom(any_of({object, list_of(pair, 0, limits::kBiasEntries)}),
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         const Json& bias = *in.raw(key);
                         if (!bias.is_object() && !bias.is_array()) {
                           return in.fail(key, "'logit_bias' must be an object or an array of [token, bias] pairs.");
                         }
                         if (bias.size() > limits::kBiasEntries) {
                           return in.fail(key, fmt::format("'logit_bias' has {} entries; at most {} are allowed.",
                                                           bias.size(), limits::kBiasEntries));
                         }
                         if (bias.is_object()) {
                           for (const auto& [token, value] : bias.items())
                             add_bias(in, key, bias_id(token), token, value, out);
                           return;
                         }
                         for (const Json& pair : bias) {
                           if (!pair.is_array() || pair.size() != 2) {
                             return in.fail(
                                 key, fmt::format("'logit_bias': {} is no [token, bias] pair.", quote_json(pair)));
                           }
                           if (pair[0].is_string()) {
                             add_bias(in, key, std::nullopt, pair[0].get<std::string>(), pair[1], out);
                           } else {
                             add_bias(in, key, as_integer(pair[0], 0, INT32_MAX).value_or(-1), {}, pair[1], out);
                           }
                         }
                       });
}

FieldKind<GenerationRequest> prompt_logprobs() {
  return Kinds::custom({{"type", "integer"}, {"minimum", 0}, {"maximum", limits::kLogprobs}},
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         if (const auto count = in.integer(key, 0, limits::kLogprobs)) {
                           out.prompt_logprobs = static_cast<int32_t>(*count);
                           out.engine.sampling.num_prompt_logprobs = *out.prompt_logprobs;
                         }
                       });
}

FieldKind<GenerationRequest> logprobs_of_completion() {
  return Kinds::custom({{"type", "integer"}, {"minimum", 0}, {"maximum", limits::kLogprobs}},
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         if (const auto count = in.integer(key, 0, limits::kLogprobs)) {
                           out.engine.sampling.num_logprobs = static_cast<int32_t>(*count);
                         }
                       });
}

FieldKind<GenerationRequest> logprobs_of_chat() {
  return Kinds::custom({{"type", "boolean"}}, [](FieldReader& in, const std::string& key, GenerationRequest& out) {
    if (in.boolean(key).value_or(false)) out.engine.sampling.num_logprobs = 0;
  });
}

FieldKind<GenerationRequest> request_id() {
  return Kinds::custom(
      {{"type", "string"}, {"pattern", fmt::format("^[A-Za-z0-9._:-]{{1,{}}}$", limits::kRequestIdBytes)}},
      [](FieldReader& in, const std::string& key, GenerationRequest& out) {
        auto id = in.text(key, limits::kRequestIdBytes);
        if (!id) return;
        if (!is_valid_request_id(*id)) {
          in.fail(key, fmt::format("'{}' must be 1 to {} of the characters A-Z a-z 0-9 . _ : -", key,
                                   limits::kRequestIdBytes));
        }
        out.request_id = *std::move(id);
      });
}

FieldKind<GenerationRequest> timeout() {
  const NumberRange range{.min = 0, .max = limits::kTimeoutSeconds, .open_min = true};
  return Kinds::custom(range.schema(), [range](FieldReader& in, const std::string& key, GenerationRequest& out) {
    if (const auto seconds = range.read(in, key)) {
      out.engine.timeout = std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(*seconds * 1000)));
    }
  });
}

FieldKind<GenerationRequest> truncate_prompt_tokens() {
  return Kinds::custom({{"type", "integer"}, {"minimum", -1}, {"maximum", limits::kMaxTokens}, {"not", {{"const", 0}}}},
                       [](FieldReader& in, const std::string& key, GenerationRequest& out) {
                         out.truncate_prompt_tokens = in.integer(key, -1, limits::kMaxTokens);
                         if (out.truncate_prompt_tokens == 0) {
                           in.fail(key, fmt::format("'{}' must be -1 or at least 1.", key));
                         }
                       });
}

FieldTable<GenerationRequest> stream_options() {
  return {
      {"include_usage", kAnyGeneration, Kinds::flag(BAM_MEMBER(include_usage)), "one more chunk with the usage"},
      {"continuous_usage_stats", kAnyGeneration, Kinds::flag(BAM_MEMBER(continuous_usage_stats)),
       "with include_usage: the usage so far in every chunk"},
  };
}

FieldTable<GenerationRequest> draft() {
  return {
      {"tokens", kAnyGeneration, Kinds::integer(0, DraftParams::kMaxTokens, BAM_MEMBER(engine.draft.tokens)),
       "at most so many guesses in one step; 0: none"},
      {"ngram", kAnyGeneration, Kinds::integer(1, DraftParams::kMaxNgram, BAM_MEMBER(engine.draft.ngram)),
       "so many tokens in a row must have stood there before"},
  };
}

Json tool_choice_schema() { return any_of({{{"enum", {"none", "auto", "required"}}}, {{"type", "object"}}}); }

// clang-format off
FieldTable<GenerationRequest> make_fields() {
  constexpr int64_t kMany = limits::kMaxTokens;
  constexpr const char* kNoTools = "a completion calls no tools, a chat does";
  return {
      {"prompt", kInCompletions, prompts(), "a string, a list of strings, a list of token ids, or a list of such lists", {}, true},
      {"messages", kInChat, messages(), "the conversation; content is a string or a list of text parts", {}, true},
      {"model", kAnyGeneration, model(), "a served name; absent or empty: the served model"},

      {"max_tokens", kAnyGeneration, Kinds::integer(0, kMany, BAM_MEMBER(max_tokens)),
       "default 16 for completions; for chat max_new_tokens of generation_config.json, else --default-max-tokens; 0 is allowed with echo",
       {"max_completion_tokens"}},
      {"min_tokens", kAnyGeneration, Kinds::integer(0, kMany, BAM_MEMBER(engine.sampling.min_tokens)), "no end before so many; the text of a constraint that is complete ends all the same"},
      {"n", kAnyGeneration, Kinds::integer(1, limits::kChoices, BAM_MEMBER(engine.n)), "choices per prompt"},
      {"best_of", kAnyGeneration, Kinds::integer(1, limits::kChoices, BAM_MEMBER(best_of)), "must equal n: choices are not ranked"},

      {"temperature", kAnyGeneration, Kinds::number({0, 100}, BAM_MEMBER(engine.sampling.temperature)),
       "0 is greedy; generation_config.json may set another default, as for the next four"},
      {"top_p", kAnyGeneration, Kinds::number({.min = 0, .max = 1, .open_min = true}, BAM_MEMBER(engine.sampling.top_p)),
       "the most probable tokens that add up to this"},
      {"top_k", kAnyGeneration, top_k(), "the k most probable tokens; 0 or -1: all"},
      {"min_p", kAnyGeneration, Kinds::number({.min = 0, .max = 1, .open_max = true}, BAM_MEMBER(engine.sampling.min_p)),
       "tokens at least this probable, relative to the best"},
      {"repetition_penalty", kAnyGeneration,
       Kinds::number({.min = 0, .max = 100, .open_min = true}, BAM_MEMBER(engine.sampling.repetition_penalty)),
       "divides the logits of tokens that the prompt or the text has", {"repeat_penalty"}},
      {"presence_penalty", kAnyGeneration, Kinds::number({-2, 2}, BAM_MEMBER(engine.sampling.presence_penalty)),
       "subtracted from the logits of tokens in the text"},
      {"frequency_penalty", kAnyGeneration, Kinds::number({-2, 2}, BAM_MEMBER(engine.sampling.frequency_penalty)),
       "the same, times how often they came"},
      {"seed", kAnyGeneration, seed(), "the same seed and request give the same tokens, whatever else runs"},
      {"logit_bias", kAnyGeneration, logit_bias(),
       "{token: bias} or [[token, bias]]; a token is an id or a text, of which every token gets the bias; false: never"},

      {"stop", kAnyGeneration, stop(), "texts that end the reply"},
      {"include_stop_str_in_output", kAnyGeneration, Kinds::flag(BAM_MEMBER(include_stop_str_in_output)), "keep what ended it"},
      {"stop_token_ids", kAnyGeneration, stop_token_ids(), "tokens that end the reply"},
      {"ignore_eos", kAnyGeneration, Kinds::flag(BAM_MEMBER(engine.sampling.ignore_eos)), "EOS does not end it"},

      {"logprobs", kInCompletions, logprobs_of_completion(), "log-probabilities with so many alternatives"},
      {"logprobs", kInChat, logprobs_of_chat(), "log-probabilities of the tokens"},
      {"top_logprobs", kInChat, Kinds::integer(0, limits::kLogprobs, BAM_MEMBER(top_logprobs)), "with so many alternatives; needs logprobs"},
      {"prompt_logprobs", kAnyGeneration, prompt_logprobs(), "log-probabilities of the prompt in vLLM's shape; not with stream"},
      {"echo", kInCompletions, Kinds::flag(BAM_MEMBER(echo)), "the prompt is part of the text and of logprobs (null first)"},
      {"return_tokens_as_token_ids", kAnyGeneration, Kinds::flag(BAM_MEMBER(return_tokens_as_token_ids)),
       "logprobs name tokens as token_id:15, not by their text"},
      {"return_token_ids", kAnyGeneration, Kinds::flag(BAM_MEMBER(return_token_ids)), "token_ids and prompt_token_ids in the reply"},

      {"stream", kAnyGeneration, Kinds::flag(BAM_MEMBER(stream)), "server-sent events"},
      {"stream_options", kAnyGeneration, Kinds::object(stream_options()), "needs stream"},
      {"resumable", kAnyGeneration, Kinds::flag(BAM_MEMBER(resumable)), "a stream that outlives its connection, see Resumable streams; needs stream"},
      {"return_progress", kAnyGeneration, Kinds::flag(BAM_MEMBER(return_progress)), "streams report how much of the prompt is read"},

      {"add_special_tokens", kAnyGeneration, Kinds::flag(BAM_MEMBER(add_special_tokens)),
       "put BOS as the checkpoint asks; default true for prompts, false for chat, whose template writes its own"},
      {"parse_special", kInCompletions, Kinds::flag(BAM_MEMBER(parse_special)), "special tokens that the prompt spells out are those tokens; else text"},
      {"truncate_prompt_tokens", kAnyGeneration, truncate_prompt_tokens(), "keep so many tokens of the prompt; -1: what fits"},
      {"truncation_side", kAnyGeneration, Kinds::choice<bool>({{"left", false}, {"right", true}}, BAM_MEMBER(truncate_right)),
       "which end truncate_prompt_tokens cuts off; default left"},
      {"skip_special_tokens", kAnyGeneration, Kinds::flag(BAM_MEMBER(skip_special_tokens)), "special tokens are no part of the text"},
      {"spaces_between_special_tokens", kAnyGeneration, Kinds::flag(BAM_MEMBER(spaces_between_special_tokens)),
       "without skip_special_tokens: a blank between two of them"},
      {"add_generation_prompt", kInChat, Kinds::flag(BAM_MEMBER(chat.add_generation_prompt)), "end the prompt with the head of an answer; default true"},
      {"continue_final_message", kInChat, Kinds::flag(BAM_MEMBER(chat.continue_final_message)),
       "the reply goes on where the last message ends; not with add_generation_prompt"},
      {"chat_template_kwargs", kInChat, template_variables<GenerationRequest>(BAM_MEMBER(chat.variables)), "variables for the checkpoint's template"},

      {"priority", kAnyGeneration, Kinds::integer(INT32_MIN, INT32_MAX, BAM_MEMBER(engine.priority)),
       "lower is earlier; --max-priority bounds it without the admin key"},
      {"timeout", kAnyGeneration, timeout(), "seconds from arrival to the last token; then 408, or an error event in a stream"},
      {"cache_salt", kAnyGeneration, Kinds::text(limits::kCacheSaltBytes, BAM_MEMBER(engine.cache_salt)),
       "prompts share cached pages within one salt only"},
      {"draft", kAnyGeneration, Kinds::object(draft()),
       "guesses from the request's own text that a step checks; tokens stay the same, see --draft"},
      {"request_id", kAnyGeneration, request_id(), "also as header X-Request-Id; the reply's id is cmpl- or chatcmpl- plus it"},
      {"user", kAnyGeneration, Kinds::ignored({{"type", "string"}}), "ignored"},

      {"modalities", kInChat, Kinds::refused(Json::array({Json::array({"text"}), Json::array()}), "this model writes text"), "refused, but for [\"text\"]"},
      {"suffix", kInCompletions, Kinds::refused(Json::array({""}), "BAM models read left to right and were not trained to fill in the middle"),
       "refused: BAM models read left to right"},
      // These three mean something together only: read_tools() reads them.
      {"tools", kInChat, Kinds::ignored(tools_schema()), "what the model may call"},
      {"tool_choice", kInChat, Kinds::ignored(tool_choice_schema()), "whether it may, must, or which one; default auto"},
      {"parallel_tool_calls", kInChat, Kinds::ignored({{"type", "boolean"}}), "several calls in one reply; default true"},
      {"tools", kInCompletions, Kinds::refused(Json::array({Json::array()}), kNoTools), "refused: a chat has tools"},
      {"tool_choice", kInCompletions, Kinds::refused(Json::array({"none", "auto"}), kNoTools), "refused, likewise"},
      {"functions", kAnyGeneration, Kinds::refused(Json::array({Json::array()}), "use 'tools'"), "refused: use tools"},
      {"function_call", kAnyGeneration, Kinds::refused(Json::array({"none", "auto"}), "use 'tool_choice'"), "refused: use tool_choice"},
  };
}
// clang-format on

}  // namespace

Json tools_schema() { return list_of({{"$ref", "#/components/schemas/Tool"}}, 0, limits::kTools); }

const FieldTable<GenerationRequest>& generation_fields() {
  static const FieldTable<GenerationRequest> fields = [] {
    FieldTable<GenerationRequest> all = make_fields();
    for (Field<GenerationRequest>& field : constraint_fields()) all.push_back(std::move(field));
    return all;
  }();
  return fields;
}

}  // namespace bam
