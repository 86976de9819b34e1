#include "kernels/cpu/position_tables.h"

#include <algorithm>
#include <cmath>

namespace bam::cpu {

BiasTable::BiasTable(const AttentionSpec& spec, int head, int64_t max_distance)
    : encoding_(spec.encoding), form_(spec.prior_form), eps_(spec.prior_eps), limit_(max_distance) {
  if (encoding_ == PositionEncoding::kAlibi) {
    slope_ = alibi_slope(head, spec.num_heads);
  } else {
    const PriorParams& prior = spec.prior[static_cast<size_t>(head)];
    exp_alpha_ = std::exp(prior.alpha);
    beta_ = prior.beta;
    mu_ = prior_mu(prior.theta_mu);
  }
  memory_ = LazyMemory(static_cast<size_t>(limit_ + 2 * kTileKeys) * sizeof(float), /*huge_pages=*/false);
  zero_ = memory_.as<float>() + limit_ - 1;
}

double BiasTable::value(int64_t distance) const {
  const auto d = static_cast<double>(distance);
  if (encoding_ == PositionEncoding::kAlibi) return -slope_ * d;
  return prior_bias<double>(form_, exp_alpha_, beta_, mu_, eps_, d);
}

void BiasTable::extend(int64_t n) {
  n = std::min(n, limit_);
  for (int64_t d = size_; d < n; ++d) zero_[-d] = static_cast<float>(value(d));
  size_ = std::max(size_, n);
}

RopeTable::RopeTable(double theta, int head_dim, RopeStyle style) : half_(head_dim / 2), style_(style) {
  const auto fill = [&](std::vector<std::complex<double>>& table, int64_t count, int64_t stride) {
    table.resize(static_cast<size_t>(count * half_));
    for (int t = 0; t < half_; ++t) {
      const double frequency = std::pow(theta, -2.0 * t / head_dim);
      for (int64_t i = 0; i < count; ++i) {
        table[static_cast<size_t>(i * half_ + t)] = std::polar(1.0, static_cast<double>(i * stride) * frequency);
      }
    }
  };
  fill(fine_, kFine, 1);
  fill(coarse_, kMaxPositions / kFine, kFine);
}

void RopeTable::rotate(int64_t position, float* x) const {
  const auto* fine = fine_.data() + position % kFine * half_;
  const auto* coarse = coarse_.data() + position / kFine * half_;
  for (int t = 0; t < half_; ++t) {
    const double c = coarse[t].real() * fine[t].real() - coarse[t].imag() * fine[t].imag();
    const double s = coarse[t].real() * fine[t].imag() + coarse[t].imag() * fine[t].real();
    const int a = style_ == RopeStyle::kInterleaved ? 2 * t : t;
    const int b = style_ == RopeStyle::kInterleaved ? 2 * t + 1 : t + half_;
    const double xa = x[a], xb = x[b];
    x[a] = static_cast<float>(xa * c - xb * s);
    x[b] = static_cast<float>(xa * s + xb * c);
  }
}

}  // namespace bam::cpu
