// Tables that depend on positions only: B(d) per head, rotation angles. They grow with the longest position seen.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "kernels/backend.h"

namespace bam::cpu {

// B(d) of one head, computed in double and rounded once. Address space for all positions is set aside at the start, so
// the pointer never moves and growing copies nothing.
class BiasTable {
 public:
  BiasTable(const HeadBias& bias, int64_t max_distance);
  // zero()[-d] = B(d) for d < size(); a tile's width of zeros follows for keys that will be masked.
  const float* zero() const { return zero_; }
  int64_t size() const { return size_; }
  // Positions that may be filled up to; distances beyond are never read.
  int64_t limit() const { return limit_; }
  // Fills distances [size(), min(n, limit())).
  void extend(int64_t n);

 private:
  const HeadBias bias_;
  int64_t limit_ = 0, size_ = 0;
  LazyMemory memory_;
  float* zero_ = nullptr;
};

// exp(i * position * theta^(-2t/head_dim)) as the product of a coarse and a fine table, both double: exact to the last
// bit of float32 at any position and small.
class RopeTable {
 public:
  RopeTable(double theta, int head_dim, RopeStyle style);
  // Rotates one head's vector in place.
  void rotate(int64_t position, float* x) const;

 private:
  static constexpr int64_t kFine = 1024;
  int half_;
  RopeStyle style_;
  std::vector<std::complex<double>> fine_, coarse_;  // [kFine][half], [kMaxPositions / kFine][half]
};

}  // namespace bam::cpu
