// fp8 pages: the numbers themselves, one by one, and what is stored for a key.
#include <fp8_bits.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "kernels/cuda/stored.h"
#include "tests/cuda_emu/attention_test_support.h"

namespace bam {
namespace {

using cuda_test::Case;

// By definition: sign, 4 bits of exponent with bias 7, 3 bits of mantissa, subnormals, one NaN per sign.
double number(int code) {
  if ((code & 0x7f) == 0x7f) return std::nan("");
  const int exponent = code >> 3 & 15;
  const double magnitude =
      exponent == 0 ? (code & 7) / 8.0 * std::pow(2, -6) : (1 + (code & 7) / 8.0) * std::pow(2, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest number, of two equally near ones the one with an even code; beyond the last one, the last one.
int nearest(double value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  int best = sign;
  for (int code = sign; code < sign + 0x7f; ++code) {
    const double off = std::fabs(number(code) - value), least = std::fabs(number(best) - value);
    if (off < least || (off == least && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Fp8, EveryCodeIsReadAlikeByArithmeticAndInstruction) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const auto other = static_cast<uint8_t>(255 - code);
    const float2 pair = cuda::fp8x2_to_float2(static_cast<uint16_t>(byte | other << 8));
    const uint32_t halves = cuda::cvt_f16x2_e4m3x2(static_cast<uint16_t>(byte | other << 8));
    const auto same = [](double expected, float value) {
      return std::isnan(expected) ? std::isnan(value)
                                  : expected == value && std::signbit(expected) == std::signbit(value);
    };
    EXPECT_TRUE(same(number(code), cuda::fp8_arithmetic::decode(byte))) << code;
    EXPECT_TRUE(same(number(code), cuda::fp8_to_float(byte))) << code;
    EXPECT_TRUE(same(number(code), pair.x)) << code;
    EXPECT_TRUE(same(number(255 - code), pair.y)) << code;
    EXPECT_TRUE(same(number(code), f16_to_f32(static_cast<uint16_t>(halves)))) << code;
    EXPECT_TRUE(same(number(255 - code), f16_to_f32(static_cast<uint16_t>(halves >> 16)))) << code;
    EXPECT_TRUE(same(number(code), fp8_to_f32(byte))) << "on the host, " << code;
  }
}

// Four codes of a register at once, as attention widens them: each in every place, beside all the others.
TEST(Fp8, FourCodesAtOnceAreThoseOneByOne) {
  const auto halves = [](uint2 wide) {
    std::array<float, 4> values;
    for (size_t i = 0; i < 4; ++i) {
      const uint32_t pair = i < 2 ? wide.x : wide.y;
      values[i] = f16_to_f32(static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16));
    }
    return values;
  };
  for (int code = 0; code < 256; ++code) {
    const int codes[4] = {code, 255 - code, code ^ 0x80, (code * 7 + 3) & 255};
    uint32_t packed = 0;
    for (size_t i = 0; i < 4; ++i) packed |= static_cast<uint32_t>(codes[i]) << 8 * i;
    const auto integers = halves(cuda::widen4<false>(packed)), numbers = halves(cuda::widen4<true>(packed));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(integers[i], static_cast<float>(static_cast<int8_t>(codes[i]))) << codes[i];
      if (std::isnan(number(codes[i]))) {
        EXPECT_TRUE(std::isnan(numbers[i])) << codes[i];
      } else {
        EXPECT_EQ(numbers[i], number(codes[i])) << codes[i];
        EXPECT_EQ(std::signbit(numbers[i]), std::signbit(number(codes[i]))) << codes[i];
      }
    }
  }
}

// All float16 inputs and their neighbours in float32, which lie beside every tie.
TEST(Fp8, EveryHalfIsRoundedAlikeByArithmeticAndInstruction) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_EQ(cuda::float_to_fp8(value), 0x7f);
      ASSERT_EQ(f32_to_fp8(value), 0x7f);
      ASSERT_EQ(cuda::cvt_e4m3x2(value, 1.0f), 0x387f);
      continue;
    }
    for (const float x : {value, std::nextafter(value, -1e9f), std::nextafter(value, 1e9f)}) {
      const int expected = std::isinf(x) ? (x < 0 ? 0xfe : 0x7e) : nearest(x);
      ASSERT_EQ(cuda::fp8_arithmetic::encode(x), expected) << x;
      ASSERT_EQ(cuda::float_to_fp8(x), expected) << x;
      ASSERT_EQ(cuda::cvt_e4m3x2(x, -x), expected | (expected ^ 0x80) << 8) << x;
      ASSERT_EQ(f32_to_fp8(x), expected) << "on the host, " << x;
    }
  }
}

// One tile of one head: what is in the page for given keys and values.
struct Stored {
  KvLayout layout = make_kv_layout(DType::kFp8, kDim, kTileKeys);
  std::vector<std::byte> page;

  static constexpr int kDim = 34;

  Stored(const std::vector<float>& keys, const std::vector<float>& values) : page(layout.page_bytes()) {
    const Case test{.name = "",
                    .operand = DType::kF32,
                    .kv = DType::kFp8,
                    .head_dim = kDim,
                    .heads = 1,
                    .kv_heads = 1,
                    .tokens = kTileKeys};
    const auto backend = cuda_test::make_cuda(DType::kF32);
    const auto layer = backend->make_attention(cuda_test::make_spec(test));
    std::vector<float> qkv;
    for (int i = 0; i < kTileKeys; ++i) {
      qkv.insert(qkv.end(), kDim, 0.0f);
      for (const std::vector<float>* from : {&keys, &values}) {
        qkv.insert(qkv.end(), from->begin() + i * kDim, from->begin() + (i + 1) * kDim);
      }
    }
    cuda_test::Cache cache(*backend, test);
    const SequenceRows rows = cache.rows(0, kTileKeys);
    const auto operands = cuda_test::to_device(*backend, qkv, DType::kF32);
    backend->write_kv(*layer, cache.view, {&rows, 1},
                      backend->operand_rows(*operands, kTileKeys, layer->spec.qkv_width()));
    backend->read_page(cache.view, cache.table[0], page);
  }

