#include "engine/logits_math.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/draw.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BAM_INLINE inline __attribute__((always_inline))
#define BAM_LAMBDA __attribute__((always_inline))
#else
#define BAM_INLINE inline
#define BAM_LAMBDA
#endif

namespace bam {

namespace {

// 16 lanes on every machine; the compiler splits them as the instruction set needs.
typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));
typedef double D16 __attribute__((vector_size(128)));
constexpr size_t kLanes = 16;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

BAM_INLINE void load(const float* p, F16& v) { std::memcpy(&v, p, sizeof(v)); }
BAM_INLINE void store(float* p, const F16& v) { std::memcpy(p, &v, sizeof(v)); }

// Calls f(values, index, count) for every 16 values of [begin, end); missing lanes of the last call are -infinity.
template <typename F>
BAM_INLINE void for_lanes(const float* row, size_t begin, size_t end, F&& f) {
  size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    F16 x;
    load(row + i, x);
    f(x, i, kLanes);
  }
  if (i < end) {
    F16 x = F16{} + kLowest;
    for (size_t j = 0; i + j < end; ++j) x[j] = row[i + j];
    f(x, i, end - i);
  }
}

BAM_INLINE void store_lanes(float* p, const F16& v, size_t count) {
  if (count == kLanes) return store(p, v);
  for (size_t j = 0; j < count; ++j) p[j] = v[j];
}

BAM_INLINE double sum_lanes(const F16& v) {
  double total = 0;
  for (size_t j = 0; j < kLanes; ++j) total += static_cast<double>(v[j]);
  return total;
}

// Sums of weights, exact in any order. Two halves, because a vector of 16 doubles would live in memory.
struct WeightSum {
  D8 low = {}, high = {};

  BAM_INLINE void add(const F16& v) {
    const D16 d = __builtin_convertvector(v, D16);
    low += __builtin_shufflevector(d, d, 0, 1, 2, 3, 4, 5, 6, 7);
    high += __builtin_shufflevector(d, d, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  BAM_INLINE double total() const {
    const D8 both = low + high;
    double total = 0;
    for (size_t j = 0; j < kLanes / 2; ++j) total += both[j];
    return total;
  }
};

BAM_INLINE bool maxima_impl(const float* row, size_t size, float* maxima) {
  I16 bad = {};
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    F16 best = F16{} + kLowest;
    for_lanes(row, begin, std::min(size, begin + kLogitBlock), [&](const F16& x, size_t, size_t) BAM_LAMBDA {
      best = x > best ? x : best;
      bad |= ~(x <= FLT_MAX);
    });
    float m = kLowest;
    for (size_t j = 0; j < kLanes; ++j) m = std::max(m, best[j]);
    *maxima++ = m;
  }
  int32_t any = 0;
  for (size_t j = 0; j < kLanes; ++j) any |= bad[j];
  return any == 0;
}

// exp for x <= 0, the operations of draw_weight(): 2^n * 2^f, 0 below -87 and for -infinity. N vectors step by step side
// by side: one alone is a chain of dependent operations that leaves the multipliers idle.
template <size_t N>
BAM_INLINE void exp_lanes(const F16 (&x)[N], F16 (&y)[N]) {
  F16 rounded[N], f[N], power[N];
  const auto each = [](auto&& step) BAM_LAMBDA {
#pragma GCC unroll 8
    for (size_t i = 0; i < N; ++i) step(i);
  };
  each([&](size_t i) BAM_LAMBDA { f[i] = x[i] * 1.44269504f; });
  each([&](size_t i) BAM_LAMBDA { rounded[i] = f[i] + 12582912.0f; });
  each([&](size_t i) BAM_LAMBDA { f[i] = f[i] - (rounded[i] - 12582912.0f); });
  each([&](size_t i) BAM_LAMBDA { power[i] = f[i] * 0x1.5bba08p-10f + 0x1.3cea8ap-7f; });
  each([&](size_t i) BAM_LAMBDA { power[i] = power[i] * f[i] + 0x1.c6b754p-5f; });
  each([&](size_t i) BAM_LAMBDA { power[i] = power[i] * f[i] + 0x1.ebf9bcp-3f; });
  each([&](size_t i) BAM_LAMBDA { power[i] = power[i] * f[i] + 0x1.62e42ap-1f; });
  each([&](size_t i) BAM_LAMBDA { power[i] = power[i] * f[i] + 1.0f; });
  each([&](size_t i) BAM_LAMBDA {
    const U16 bits = std::bit_cast<U16>(power[i]) + (std::bit_cast<U16>(rounded[i]) << 23);
    y[i] = x[i] > -87.0f ? std::bit_cast<F16>(bits) : F16{};
  });
}

// Calls f(exponentials, index, count) for every 16 values of [begin, end).
template <size_t N, typename F>
BAM_INLINE void for_exponentials(const float* row, size_t begin, size_t end, float max, float scale, F&& f) {
  const auto scaled = [&](const F16& logits) BAM_LAMBDA { return (logits - max) * scale; };
  for (; begin + N * kLanes <= end; begin += N * kLanes) {
    F16 x[N], y[N];
#pragma GCC unroll 8
    for (size_t i = 0; i < N; ++i) {
      load(row + begin + i * kLanes, x[i]);
      x[i] = scaled(x[i]);
    }
    exp_lanes(x, y);
#pragma GCC unroll 8
    for (size_t i = 0; i < N; ++i) f(y[i], begin + i * kLanes, kLanes);
  }
  for_lanes(row, begin, end, [&](const F16& logits, size_t i, size_t count) BAM_LAMBDA {
    F16 x[1] = {scaled(logits)}, y[1];
    exp_lanes(x, y);
    f(y[0], i, count);
  });
}

template <size_t N>
BAM_INLINE void exp_impl(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    F16 sum = {};
    for_exponentials<N>(row, begin, std::min(size, begin + kLogitBlock), max, scale,
                        [&](const F16& y, size_t i, size_t count) BAM_LAMBDA {
                          store_lanes(probs + i, y, count);
                          sum += y;
                        });
    *sums++ = sum_lanes(sum);
  }
}

