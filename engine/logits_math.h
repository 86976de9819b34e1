// Vectorised passes over one row of logits. The lanes and their order are fixed, so every machine computes the same
// bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bam {

inline constexpr size_t kLogitBlock = 256;

inline size_t num_logit_blocks(size_t vocab) { return (vocab + kLogitBlock - 1) / kLogitBlock; }

// maxima[b] = largest value of block b. False if a value is NaN or +infinity.
bool block_maxima(std::span<const float> row, std::span<float> maxima);

// probs[i] = exp((row[i] - max) * scale) and their sums per block; max is the row's maximum, so all are <= 1.
void exp_blocks(std::span<const float> row, float max, float scale, std::span<float> probs, std::span<double> sums);

// probs[i] = draw_weight() of kernels/draw.h: the exponentials rounded to multiples of 2^-34, and their sums per block.
// Vocabularies up to kMaxDrawVocab: every sum of them is exact, in any order.
void weight_blocks(std::span<const float> row, float max, float scale, std::span<float> probs, std::span<double> sums);

// Sets weights below `threshold` to zero and sums up what is left per block, exactly.
void mask_below(std::span<float> probs, float threshold, std::span<double> sums);

struct TokenValue {
  float value;
  int32_t id;
};
// Writes to `out` what lies in [low, high) of values[begin, end), by id; returns how many. `out` has room for
// end - begin + 1 of them.
size_t gather_between(std::span<const float> values, size_t begin, size_t end, float low, float high, TokenValue* out);

// How many weights are at least `threshold` (> 0), and their sum, exactly.
struct WeightsAbove {
  int64_t count = 0;
  double mass = 0;
};
WeightsAbove weights_above(std::span<const float> probs, float threshold);

// How many values are greater than `value`.
int64_t count_greater(std::span<const float> row, float value);

}  // namespace bam