  template <typename T>
  T at(size_t offset, int64_t index) const {
    T value;
    std::memcpy(&value, page.data() + offset + static_cast<size_t>(index) * sizeof(T), sizeof value);
    return value;
  }
  float scale(size_t offset, int slot) const { return f16_to_f32(at<uint16_t>(offset, slot)); }
  uint8_t key_code(int slot, int d) const {
    return at<uint8_t>(layout.k_offset, (int64_t{slot / kPanelKeys} * kDim + d) * kPanelKeys + slot % kPanelKeys);
  }
  uint8_t value_code(int slot, int d) const {
    return at<uint8_t>(layout.v_offset, int64_t{slot} * layout.padded_dim + d);
  }
  double key(int slot, int d) const { return scale(layout.k_scale_offset, slot) * number(key_code(slot, d)); }
};

TEST(Fp8, PagesHoldTheCodesOfScaledKeysAndStatisticsOfWhatIsStored) {
  constexpr int kDim = Stored::kDim;
  auto keys = cuda_test::random_floats(kTileKeys * kDim, 1), values = cuda_test::random_floats(kTileKeys * kDim, 2);
  for (int i = 0; i < kTileKeys * kDim; ++i) keys[static_cast<size_t>(i)] *= std::ldexp(1.0f, i / kDim % 32 - 20);
  const Stored stored(keys, values);
  const KvLayout& layout = stored.layout;
  const auto expect_vector = [&](const float* x, float scale, const auto& code, const char* what) {
    float largest = 0;
    for (int d = 0; d < kDim; ++d) largest = std::max(largest, std::fabs(x[d]));
    EXPECT_GE(scale * 448.0f, largest) << what << ": nothing is clipped";
    EXPECT_LE(scale, largest / 448.0f * (1 + 0x1p-9f) + 0x1p-24f) << what << ": and no bits are given away";
    for (int d = 0; d < kDim; ++d) ASSERT_EQ(code(d), nearest(x[d] * (1.0f / scale))) << what << " dim " << d;
  };
  double radius = 0, norm = 0;
  const size_t box = layout.stats_offset + sizeof(KeyStats);
  for (int slot = 0; slot < kTileKeys; ++slot) {
    expect_vector(
        keys.data() + slot * kDim, stored.scale(layout.k_scale_offset, slot),
        [&](int d) { return stored.key_code(slot, d); }, "key");
    expect_vector(
        values.data() + slot * kDim, stored.scale(layout.v_scale_offset, slot),
        [&](int d) { return stored.value_code(slot, d); }, "value");
    double distance2 = 0, norm2 = 0;
    for (int d = 0; d < kDim; ++d) {
      const double low = f16_to_f32(stored.at<uint16_t>(box, d));
      const double high = f16_to_f32(stored.at<uint16_t>(box, layout.padded_dim + d));
      EXPECT_LE(low, stored.key(slot, d));
      EXPECT_GE(high, stored.key(slot, d));
      distance2 += std::pow(stored.key(slot, d) - (low + high) / 2, 2);
      norm2 += std::pow(stored.key(slot, d), 2);
    }
    radius = std::max(radius, std::sqrt(distance2));
    norm = std::max(norm, std::sqrt(norm2));
    for (int d = kDim; d < layout.padded_dim; ++d) EXPECT_EQ(stored.value_code(slot, d), 0) << "padding";
  }
  const auto stats = stored.at<KeyStats>(layout.stats_offset, 0);
  EXPECT_EQ(stats.valid, 1u);
  EXPECT_GE(stats.radius, radius);
  EXPECT_NEAR(stats.radius, radius, 1e-4 * radius);
  EXPECT_GE(stats.max_norm, norm);
  EXPECT_NEAR(stats.max_norm, norm, 1e-4 * norm);
}

// Zeros, numbers below the smallest scale, numbers beyond float16, infinities and NaN.
TEST(Fp8, ExtremeKeysSaturateAndNanStaysNan) {
  constexpr int kDim = Stored::kDim;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> keys(kTileKeys * kDim, 0.0f);
  const auto set = [&](int slot, int d, float value) { keys[static_cast<size_t>(slot * kDim + d)] = value; };
  set(1, 0, 0x1p-60f);
  set(2, 0, 1e30f), set(2, 1, -3e4f);
  set(3, 0, -infinity), set(3, 1, 2.0f);
  set(4, 0, std::nanf("")), set(4, 1, 2.0f);
  const Stored stored(keys, keys);
  for (int d = 0; d < kDim; ++d) EXPECT_EQ(stored.key(0, d), 0);
  EXPECT_EQ(stored.key(1, 0), 0);
  EXPECT_EQ(stored.key(2, 0), 146.125 * 448) << "finite as a float16";
  EXPECT_NEAR(stored.key(2, 1), -3e4, 3e4 / 16);
  EXPECT_EQ(stored.key(3, 0), -146.125 * 448);
  EXPECT_NEAR(stored.key(3, 1), 2, 0.2);
  EXPECT_TRUE(std::isnan(stored.key(4, 0)));
  EXPECT_NEAR(stored.key(4, 1), 2, 0.01);
  const auto stats = stored.at<KeyStats>(stored.layout.stats_offset, 0);
  EXPECT_TRUE(std::isnan(stats.max_norm) && std::isnan(stats.max_norm_prefix)) << "no bound over a NaN key is one";
}

}  // namespace
}  // namespace bam
