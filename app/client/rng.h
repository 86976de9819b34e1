#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace bam::client {

inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// SplitMix64 with its own distributions: the standard library's differ between implementations, and one --seed
// must name one workload everywhere.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(mix64(seed)) {}
  // An independent stream for a part of the work, whatever was drawn before.
  static Rng stream(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
    return Rng(mix64(mix64(mix64(seed ^ mix64(a)) ^ b) ^ c));
  }

  uint64_t next() {
    const uint64_t out = mix64(state_);
    state_ += 0x9e3779b97f4a7c15u;
    return out;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  // Both ends included. The modulo bias is below 2^-40 for the ranges used here.
  int64_t uniform_int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  // Marsaglia and Tsang's squeeze; mean = shape * scale.
  double gamma(double shape, double scale) {
    if (shape < 1) {
      const double boost = std::pow(1 - uniform(), 1 / shape);
      return gamma(shape + 1, scale) * boost;
    }
    const double d = shape - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = normal();
      const double v = std::pow(1 + c * x, 3);
      if (v <= 0) continue;
      if (std::log(1 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * scale;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace bam::client
