#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/model_setup.h"
#include "engine/request.h"
#include "server/api/choice_decoder.h"

namespace bam {

// What one answer took; -1 and NaN where nobody told.
struct GenerationStats {
  int64_t prompt_tokens = -1;
  int64_t cached_tokens = -1;
  int64_t generated_tokens = -1;
  double first_token_ms = 0;  // from the request to the first token
  double decode_ms = 0;       // from the first token to the last
  std::string finish_reason;  // "stop", "length", "interrupted"

  // "prompt 500,000 tokens in 8.30 s (60.2k tok/s) | generated 64 in 213 ms (296 tok/s) | length". A rate stands only
  // where there was something to measure.
  std::string line() const;
};

// Sampling as a user states it; what is not stated is the checkpoint's or the server's default.
struct SamplingWishes {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  int64_t max_tokens = 128;
  bool ignore_eos = false;
};
SamplingParams with_defaults(const SamplingWishes& wishes, const SamplingDefaults& defaults);

// How far a prompt has been read.
struct ReadingProgress {
  int64_t processed = 0, total = 0;
  double elapsed_ms = 0;
  double eta_ms = -1;  // until the first token; -1: unknown

  // "reading 131,072 of 500,000 tokens ━━━━━──── 26 %, 9.00 s, about 25.0 s left"
  std::string line() const;
};

struct GenerationHooks {
  std::function<void(const std::string& text)> on_text;
  std::function<void(const ReadingProgress&)> on_progress;
  std::function<bool()> interrupted;  // asked all the time; true ends the answer
};

// Runs one request on a model in this process. Throws Error when it cannot be served.
GenerationStats generate_locally(const LoadedModel& model, Request request, const DecodeOptions& decode,
                                 const GenerationHooks& hooks);

// `text` as it may be written to a terminal: a model's control characters must not move the cursor or rename the window.
std::string for_terminal(const std::string& text);

}  // namespace bam