template <size_t N>
BAM_INLINE void weight_impl(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    WeightSum sum;
    for_exponentials<N>(row, begin, std::min(size, begin + kLogitBlock), max, scale,
                        [&](const F16& y, size_t i, size_t count) BAM_LAMBDA {
                          const F16 weight = y < kWeightGrid ? (y + kWeightGrid) - kWeightGrid : y;
                          store_lanes(probs + i, weight, count);
                          sum.add(weight);
                        });
    *sums++ = sum.total();
  }
}

BAM_INLINE void mask_impl(float* probs, size_t size, float threshold, double* sums) {
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    WeightSum sum;
    for_lanes(probs, begin, std::min(size, begin + kLogitBlock), [&](const F16& p, size_t i, size_t count) BAM_LAMBDA {
      const F16 kept = p >= threshold ? p : F16{};
      store_lanes(probs + i, kept, count);
      sum.add(kept);
    });
    *sums++ = sum.total();
  }
}

BAM_INLINE WeightsAbove above_impl(const float* probs, size_t size, float threshold) {
  I16 count = {};
  WeightSum sum;
  for_lanes(probs, 0, size, [&](const F16& p, size_t, size_t) BAM_LAMBDA {
    sum.add(p >= threshold ? p : F16{});
    count -= p >= threshold;
  });
  WeightsAbove above{0, sum.total()};
  for (size_t j = 0; j < kLanes; ++j) above.count += count[j];
  return above;
}

BAM_INLINE size_t gather_impl(const float* values, size_t begin, size_t end, float low, float high, TokenValue* out) {
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) {
    // Written always, kept sometimes: a branch here would be mispredicted all the time.
    out[count] = {values[i], static_cast<int32_t>(i)};
    count += static_cast<size_t>(values[i] >= low) & static_cast<size_t>(values[i] < high);
  }
  return count;
}

BAM_INLINE int64_t count_impl(const float* row, size_t size, float value) {
  I16 count = {};
  for_lanes(row, 0, size, [&](const F16& x, size_t, size_t) BAM_LAMBDA { count -= x > value; });
  int64_t total = 0;
  for (size_t j = 0; j < kLanes; ++j) total += count[j];
  return total;
}

#if defined(__x86_64__)
// As gather_impl(), 16 values at a time.
__attribute__((target("avx512f"))) size_t gather_avx512(const float* values, size_t begin, size_t end, float low,
                                                        float high, TokenValue* out) {
  const __m512 lows = _mm512_set1_ps(low), highs = _mm512_set1_ps(high);
  size_t count = 0, i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const __m512 x = _mm512_loadu_ps(values + i);
    const __mmask16 kept = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(x, lows, _CMP_GE_OQ), x, highs, _CMP_LT_OQ);
    for (uint32_t left = kept; left != 0; left &= left - 1) {
      const size_t id = i + static_cast<size_t>(std::countr_zero(left));
      out[count++] = {values[id], static_cast<int32_t>(id)};
    }
  }
  return count + gather_impl(values, i, end, low, high, out + count);
}

