// OpenAI's requests as typed, range-checked values. Nothing here knows HTTP, tokens' texts or the engine's state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json_fields.h"
#include "engine/request.h"
#include "server/api/api_error.h"
#include "server/api/field_table.h"
#include "server/api/tools.h"
#include "server/jinja/chat_template.h"

namespace bam {

// Caps on everything that a client controls. Body size and queue limits are configuration; these are not.
namespace limits {
inline constexpr size_t kPrompts = 1024;
inline constexpr int64_t kChoices = 16;
inline constexpr size_t kStopStrings = 16;
inline constexpr size_t kStopStringBytes = 1024;
inline constexpr size_t kStopTokenIds = 256;
inline constexpr size_t kBiasEntries = 1024;
inline constexpr int kMaxBias = 100;
inline constexpr int64_t kLogprobs = 20;
inline constexpr int64_t kEchoBytes = 64 << 20;          // of prompts, in all choices of a reply
inline constexpr int64_t kLogprobEntries = 2'000'000;    // of one reply: some 200 MB of JSON
inline constexpr int64_t kTreeLogprobEntries = 200'000;  // of one that is a tree in memory, at 400 bytes each
inline constexpr size_t kMessages = 4096;
inline constexpr size_t kTemplateVariableBytes = 64 * 1024;
inline constexpr size_t kSchemaBytes = 64 * 1024;
inline constexpr size_t kRegexBytes = 8 * 1024;
inline constexpr size_t kGrammarBytes = 64 * 1024;
inline constexpr size_t kAllowedTokenIds = 65'536;
inline constexpr size_t kBadWords = 256;
inline constexpr size_t kBadWordBytes = 1024;
inline constexpr size_t kChoiceConstraints = 1024;
inline constexpr size_t kChoiceConstraintBytes = 64 * 1024;
inline constexpr size_t kModelBytes = 1024;
inline constexpr double kTimeoutSeconds = 7 * 86400.0;
inline constexpr size_t kRequestIdBytes = 128;
inline constexpr size_t kCacheSaltBytes = 256;
inline constexpr int64_t kMaxTokens = int64_t{1} << 40;  // far above any context; the real limit needs the prompt
}  // namespace limits

inline constexpr int64_t kDefaultCompletionTokens = 16;

enum class ApiKind : uint8_t { kCompletion, kChat };

// A prompt as text or as token ids.
using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct ConstraintSpec {
  enum class Kind : uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string text;  // schema, pattern or grammar
  std::vector<std::string> choices;
  std::string param;  // the field it came from, for errors
};

// What a request means when it leaves sampling fields out (generation_config.json).
struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  std::optional<int64_t> max_new_tokens;  // of a chat
};

// How messages become a prompt.
struct ChatRendering {
  ChatRendering() = default;
  explicit(false) ChatRendering(bool add_generation) : add_generation_prompt(add_generation) {}

  std::optional<bool> add_generation_prompt;  // unless set: when no message is to be continued
  bool continue_final_message = false;
  Json variables;  // chat_template_kwargs; null: none
};

struct GenerationRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::optional<std::string> model;
  std::vector<PromptInput> prompts;   // kCompletion
  std::vector<ChatMessage> messages;  // kChat
  ChatRendering chat;                 // kChat
  std::optional<int64_t> max_tokens;
  std::optional<int32_t> best_of, top_logprobs;
  // What the engine gets, but for its id, the prompt and sampling.max_tokens, which are known later.
  Request engine;
  std::vector<std::pair<std::string, float>> text_bias;  // logit_bias of texts, which become tokens later
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  std::optional<int32_t> prompt_logprobs;  // vLLM's field of that name
  bool echo = false;
  bool stream = false;
  bool reply_is_tree = false;  // a dialect's: whole replies, and with keeps_stream streamed ones too, are held as JSON
  bool keeps_stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  // "token_id:15" in logprobs
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = false;
  bool parse_special = true;  // special pieces in a text prompt become their tokens
  bool return_progress = false;
  bool resumable = false;
  ConstraintSpec constraint;
  ToolUse tools;                           // kChat
  std::vector<int32_t> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;
  std::vector<std::string> constraint_fields;     // that engine.constraint was made of
  std::string request_id;                         // empty: none given
  std::optional<int64_t> truncate_prompt_tokens;  // -1: to what fits
  bool truncate_right = false;
  std::optional<bool> add_special_tokens;
  std::vector<std::string> ignored_fields;

  bool own_timeout = false;  // engine.timeout is the client's, not --request-timeout

  bool wants_logprobs() const { return engine.sampling.num_logprobs >= 0; }
};

// Where a field of a generation is taken.
enum : unsigned { kInCompletions = 1, kInChat = 2, kAnyGeneration = kInCompletions | kInChat };
const FieldTable<GenerationRequest>& generation_fields();

ApiResult<GenerationRequest> parse_generation_request(const Json& body, ApiKind kind, const SamplingDefaults& defaults);

// "chat_template_kwargs": variables for the template beside those that the server sets.
Json template_variables_schema();
Json read_template_variables(FieldReader& reader, const std::string& key);
template <typename T, typename Get>
FieldKind<T> template_variables(Get get) {
  return {template_variables_schema(),
          [get](FieldReader& in, const std::string& key, T& out) { get(out) = read_template_variables(in, key); }};
}
// "tools" of a chat or /tokenize request.
Json tools_schema();

// "messages" of a chat or /tokenize request.
std::vector<ChatMessage> read_messages(FieldReader& reader, const std::string& key);
// An array of token ids; range is checked against the vocabulary later, where it is known.
std::optional<std::vector<int32_t>> read_token_ids(FieldReader& reader, const std::string& key, const Json& array);
// Ids that clients may choose: 1-128 of A-Z a-z 0-9 . _ : -
bool is_valid_request_id(std::string_view id);

}  // namespace bam
