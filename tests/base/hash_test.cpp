#include "base/hash.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace bam {
namespace {

// XXH3's published values: whatever compiles this, at whatever level, must find files that another build wrote.
TEST(Hash, IsXxh3InEveryBuild) {
  EXPECT_EQ(hash_bytes(std::string_view()), 0x2d06800538d394c2u);
  EXPECT_EQ(hash_bytes_128({}), (Hash128{0x6001c324468d497fu, 0x99aa06d3014798d8u}));
  EXPECT_EQ(hash_bytes("bam"), hash_bytes(std::as_bytes(std::span("bam", 3))));
  const uint64_t number = 0x0706050403020100u;
  const std::vector<std::byte> same = {std::byte{0}, std::byte{1}, std::byte{2}, std::byte{3},
                                       std::byte{4}, std::byte{5}, std::byte{6}, std::byte{7}};
  EXPECT_EQ(hash_number(number, 9), hash_bytes(same, 9));
}

TEST(Hash, SeesEveryBitTheLengthAndTheSeed) {
  std::vector<std::byte> bytes(77);
  std::set<uint64_t> seen = {hash_bytes(bytes, 0), hash_bytes(bytes, 1)};
  for (size_t n = 0; n < 77; ++n) EXPECT_TRUE(seen.insert(hash_bytes(std::span(bytes).first(n), 0)).second) << n;
  for (size_t bit = 0; bit < 77 * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1u << (bit % 8));
    EXPECT_TRUE(seen.insert(hash_bytes(bytes, 0)).second) << bit;
    bytes[bit / 8] ^= std::byte(1u << (bit % 8));
  }
}

}  // namespace
}  // namespace bam
