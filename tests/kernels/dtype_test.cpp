#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bam {
namespace {

TEST(DType, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      EXPECT_EQ(f32_to_f16(value), half) << bits;
    }
  }
}

TEST(DType, HalfAgreesWithItsDefinition) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_f32(0xc000), -2.0f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(f16_to_f32(0x7c00)));
  EXPECT_TRUE(std::isinf(f16_to_f32(f32_to_f16(65520.0f))));  // halfway to 65536 rounds to even, out of range
  EXPECT_EQ(f16_to_f32(f32_to_f16(65519.0f)), 65504.0f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(1.0f + 0x1p-11f)), 1.0f);                // tie to even
  EXPECT_EQ(f16_to_f32(f32_to_f16(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);  // tie to even, upwards
}

TEST(DType, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::max()))));
}

// By definition: the nearest of all numbers, of two equally near ones the one with an even code.
uint8_t nearest_fp8(double magnitude) {
  uint8_t best = 0;
  for (uint8_t code = 0; code < 0x7f; ++code) {
    const double value = code < 8 ? code * 0x1p-9 : std::ldexp(8 + code % 8, code / 8 - 10);
    const double best_value = best < 8 ? best * 0x1p-9 : std::ldexp(8 + best % 8, best / 8 - 10);
    const double off = std::fabs(value - magnitude), least = std::fabs(best_value - magnitude);
    if (off < least || (off == least && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(DType, Fp8RoundsToTheNearestOfAllNumbers) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {  // every float16 and its neighbours in float32
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    for (const float x : {value, std::nextafter(value, 1e9f), std::nextafter(value, 0.0f)}) {
      const uint8_t expected = nearest_fp8(x);
      ASSERT_EQ(f32_to_fp8(x), expected) << x;
      ASSERT_EQ(f32_to_fp8(-x), expected | 0x80) << x;
    }
  }
  EXPECT_EQ(f32_to_fp8(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(f32_to_fp8(-std::numeric_limits<float>::max()), 0xfe);
  EXPECT_EQ(f32_to_fp8(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

TEST(DType, EveryFp8SurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = fp8_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(f32_to_fp8(value), code);
    }
  }
  EXPECT_EQ(fp8_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(fp8_to_f32(0x38), 1.0f);
  EXPECT_EQ(fp8_to_f32(0xfe), -448.0f);
}

}  // namespace
}  // namespace bam
