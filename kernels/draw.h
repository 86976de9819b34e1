// Drawing tokens on the device: one row of logits, one request's settings, one random number -> one token. The rules
// are those of engine/sampler.h, and so are the tokens, bit for bit:
//
// - Penalties, bias and the exponential are the same float32 operations in the same order.
// - Weights are multiples of 2^-34 and at most 1 (draw_weight). A sum of up to 2^18 of them fits into the 53 bits of a
//   double: every sum is exact, whatever its order.
// - What top-k, top-p and min-p keep is a set, defined by the order (weight, then lower id); the draw walks it by id.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/prior.h"

namespace bam {

// Vocabularies up to this size have exact sums.
inline constexpr int64_t kMaxDrawVocab = int64_t{1} << 18;
// From here up, floats are multiples of 2^-34 by themselves; adding it to a smaller one rounds that.
inline constexpr float kWeightGrid = 0x1p-11f;

BAM_HOST_DEVICE inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
BAM_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// The weight of a token: exp((logit - max) * inverse_temperature), to 3e-7 + 8e-8 |exponent|, on the grid of
// 2^-34. The vector form of the same operations is weight_blocks() of engine/logits_math.h.
BAM_HOST_DEVICE inline float draw_weight(float logit, float max, float inverse_temperature) {
  const float x = (logit - max) * inverse_temperature;
  const float t = x * 1.44269504f;
  const float rounded = t + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, found in the lowest bits
  const float f = t - (rounded - 12582912.0f);
  float power = 0x1.5bba08p-10f;  // 2^f, as in kernels/cpu/simd-inl.h
  power = power * f + 0x1.3cea8ap-7f;
  power = power * f + 0x1.c6b754p-5f;
  power = power * f + 0x1.ebf9bcp-3f;
  power = power * f + 0x1.62e42ap-1f;
  power = power * f + 1.0f;
  const float y = x > -87.0f ? float_of_bits(bits_of_float(power) + (bits_of_float(rounded) << 23)) : 0.0f;
  return y < kWeightGrid ? (y + kWeightGrid) - kWeightGrid : y;
}

// Logits of tokens that were seen before.
BAM_HOST_DEVICE inline float penalized_logit(float x, int32_t count, float repetition, float presence,
                                             float frequency) {
  x = x > 0 ? x / repetition : x * repetition;
  if (count > 0) x -= presence + frequency * static_cast<float>(count);
  return x;
}

struct SeenToken {
  int32_t token = 0;
  int32_t count = 0;  // times generated; 0: in the prompt only
};
struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

// Slices of the batch's lists.
struct DrawSlice {
  int32_t begin = 0, count = 0;
};

struct DrawRow {
  int32_t row = 0;  // of the logits
  bool greedy = false;
  float inverse_temperature = 1;
  int32_t top_k = 0;  // 0: off
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  double uniform = 0;  // in [0, 1)
  DrawSlice seen, biases, banned;
};

struct DrawBatch {
  std::vector<DrawRow> rows;
  std::vector<SeenToken> seen;    // tokens of one row are distinct
  std::vector<TokenBias> biases;  // likewise; valid ids only
  std::vector<int32_t> banned;    // not drawn unless nothing else is left; valid ids only

  void clear() {
    rows.clear();
    seen.clear();
    biases.clear();
    banned.clear();
  }
};

// Instead of a token:
inline constexpr int32_t kDrawBadLogits = -1;  // NaN, +infinity, or nothing but -infinity
inline constexpr int32_t kDrawNothing = -2;    // bias left no token

}  // namespace bam
