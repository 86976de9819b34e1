#include "kernels/cpu/position_tables.h"

#include <algorithm>
#include <cmath>

namespace bam::cpu {

BiasTable::BiasTable(const HeadBias& bias, int64_t max_distance) : bias_(bias), limit_(max_distance) {
  memory_ = LazyMemory(static_cast<size_t>(limit_ + 2 * kTileKeys) * sizeof(float), /*huge_pages=*/false);
  zero_ = memory_.as<float>() + limit_ - 1;
}

void BiasTable::extend(int64_t n) {
  n = std::min(n, limit_);
  for (int64_t d = size_; d < n; ++d) zero_[-d] = static_cast<float>(bias_.value(d));
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
