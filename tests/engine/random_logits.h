#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace bam::testing {

// One row of normally distributed logits, fixed by the seed.
inline std::vector<float> random_logits(int vocab, uint32_t seed, float spread) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(rng);
  return logits;
}

}  // namespace bam::testing
