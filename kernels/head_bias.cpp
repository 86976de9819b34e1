#include "kernels/head_bias.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace bam {

HeadBias power_bias(PriorForm form, const PriorParams& prior, double eps, bool scaled, double seq_scale) {
  HeadBias bias;
  bias.kind = HeadBias::Kind::kPower;
  bias.scaled = scaled;
  bias.form = form;
  bias.exp_alpha = std::exp(prior.alpha);
  bias.beta = prior.beta;
  bias.mu = prior_mu(prior.theta_mu);
  bias.eps = eps;
  bias.decays = bias.never_grows = (scaled ? seq_scale : 1.0) * prior.beta > 0;
  // With mu < 0 the peak (or, with beta < 0, the trough) lies between two distances behind the query.
  const double turn = std::clamp(-bias.mu, 0.0, static_cast<double>(kMaxPositions));
  bias.rising = static_cast<int64_t>(std::floor(turn));
  bias.settled = static_cast<int64_t>(std::ceil(turn));
  const auto [low, high] = std::minmax({bias.value(bias.rising), bias.value(bias.settled)});
  bias.smallest = low;
  bias.largest = high;
  return bias;
}

HeadBias linear_bias(double slope) {
  HeadBias bias;
  bias.kind = HeadBias::Kind::kLinear;
  bias.slope = slope;
  bias.decays = bias.never_grows = true;
  return bias;
}

HeadBias bucket_bias(std::span<const float> buckets, int64_t max_distance) {
  BAM_CHECK(buckets.size() >= 2 && buckets.size() <= kMaxBiasBuckets);
  BAM_CHECK(max_distance > static_cast<int64_t>(buckets.size()) / 2);
  HeadBias bias;
  bias.kind = HeadBias::Kind::kBuckets;
  bias.num_buckets = static_cast<int>(buckets.size());
  bias.max_distance = max_distance;
  std::ranges::copy(buckets, bias.bucket);
  // Constant in the last bucket, anything at all before it.
  bias.never_grows = true;
  int64_t low = 0, high = max_distance;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (relative_bucket(bias.num_buckets, max_distance, middle) == bias.num_buckets - 1) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  bias.settled = low;
  // A wide last step may jump over buckets; those count for nothing, but reading them here does no harm.
  bias.smallest = *std::ranges::min_element(buckets);
  bias.largest = *std::ranges::max_element(buckets);
  return bias;
}

}  // namespace bam
