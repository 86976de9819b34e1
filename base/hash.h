// The one content hash: XXH3. Fast, equal on every machine and in every build; not against adversaries, so what it
// finds is compared with the content itself wherever that is at hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace bam {

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  bool operator==(const Hash128&) const = default;
};

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t hash_bytes(std::string_view text, uint64_t seed = 0);
// One number after another: hash_number(b, hash_number(a)).
uint64_t hash_number(uint64_t value, uint64_t seed = 0);
Hash128 hash_bytes_128(std::span<const std::byte> bytes);

}  // namespace bam
