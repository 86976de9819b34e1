// What one head adds to a logit for being d = i - j positions away, built once per head. Kernels read it through
// tables, bounds, the proof of reach and the attention probe directly: none of them knows which encoding it came from.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "kernels/position.h"
#include "kernels/prior.h"

namespace bam {

// Buckets of a relative bias, at most.
inline constexpr int kMaxBiasBuckets = 256;

// Bucket of distance d: one per distance for the first half of them, then logarithmically wider ones; the last begins
// at or before max_distance and has no end. A distance that is a bucket's exact lower edge belongs to it on every
// machine, whichever way its logarithm rounds.
BAM_HOST_DEVICE inline int relative_bucket(int num_buckets, long long max_distance, long long distance) {
  const int exact = num_buckets / 2;
  if (distance < exact) return static_cast<int>(distance);
  const double octave = ::log(static_cast<double>(distance) / exact) / ::log(static_cast<double>(max_distance) / exact);
  const double bucket = exact + ::floor(octave * (num_buckets - exact) + 1e-9);
  return bucket < num_buckets - 1 ? static_cast<int>(bucket) : num_buckets - 1;
}

// value(d) is monotone on [0, rising] and from `settled` on; in between it stays within [smallest, largest].
struct HeadBias {
  enum class Kind : uint8_t { kNone, kPower, kLinear, kBuckets };

  Kind kind = Kind::kNone;
  bool scaled = false;       // SSMax multiplies it by c_i, too
  bool never_grows = false;  // what is added never grows with the distance from `settled` on
  bool decays = false;       // and falls below any bound
  int64_t rising = 0, settled = 0;
  double largest = 0, smallest = 0;

  // The formula's own numbers.
  PriorForm form = PriorForm::kScaleOutside;
  int num_buckets = 0;
  double slope = 0;                                 // kLinear
  double exp_alpha = 0, beta = 0, mu = 0, eps = 0;  // kPower
  int64_t max_distance = 0;                         // kBuckets
  float bucket[kMaxBiasBuckets] = {};

  bool any() const { return kind != Kind::kNone; }
  BAM_HOST_DEVICE double value(int64_t distance) const {
    const double d = static_cast<double>(distance);
    switch (kind) {
      case Kind::kNone: return 0;
      case Kind::kPower: return prior_bias<double>(form, exp_alpha, beta, mu, eps, d);
      case Kind::kLinear: return -slope * d;
      case Kind::kBuckets: return bucket[relative_bucket(num_buckets, max_distance, distance)];
    }
    return 0;
  }
  // Heads with equal biases share a table.
  auto operator<=>(const HeadBias&) const = default;
};

// BAM's prior. `scaled`: SSMax multiplies it by seq_scale * ln(n); seq_scale may be negative.
HeadBias power_bias(PriorForm form, const PriorParams& prior, double eps, bool scaled, double seq_scale);
// ALiBi: never scaled.
HeadBias linear_bias(double slope);
// The relative bias of T5 for one direction: buckets[b] is added in bucket b, never scaled. 2 to kMaxBiasBuckets
// buckets, max_distance > buckets / 2.
HeadBias bucket_bias(std::span<const float> buckets, int64_t max_distance);

}  // namespace bam
