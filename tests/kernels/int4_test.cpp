// Weights of four bits: the format, the error of rounding to it, and products against plain integer arithmetic.
#include "kernels/int4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "hwy/targets.h"
#include "kernels/backend.h"

namespace bam {
namespace {

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST(Int4, ValuesAreBytesAndNegativeFactorsTurnThemRound) {
  for (int factor = 0; factor < 8; ++factor) {
    for (int code = 0; code < 16; ++code) {
      EXPECT_LE(std::abs(int4_value(code, factor)), 127);
      EXPECT_EQ(int4_value(code, factor + 8), -int4_value(code, factor)) << code << " " << factor;
      if (code == 0) continue;
      EXPECT_GT(int4_value(code, factor), int4_value(code - 1, factor));
    }
  }
}

TEST(Int4, UnpacksLowNibblesFirst) {
  const std::byte codes[] = {std::byte{0x21}, std::byte{0x43}, std::byte{0x05}}, factors[] = {std::byte{0x0f}};
  Int4Row row(5);
  row.unpack(codes, factors, 0.5f);
  EXPECT_EQ(row.codes, (std::vector<uint8_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(row.factors, std::vector<uint8_t>{15});
  std::vector<float> values(5);
  row.to_f32(values.data());
  EXPECT_EQ(values[4], 0.5f * static_cast<float>(int4_value(5, 15)));
}

// The usual format of the same size and a little more: a float16 scale for 32 numbers, chosen by the largest.
std::vector<float> scaled_by_the_largest(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < std::min(begin + 32, x.size()); ++i)
      if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    const float scale = f16_to_f32(f32_to_f16(largest / -8));
    for (size_t i = begin; i < std::min(begin + 32, x.size()); ++i)
      y[i] = scale * std::clamp(std::round(x[i] / scale), -8.0f, 7.0f);
  }
  return y;
}

TEST(Int4, RoundsWithLessErrorThanScalesByTheLargest) {
  double ours = 0, usual = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto x = random_floats(768, seed);
    Int4Row row(768);
    row.quantize(x.data());
    std::vector<float> y(x.size());
    row.to_f32(y.data());
    ours += relative_error(x, y) / 20;
    usual += relative_error(x, scaled_by_the_largest(x)) / 20;
  }
  EXPECT_LT(ours, 0.075);
  EXPECT_LT(ours, 0.85 * usual) << usual;
}

TEST(Int4, RowsAtTheEdges) {
  for (const int64_t k : {1, 2, 15, 16, 17, 33}) {
    Int4Row row(k);
    const std::vector<float> zeros(static_cast<size_t>(k));
    std::vector<float> y(zeros.size(), 1.0f);
    row.quantize(zeros.data());
    row.to_f32(y.data());
    EXPECT_EQ(y, zeros);
    for (const float size : {1e-30f, 1.0f, 1e30f}) {
      auto x = random_floats(zeros.size(), 3);
      for (float& value : x) value *= size;
      row.quantize(x.data());
      row.to_f32(y.data());
      EXPECT_LT(relative_error(x, y), 0.15) << k << " " << size;
    }
  }
}

TEST(Int4, EveryInstructionSetGivesTheSameRow) {
  const auto x = random_floats(500, 9);
  Int4Row first(500), row(500);
  first.quantize(x.data());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    row.quantize(x.data());
    EXPECT_EQ(row.codes, first.codes) << hwy::TargetName(target);
    EXPECT_EQ(row.factors, first.factors);
    EXPECT_EQ(row.scale, first.scale);
  }
  hwy::SetSupportedTargetsForTest(0);
}

// Products of every level, for every height of tile and ragged sizes, are those of plain integers.
TEST(Int4, ProductsAreExactSumsOfIntegers) {
  for (const auto& [k, n] : {std::pair<int64_t, int64_t>{48, 32}, {50, 33}, {769, 100}, {128, 31}, {4, 1}, {64, 130}}) {
    const auto w = random_floats(static_cast<size_t>(k * n), 1);
    const HostMatrix matrix{reinterpret_cast<const std::byte*>(w.data()), DType::kF32, n, k};
    std::vector<Int4Row> rows_of_w(static_cast<size_t>(n), Int4Row(k));
    for (int64_t c = 0; c < n; ++c) rows_of_w[static_cast<size_t>(c)].quantize(w.data() + c * k);
    for (const char* isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
      std::unique_ptr<Backend> backend;
      try {
        backend = make_cpu_backend({.num_threads = 2, .isa = isa});
      } catch (const UsageError&) {
        continue;
      }
      const auto weights = backend->make_linear({&matrix, 1}, DType::kI4);
      for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 29, 200}) {
        const auto x = random_floats(static_cast<size_t>(rows * k), 2);
        std::vector<float> y(static_cast<size_t>(rows * n), 0.25f);
        backend->linear_add(*weights, {x.data(), rows, k}, {y.data(), rows, n});
        for (int64_t r = 0; r < rows; ++r) {
          float largest = 0;
          for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::fabs(x[static_cast<size_t>(r * k + i)]));
          std::vector<int> rounded(static_cast<size_t>(k));
          for (size_t i = 0; i < rounded.size(); ++i)
            rounded[i] = static_cast<int>(std::lrintf(x[static_cast<size_t>(r * k) + i] * (127.0f / largest)));
          for (int64_t c = 0; c < n; ++c) {
            const Int4Row& row = rows_of_w[static_cast<size_t>(c)];
            int sum = 0;
            for (size_t i = 0; i < rounded.size(); ++i)
              sum += rounded[i] * int4_value(row.codes[i], row.factors[i / kInt4Group]);
            const float product = static_cast<float>(sum) * (largest / 127.0f * row.scale);
            ASSERT_EQ(y[static_cast<size_t>(r * n + c)], product + 0.25f)
                << isa << ", k " << k << ", n " << n << ", rows " << rows << " at " << r << "," << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace bam
