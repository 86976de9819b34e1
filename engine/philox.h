// Counter-based random numbers (Philox 4x32, 10 rounds): a pure function of key and counter, so a sampled token depends
// on (seed, choice, index) and never on what else was sampled.
#pragma once

#include <array>
#include <cstdint>

namespace bam {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits.
constexpr double philox_uniform(uint64_t seed, uint32_t choice, uint64_t index) {
  const auto r = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), choice, 0}, seed);
  return static_cast<double>(((uint64_t{r[0]} << 32) | r[1]) >> 11) * 0x1p-53;
}

}  // namespace bam
