// What a client asks of the engine and what it gets back. No JSON, no HTTP, no text: tokens in, tokens out.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/clock.h"
#include "engine/token_constraint.h"
#include "models/attention_walk.h"

namespace bam {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: off
  float min_p = 0.0f;        // [0, 1)
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;  // > 0; over prompt and output
  std::optional<uint64_t> seed;     // same seed + same request = same tokens, whatever else runs
  std::vector<std::pair<int32_t, float>> logit_bias;
  int64_t max_tokens = 16;  // 0: only prompt logprobs
  int64_t min_tokens = 0;   // EOS and stop ids are not sampled before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  int32_t num_logprobs = -1;         // -1: none; k: the chosen token's and the k best
  int32_t num_prompt_logprobs = -1;  // likewise for every prompt token but the first
};

// One vector for the whole prompt, made of the rows behind the model's final norm.
enum class Pooling : uint8_t { kNone, kMean, kLast };

// Guesses from the request's own text that a step computes along with the row that is due; see engine/drafter.h. They
// change when tokens come, never which.
struct DraftParams {
  static constexpr int32_t kMaxTokens = 32, kMaxNgram = 8;
  int32_t tokens = 16;  // at most so many in one step; 0: none
  int32_t ngram = 3;    // tokens in a row that must have stood there before, at least 1
};

struct Request {
  std::string id;               // unique among live requests
  std::vector<int32_t> prompt;  // not empty, every id in [0, vocab)
  SamplingParams sampling;
  DraftParams draft;
  int32_t n = 1;                                      // choices sharing the prompt's pages
  int32_t priority = 0;                               // lower is earlier
  std::string cache_salt;                             // prefix cache entries are shared within one salt only
  std::optional<std::chrono::milliseconds> timeout;   // from submit to finish
  std::shared_ptr<const TokenConstraint> constraint;  // prototype, cloned per choice; null: none
  Pooling pooling = Pooling::kNone;                   // else an EmbeddingEvent comes before the first token
  std::optional<AttentionLook> look;                  // with max_tokens 0: an AttentionEvent about the last row
};

struct TokenLogprobs {
  float logprob = 0;                           // of the token itself, after temperature-free log-softmax
  int32_t rank = 0;                            // 1 = most probable
  std::vector<std::pair<int32_t, float>> top;  // best first
};

enum class FinishReason : uint8_t {
  kStop,       // EOS, a stop token id (see FinishEvent::stop_token), the constraint's end, or Engine::stop
  kLength,     // max_tokens or the context is full
  kCancelled,  // cancel(), or the sink is gone
  kTimeout,    // deadline passed
  kError,      // this request alone failed, see message
};

struct TokenEvent {
  int32_t choice = 0;
  int32_t token = 0;
  std::optional<TokenLogprobs> logprobs;
  bool drafted = false;         // it was guessed, and its row computed along with the one before
  int32_t rejected_drafts = 0;  // wrong guesses of its step, with the step's last token
};

// Prompt positions done so far; sent after every step that read a part of the prompt.
struct ProgressEvent {
  int64_t total = 0;      // prompt tokens
  int64_t cached = 0;     // of these, found in the prefix cache
  int64_t processed = 0;  // done, cached included
  double elapsed_ms = 0;  // since the request was first scheduled
  double eta_ms = 0;      // predicted until the first token
};

// For prompt positions [first, first + logprobs.size()); position 0 has none and is not sent.
struct PromptLogprobsEvent {
  int64_t first = 1;
  std::vector<TokenLogprobs> logprobs;
};

struct EmbeddingEvent {
  std::vector<float> values;  // [hidden]
};

struct AttentionEvent {
  AttentionReport report;
};

struct FinishEvent {
  int32_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  int32_t stop_token = -1;  // the EOS or stop id that ended it (it is also the last TokenEvent), else -1
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t accepted_drafts = 0, rejected_drafts = 0;  // guesses that were computed along: right (and generated), wrong
  std::string message;                               // kError, kTimeout: what happened
  bool dead_end = false;  // kError: the request's own constraint, and nothing else, leaves no next token
};

using Event = std::variant<TokenEvent, ProgressEvent, PromptLogprobsEvent, EmbeddingEvent, AttentionEvent, FinishEvent>;

// Receives a request's events, in order, on the engine thread: it must not block, throw or call back into the engine
// except for Engine::cancel, stop, pause and resume. After the FinishEvent of the last choice the engine lets go of it.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // All events of one step for this request. Returns false when nobody is listening any more: the engine then cancels.
  virtual bool on_events(std::vector<Event>&& events) = 0;
};

}  // namespace bam
