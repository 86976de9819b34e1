#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "app/model_setup.h"

namespace bam {

// What attention did while one passkey prompt was read and answered.
struct AttentionMeasurement {
  int64_t prompt_tokens = 0;
  double seconds = 0;              // until the last token of the answer
  double first_token_seconds = 0;  // until its first
  std::string key, answer;         // what was hidden, what the model said
  bool right = false;
  int64_t kv_pages = 0;  // held by the request at its end
  uint64_t kv_bytes = 0;
  std::map<std::string, AttentionCounters> by_class;
};

// Loads the model and runs it, showing progress on a terminal. Throws Error.
AttentionMeasurement measure_attention(ModelSettings settings, int64_t prompt_tokens);

}  // namespace bam
