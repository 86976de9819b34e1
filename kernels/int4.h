// Weights of four bits. A row of W has one float32 scale; sixteen neighbours along k share a factor, one of sixteen; a
// weight is the scale times a small integer that its code and that factor give:
//
//     w[i] = scale * int4_value(codes[i], factors[i / 16])
//
// 4.25 bits per weight. The integers fit int8, so a product with int8 activations is one exact sum over all of k: the
// same bits on every processor, in any company, and as fast as int8 where arithmetic is the limit. Levels are denser
// around zero, as weights are, and not symmetric: a negative factor turns them round, so that the longer side is where
// the group's largest weight is.
// How it lies in a checkpoint: docs/performance.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bam {

inline constexpr int64_t kInt4Group = 16;
inline constexpr std::array<int8_t, 16> kInt4Levels = {-127, -93, -72, -57, -43, -30, -19, -8,
                                                       2,    13,  23,  34,  46,  60,  78,  99};
// In steps of 2^(1/4); odd, and no level is 64, so no product lies half-way between two integers.
inline constexpr std::array<int8_t, 16> kInt4Factors = {127,  107,  91,  77,  65,  53,  45,  37,
                                                        -127, -107, -91, -77, -65, -53, -45, -37};

constexpr int int4_value(int code, int factor) {
  return (kInt4Levels[static_cast<size_t>(code)] * kInt4Factors[static_cast<size_t>(factor)] + 64) >> 7;
}

constexpr int64_t int4_groups(int64_t k) { return (k + kInt4Group - 1) / kInt4Group; }
// Bytes of a row as it lies in a checkpoint: two numbers of four bits share a byte, the first one low.
constexpr int64_t int4_code_bytes(int64_t k) { return (k + 1) / 2; }
constexpr int64_t int4_factor_bytes(int64_t k) { return (int4_groups(k) + 1) / 2; }

// One row, a byte per number.
struct Int4Row {
  explicit Int4Row(int64_t k) : codes(static_cast<size_t>(k)), factors(static_cast<size_t>(int4_groups(k))) {}
  int64_t size() const { return static_cast<int64_t>(codes.size()); }
  // Rounds [size()] numbers so that the sum of squared errors is small: factors and codes by trying, the scale by least
  // squares. Every instruction set gives the same row.
  void quantize(const float* values);
  void unpack(const std::byte* packed_codes, const std::byte* packed_factors, float row_scale) {
    const auto nibble = [](const std::byte* from, size_t i) {
      return static_cast<uint8_t>(std::to_integer<unsigned>(from[i / 2]) >> 4 * (i % 2) & 15u);
    };
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = nibble(packed_codes, i);
    for (size_t g = 0; g < factors.size(); ++g) factors[g] = nibble(packed_factors, g);
    scale = row_scale;
  }
  void to_f32(float* values) const {
    for (size_t i = 0; i < codes.size(); ++i) {
      values[i] = scale * static_cast<float>(int4_value(codes[i], factors[i / kInt4Group]));
    }
  }

  std::vector<uint8_t> codes, factors;
  float scale = 0;
};

}  // namespace bam
