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
#include "server/api/reply_writer.h"

namespace bam {

struct ReplyOptions {
  bool logprobs = false;
  int32_t num_top = 0;  // alternatives per token
  bool token_ids = false;
  bool names_are_ids = false;  // logprobs say "token_id:15"
};

Json usage_json(const Usage& usage);
// Completions: {tokens, token_logprobs, top_logprobs, text_offset}, null where a token has no logprob.
// Chat: {content: [{token, logprob, bytes, top_logprobs}]}
void append_logprobs(std::string& out, const Tokenizer& tokenizer, ApiKind kind, TokenRecords tokens,
                     const ReplyOptions& options);

// The body of a reply that is not streamed.
TextSource reply_text(const Tokenizer& tokenizer, const ReplyMeta& meta, const ReplyOptions& options,
                      const std::vector<ChoiceReply>& choices, const Usage& usage);

// Formats the events of one stream. Every result is one or more whole SSE events ("data: …\n\n").
class ChunkWriter {
 public:
  ChunkWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, ReplyOptions options, bool include_usage);

  // `usage`, everywhere: with continuous_usage_stats. `prompt_ids`: in a choice's first chunk, with return_token_ids.
  // What a choice of a chat begins with.
  std::string role(int32_t index, const Usage* usage) const;
  // Many tokens become several events.
  std::string delta(int32_t index, const ChoiceDelta& delta, const Usage* usage,
                    const std::vector<int32_t>* prompt_ids = nullptr) const;
  // The prompt, in as many events as it takes; `tokens` with its logprobs or empty. What it refers to, and the writer,
  // outlive the source.
  TextSource echo(int32_t index, std::string_view text, TokenRecords tokens, std::optional<Usage> usage) const;
  std::string finish(int32_t index, const char* reason, const StopReason& stop_reason, const Usage* usage) const;
  std::string progress(const ProgressEvent& progress, const Usage* usage) const;
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
