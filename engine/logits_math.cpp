#include "engine/logits_math.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/draw.h"

#if defined(__x86_64__)
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

template <typename Lanes>
BAM_INLINE double sum_lanes(const Lanes& v) {
  double total = 0;
  for (size_t j = 0; j < kLanes; ++j) total += static_cast<double>(v[j]);
  return total;
}

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

// exp for -100 <= x <= 0: 2^n * p(r), |r| <= ln2/2, relative error below 2e-7; 0 below -87.
BAM_INLINE void exp_lanes(const F16& x, F16& y) {
  const F16 t = x * 1.44269504088896341f;
  const F16 magic = F16{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const F16 n = (t + magic) - magic;
  F16 r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  F16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const I16 exponent = (__builtin_convertvector(n, I16) + 127) << 23;
  F16 power;
  std::memcpy(&power, &exponent, sizeof(power));
  y = x > -87.0f ? p * power : F16{};
}

// Calls f(exponentials, index, count) for every 16 values of [begin, end).
template <typename F>
BAM_INLINE void for_exponentials(const float* row, size_t begin, size_t end, float max, float scale, F&& f) {
  for_lanes(row, begin, end, [&](const F16& logits, size_t i, size_t count) BAM_LAMBDA {
    F16 x = (logits - max) * scale, y;
    x = x > -100.0f ? x : F16{} - 100.0f;  // -infinity would turn into NaN
    exp_lanes(x, y);
    f(y, i, count);
  });
}

BAM_INLINE void exp_impl(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    F16 sum = {};
    for_exponentials(row, begin, std::min(size, begin + kLogitBlock), max, scale,
                     [&](const F16& y, size_t i, size_t count) BAM_LAMBDA {
                       store_lanes(probs + i, y, count);
                       sum += y;
                     });
    *sums++ = sum_lanes(sum);
  }
}

BAM_INLINE void weight_impl(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    D16 sum = {};
    for_exponentials(row, begin, std::min(size, begin + kLogitBlock), max, scale,
                     [&](const F16& y, size_t i, size_t count) BAM_LAMBDA {
                       const F16 weight = y < kWeightGrid ? (y + kWeightGrid) - kWeightGrid : y;
                       store_lanes(probs + i, weight, count);
                       sum += __builtin_convertvector(weight, D16);
                     });
    *sums++ = sum_lanes(sum);
  }
}

BAM_INLINE void mask_impl(float* probs, size_t size, float threshold, double* sums) {
  for (size_t begin = 0; begin < size; begin += kLogitBlock) {
    D16 sum = {};
    for_lanes(probs, begin, std::min(size, begin + kLogitBlock), [&](const F16& p, size_t i, size_t count) BAM_LAMBDA {
      const F16 kept = p >= threshold ? p : F16{};
      store_lanes(probs + i, kept, count);
      sum += __builtin_convertvector(kept, D16);
    });
    *sums++ = sum_lanes(sum);
  }
}

BAM_INLINE int64_t count_impl(const float* row, size_t size, float value) {
  I16 count = {};
  for_lanes(row, 0, size, [&](const F16& x, size_t, size_t) BAM_LAMBDA { count -= x > value; });
  int64_t total = 0;
  for (size_t j = 0; j < kLanes; ++j) total += count[j];
  return total;
}

#if defined(__x86_64__)
#define BAM_FOR_TARGET(name, isa)                                                                                      \
  __attribute__((target(isa))) bool maxima_##name(const float* row, size_t size, float* maxima) {                      \
    return maxima_impl(row, size, maxima);                                                                             \
  }                                                                                                                    \
  __attribute__((target(isa))) void exp_##name(const float* row, size_t size, float max, float scale, float* probs,    \
                                               double* sums) {                                                         \
    exp_impl(row, size, max, scale, probs, sums);                                                                      \
  }                                                                                                                    \
  __attribute__((target(isa))) void weight_##name(const float* row, size_t size, float max, float scale, float* probs, \
                                                  double* sums) {                                                      \
    weight_impl(row, size, max, scale, probs, sums);                                                                   \
  }                                                                                                                    \
  __attribute__((target(isa))) void mask_##name(float* probs, size_t size, float threshold, double* sums) {            \
    mask_impl(probs, size, threshold, sums);                                                                           \
  }                                                                                                                    \
  __attribute__((target(isa))) int64_t count_##name(const float* row, size_t size, float value) {                      \
    return count_impl(row, size, value);                                                                               \
  }
BAM_FOR_TARGET(avx512, "avx512f")
BAM_FOR_TARGET(avx2, "avx2")
BAM_FOR_TARGET(base, "sse2")
#undef BAM_FOR_TARGET
#else
bool maxima_base(const float* row, size_t size, float* maxima) { return maxima_impl(row, size, maxima); }
void exp_base(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  exp_impl(row, size, max, scale, probs, sums);
}
void weight_base(const float* row, size_t size, float max, float scale, float* probs, double* sums) {
  weight_impl(row, size, max, scale, probs, sums);
}
void mask_base(float* probs, size_t size, float threshold, double* sums) { mask_impl(probs, size, threshold, sums); }
int64_t count_base(const float* row, size_t size, float value) { return count_impl(row, size, value); }
#endif

struct Passes {
  decltype(&maxima_base) maxima = maxima_base;
  decltype(&exp_base) exp = exp_base;
  decltype(&weight_base) weight = weight_base;
  decltype(&mask_base) mask = mask_base;
  decltype(&count_base) count = count_base;

  Passes() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
      maxima = maxima_avx512, exp = exp_avx512, weight = weight_avx512, mask = mask_avx512, count = count_avx512;
    } else if (__builtin_cpu_supports("avx2")) {
      maxima = maxima_avx2, exp = exp_avx2, weight = weight_avx2, mask = mask_avx2, count = count_avx2;
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

int64_t count_greater(std::span<const float> row, float value) { return passes().count(row.data(), row.size(), value); }

}  // namespace bam
