#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "models/tokenizer.h"
#include "server/api/stop_strings.h"
#include "server/api/tool_call_reader.h"

namespace bam {

// A generated (or echoed) token with its place in the reply's text.
struct TokenRecord {
  int32_t id = 0;
  std::optional<TokenLogprobs> logprobs;
  int64_t text_offset = 0;  // in characters, from the start of the choice's text
  std::string text = {};    // what it added to the text; only with DecodeOptions::token_texts
};

// What one choice gained since the last look.
struct ChoiceDelta {
  std::string text;
  std::vector<TokenRecord> tokens;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return text.empty() && tokens.empty() && tool_calls.empty(); }
  void append(ChoiceDelta&& later);
};

struct DecodeOptions {
  bool at_text_start = false;  // chat: the reply is a text of its own
  std::vector<std::string> stop;
  bool include_stop_str = false;
  bool skip_special = true;       // special tokens have no text
  bool space_specials = false;    // those that have are kept apart by a blank
  bool token_texts = false;       // records know their part of the text, so that the parts add up to it
  std::vector<int32_t> stop_ids;  // EOS ids (unless ignored) and the request's stop_token_ids
  std::vector<int32_t> eos_ids;   // those of stop_ids that are EOS: no stop_reason
  bool tool_calls = false;        // the text may have calls of tools
  bool only_tool_calls = false;   // and has nothing else
};

// null: EOS or length; a stop string; a stop token id.
using StopReason = std::variant<std::monostate, std::string, int32_t>;

// Turns the token events of one choice into text that a client may see: whole UTF-8, nothing of a possible stop string,
// no stop token. A token's record comes out together with the last byte of its text.
class ChoiceDecoder {
 public:
  ChoiceDecoder(const Tokenizer& tokenizer, const DecodeOptions& options, int64_t first_offset);

  void push(int32_t token, std::optional<TokenLogprobs> logprobs);
  void push(TokenEvent&& event);
  // The engine finished this choice.
  void finish(FinishReason reason);
  // No token will come any more: what was held back for the next one is text now.
  void end_text();
  ChoiceDelta take();

  // A stop string was found: the engine may stop.
  bool stopped() const { return stopped_; }
  bool finished() const { return finished_; }
  int64_t num_tokens() const { return num_tokens_; }
  // Guesses of the engine, up to the end of the text: right and wrong.
  int64_t accepted_drafts() const { return accepted_drafts_; }
  int64_t rejected_drafts() const { return rejected_drafts_; }
  const char* finish_reason() const;
  const StopReason& stop_reason() const { return stop_reason_; }

 private:
  void emit(std::string_view text);
  void release_records();
  void cut_records(int64_t end);

  const Tokenizer& tokenizer_;
  const DecodeOptions& options_;
  StreamDetokenizer detokenizer_;
  StopMatcher matcher_;
  std::optional<ToolCallReader> tool_calls_;
  struct Pending {
    TokenRecord record;
    int64_t end;  // characters of text after this token, held-back ones included
  };
  std::deque<Pending> pending_;
  ChoiceDelta delta_;
  int64_t decoded_ = 0;   // characters decoded, from the start of the choice's text
  int64_t released_ = 0;  // characters handed out
  int64_t num_tokens_ = 0, accepted_drafts_ = 0, rejected_drafts_ = 0;
  bool stopped_ = false;
  bool text_ended_ = false;
  bool finished_ = false;
  const char* finish_reason_ = nullptr;
  StopReason stop_reason_;
};

// The finish reason of what was cancelled.
inline constexpr const char* kAborted = "abort";

// Characters (code points) of valid UTF-8.
int64_t count_characters(std::string_view text);
// A token as logprobs spell it: its text, "bytes:\xe2\x96" when it is no whole text, a control token's name.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

}  // namespace bam
