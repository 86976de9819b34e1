// OpenAI's reply shapes: whole bodies and the `data:` lines of a stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/choice_decoder.h"
#include "server/api/openai_api.h"

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

// A finished choice of a reply that is not streamed.
struct ChoiceReply {
  int32_t index = 0;
  std::string text;
  std::vector<TokenRecord> tokens;  // an echoed prompt's first
  const char* finish_reason = nullptr;
  StopReason stop_reason;
  const std::vector<int32_t>* prompt_ids = nullptr;           // return_token_ids
  const std::vector<TokenRecord>* prompt_logprobs = nullptr;  // vLLM's prompt_logprobs
  size_t num_echoed = 0;                                      // of `tokens`, those that came from the prompt
};

struct ReplyOptions {
  bool logprobs = false;
  int32_t num_top = 0;  // alternatives per token
  bool token_ids = false;
};

Json usage_json(const Usage& usage);
// {tokens, token_logprobs, top_logprobs, text_offset}; null where a token has no logprob.
Json legacy_logprobs(const Tokenizer& tokenizer, const std::vector<TokenRecord>& tokens, int32_t num_top);
// {content: [{token, logprob, bytes, top_logprobs}]}
Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<TokenRecord>& tokens, int32_t num_top);
Json reply_json(const Tokenizer& tokenizer, const ReplyMeta& meta, const ReplyOptions& options,
                const std::vector<ChoiceReply>& choices, const Usage& usage);

// Formats the events of one stream. Every result is one or more whole SSE events ("data: …\n\n").
class ChunkWriter {
 public:
  ChunkWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, ReplyOptions options, bool include_usage);

  // Chat streams open with it.
  std::string role(int32_t index) const;
  // `usage`: with continuous_usage_stats. `prompt_ids`: in a choice's first chunk, with return_token_ids.
  std::string delta(int32_t index, const ChoiceDelta& delta, const Usage* usage,
                    const std::vector<int32_t>* prompt_ids = nullptr) const;
  std::string finish(int32_t index, const char* reason, const StopReason& stop_reason, const Usage* usage) const;
  std::string progress(const ProgressEvent& progress) const;
  std::string usage(const Usage& usage) const;
  static std::string error(const ApiError& error);
  static std::string done() { return "data: [DONE]\n\n"; }
  static std::string ping() { return ": ping\n\n"; }

 private:
  std::string wrap(std::string_view choices, const Usage* usage, std::string_view extra = {}) const;

  const Tokenizer& tokenizer_;
  ApiKind kind_;
  ReplyOptions options_;
  bool include_usage_;
  std::string head_;  // up to `"choices":`
};

}  // namespace bam
