// OpenAI's reply shapes: whole bodies and the `data:` lines of a stream. Both are written as text, step by step: the
// log-probabilities of a long prompt would take many times their size as a tree of JSON values.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

using TokenRecords = std::span<const TokenRecord>;

// A finished choice of a reply that is not streamed. What it refers to outlives the text.
struct ChoiceReply {
  int32_t index = 0;
  std::string_view echo;      // the prompt's text, in front of `text`
  std::string_view text;
  TokenRecords echo_tokens;   // of an echoed prompt, with logprobs
  TokenRecords tokens;
  std::span<const ToolCallDelta> tool_calls;  // whole ones
  const char* finish_reason = nullptr;
  StopReason stop_reason;
  const std::vector<int32_t>* prompt_ids = nullptr;    // return_token_ids
  std::optional<TokenRecords> prompt_logprobs;         // vLLM's prompt_logprobs
};

struct ReplyOptions {
  bool logprobs = false;
  int32_t num_top = 0;  // alternatives per token
  bool token_ids = false;
};

Json usage_json(const Usage& usage);
// Completions: {tokens, token_logprobs, top_logprobs, text_offset}, null where a token has no logprob.
// Chat: {content: [{token, logprob, bytes, top_logprobs}]}
void append_logprobs(std::string& out, const Tokenizer& tokenizer, ApiKind kind, TokenRecords tokens, int32_t num_top);

// The body of a reply that is not streamed.
TextSource reply_text(const Tokenizer& tokenizer, const ReplyMeta& meta, const ReplyOptions& options,
                      const std::vector<ChoiceReply>& choices, const Usage& usage);

// Formats the events of one stream. Every result is one or more whole SSE events ("data: …\n\n").
class ChunkWriter {
 public:
  ChunkWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, ReplyOptions options, bool include_usage);

  // Chat streams open with it.
  std::string role(int32_t index) const;
  // Many tokens become several events. `usage`: with continuous_usage_stats. `prompt_ids`: in a choice's first chunk,
  // with return_token_ids.
  std::string delta(int32_t index, const ChoiceDelta& delta, const Usage* usage,
                    const std::vector<int32_t>* prompt_ids = nullptr) const;
  // The prompt, in as many events as it takes; `tokens` with its logprobs or empty. What it refers to, and the writer,
  // outlive the source.
  TextSource echo(int32_t index, std::string_view text, TokenRecords tokens) const;
  std::string finish(int32_t index, const char* reason, const StopReason& stop_reason, const Usage* usage) const;
  std::string progress(const ProgressEvent& progress) const;
  std::string usage(const Usage& usage) const;
  static std::string error(const ApiError& error);
  static std::string done() { return "data: [DONE]\n\n"; }
  static std::string ping() { return ": ping\n\n"; }

 private:
  void append_tool_call(std::string& out, int32_t index, const ToolCallDelta& call, const Usage* usage) const;
  void append_delta(std::string& out, int32_t index, std::string_view text, TokenRecords tokens, bool with_ids,
                    const Usage* usage, const std::vector<int32_t>* prompt_ids) const;
  void append_tail(std::string& out, const Usage* usage) const;

  const Tokenizer& tokenizer_;
  ApiKind kind_;
  ReplyOptions options_;
  bool include_usage_;
  std::string head_;  // up to `"choices":`
};

}  // namespace bam