#define BAM_FOR_TARGET(name, isa, n)                                                                                   \
  __attribute__((target(isa))) bool maxima_##name(const float* row, size_t size, float* maxima) {                      \
    return maxima_impl(row, size, maxima);                                                                             \
  }                                                                                                                    \
  __attribute__((target(isa))) void exp_##name(const float* row, size_t size, float max, float scale, float* probs,    \
                                               double* sums) {                                                         \
    exp_impl<n>(row, size, max, scale, probs, sums);                                                                   \
  }                                                                                                                    \
  __attribute__((target(isa))) void weight_##name(const float* row, size_t size, float max, float scale, float* probs, \
                                                  double* sums) {                                                      \
    weight_impl<n>(row, size, max, scale, probs, sums);                                                                \
  }                                                                                                                    \
  __attribute__((target(isa))) void mask_##name(float* probs, size_t size, float threshold, double* sums) {            \
    mask_impl(probs, size, threshold, sums);                                                                           \
  }                                                                                                                    \
  __attribute__((target(isa))) WeightsAbove above_##name(const float* probs, size_t size, float threshold) {           \
    return above_impl(probs, size, threshold);                                                                         \
  }                                                                                                                    \
  __attribute__((target(isa))) int64_t count_##name(const float* row, size_t size, float value) {                      \
    return count_impl(row, size, value);                                                                               \
  }
BAM_FOR_TARGET(avx512, "avx512f", 4)
BAM_FOR_TARGET(avx2, "avx2", 2)
BAM_FOR_TARGET(base, "sse2", 1)
#undef BAM_FOR_TARGET
#else
WeightsAbove above_base(const float* probs, size_t size, float threshold) { return above_impl(probs, size, threshold); }
bool maxima_base(const float* row, size_t size, float* maxima) { return maxima_impl(row, size, maxima); }
void exp_base(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  exp_impl<1>(row, size, max, scale, probs, sums);
}
void weight_base(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  weight_impl<1>(row, size, max, scale, probs, sums);
}
void mask_base(float* probs, size_t size, float threshold, double* sums) { mask_impl(probs, size, threshold, sums); }
int64_t count_base(const float* row, size_t size, float value) { return count_impl(row, size, value); }
#endif

size_t gather_base(const float* values, size_t begin, size_t end, float low, float high, TokenValue* out) {
  return gather_impl(values, begin, end, low, high, out);
}

struct Passes {
  decltype(&maxima_base) maxima = maxima_base;
  decltype(&exp_base) exp = exp_base;
  decltype(&weight_base) weight = weight_base;
  decltype(&mask_base) mask = mask_base;
  decltype(&above_base) above = above_base;
  decltype(&count_base) count = count_base;
  decltype(&gather_base) gather = gather_base;

  Passes() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
      maxima = maxima_avx512, exp = exp_avx512, weight = weight_avx512, mask = mask_avx512, count = count_avx512;
      above = above_avx512, gather = gather_avx512;
    } else if (__builtin_cpu_supports("avx2")) {
      maxima = maxima_avx2, exp = exp_avx2, weight = weight_avx2, mask = mask_avx2, count = count_avx2;
      above = above_avx2;
    }
#endif
  }
};

const Passes& passes() {
  static const Passes table;
  return table;
}

}  // namespace

bool block_maxima(std::span<const float> row, std::span<float> maxima) {
  return passes().maxima(row.data(), row.size(), maxima.data());
}

void exp_blocks(std::span<const float> row, float max, float scale, std::span<float> probs, std::span<double> sums) {
  passes().exp(row.data(), row.size(), max, scale, probs.data(), sums.data());
}

void weight_blocks(std::span<const float> row, float max, float scale, std::span<float> probs, std::span<double> sums) {
  passes().weight(row.data(), row.size(), max, scale, probs.data(), sums.data());
}

void mask_below(std::span<float> probs, float threshold, std::span<double> sums) {
  passes().mask(probs.data(), probs.size(), threshold, sums.data());
}

WeightsAbove weights_above(std::span<const float> probs, float threshold) {
  return passes().above(probs.data(), probs.size(), threshold);
}

size_t gather_between(std::span<const float> values, size_t begin, size_t end, float low, float high, TokenValue* out) {
  return passes().gather(values.data(), begin, std::min(end, values.size()), low, high, out);
}

int64_t count_greater(std::span<const float> row, float value) { return passes().count(row.data(), row.size(), value); }

}  // namespace bam
