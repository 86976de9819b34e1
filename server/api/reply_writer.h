// What a reply is made of, and how an API spells it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/request.h"
#include "server/api/api_error.h"
#include "server/api/choice_decoder.h"
#include "server/api/openai_api.h"
#include "server/api/piece_pump.h"

namespace bam {

// The fields that every reply and every chunk of one request repeats.
struct ReplyMeta {
  ApiKind kind = ApiKind::kCompletion;
  std::string id;
  std::string model;
  std::string system_fingerprint;
  int64_t created = 0;  // Unix seconds
  Clock::time_point started = {};
  Clock::time_point first_token = {};  // of a reply in one piece: when it came, if there is one
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t accepted_drafts = 0, rejected_drafts = 0;  // guesses that were computed along: right (and in the text), wrong

  void add(const ChoiceDecoder& choice) {
    completion_tokens += choice.num_tokens();
    accepted_drafts += choice.accepted_drafts();
    rejected_drafts += choice.rejected_drafts();
  }
};

using TokenRecords = std::span<const TokenRecord>;

// A finished choice of a reply that is not streamed. What it refers to outlives the text.
struct ChoiceReply {
  int32_t index = 0;
  std::string_view echo;  // the prompt's text, in front of `text`
  std::string_view text;
  TokenRecords echo_tokens;  // of an echoed prompt, with logprobs
  TokenRecords tokens;
  std::span<const ToolCallDelta> tool_calls;  // whole ones
  const char* finish_reason = nullptr;
  StopReason stop_reason;
  const std::vector<int32_t>* prompt_ids = nullptr;  // return_token_ids
  std::optional<TokenRecords> prompt_logprobs;       // vLLM's prompt_logprobs
  std::span<const float> embedding;                  // of the prompt, if it was asked for
  const AttentionReport* attention = nullptr;        // likewise, of its last row
};

// The events of one generation in the order in which they happen. A stream gets begin, any number of deltas and finish
// for each choice, and end or error at last; every result is a number of whole events, which may be none. A reply in one
// piece gets reply alone. Used by one thread at a time.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  virtual const char* stream_type() const { return "text/event-stream; charset=utf-8"; }
  // With the first token of a choice.
  virtual std::string begin(int32_t index, const Usage& usage) = 0;
  // `prompt_ids`: in a choice's first chunk, with return_token_ids.
  virtual std::string delta(int32_t index, const ChoiceDelta& delta, const Usage& usage,
                            const std::vector<int32_t>* prompt_ids) = 0;
  virtual std::string finish(int32_t index, const char* reason, const StopReason& stop_reason, const Usage& usage) = 0;
  virtual std::string end(const Usage& usage) = 0;
  virtual std::string error(const ApiError& error) = 0;
  // How much of the prompt is read, where the client asked for it.
  virtual std::string progress(const ProgressEvent&, const Usage&) { return {}; }
  // With echo, between begin and the first delta. What it refers to, and the writer, outlive the source.
  virtual TextSource echo(int32_t, std::string_view, TokenRecords, const Usage&) {
    return [](std::string&) { return false; };
  }

  // What the choices refer to, and the writer, outlive the source.
  virtual TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) = 0;
};

// Of an API whose replies are never streamed.
class WholeReplyWriter : public ReplyWriter {
 public:
  std::string begin(int32_t, const Usage&) final { return {}; }
  std::string delta(int32_t, const ChoiceDelta&, const Usage&, const std::vector<int32_t>*) final { return {}; }
  std::string finish(int32_t, const char*, const StopReason&, const Usage&) final { return {}; }
  std::string end(const Usage&) final { return {}; }
  std::string error(const ApiError&) final { return {}; }
};

}  // namespace bam
