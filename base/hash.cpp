#include "base/hash.h"

#include <bit>

#include <xxhash.h>

namespace bam {

// The hash reads numbers as they lie in memory, and snapshots hold them that way.
static_assert(std::endian::native == std::endian::little);

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t hash_bytes(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

uint64_t hash_number(uint64_t value, uint64_t seed) { return XXH3_64bits_withSeed(&value, sizeof(value), seed); }

Hash128 hash_bytes_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace bam
