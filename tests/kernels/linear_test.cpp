// Linear layers of every instruction set against double arithmetic, and against themselves with other row counts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/backend.h"

namespace bam {
namespace {

struct Case {
  std::string isa;
  DType dtype;
  std::string math = "exact";
};

std::unique_ptr<Backend> backend_or_null(const std::string& isa, int threads, const std::string& math = "exact") {
  try {
    return make_cpu_backend({.num_threads = threads, .isa = isa, .math = math});
  } catch (const UsageError&) {
    return nullptr;
  }
}

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

class LinearTest : public ::testing::TestWithParam<Case> {};

std::vector<float> apply(Backend& backend, const LinearWeights& weights, const std::vector<float>& x, int64_t rows) {
  std::vector<float> y(static_cast<size_t>(rows * weights.out_features()));
  backend.linear(weights, {x.data(), rows, weights.in_features()}, {y.data(), rows, weights.out_features()});
  return y;
}

TEST_P(LinearTest, AgreesWithDoubleArithmeticForEveryShape) {
  const auto backend = backend_or_null(GetParam().isa, 2, GetParam().math);
  if (backend == nullptr) GTEST_SKIP() << "this CPU has no " << GetParam().isa;
  for (const auto& [k, n] : {std::pair{48, 32}, {50, 33}, {769, 100}, {128, 31}, {4, 1}}) {
    const auto w = random_floats(static_cast<size_t>(k * n), 1);
    for (const int64_t rows : {1, 2, 3, 5, 12, 13, 29, 200}) {
      const auto x = random_floats(static_cast<size_t>(rows * k), 2);
      const HostMatrix matrix{reinterpret_cast<const std::byte*>(w.data()), DType::kF32, n, k};
      const auto weights = backend->make_linear({&matrix, 1}, GetParam().dtype);
      const auto y = apply(*backend, *weights, x, rows);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          double exact = 0, absolute = 0, x_max = 0, w_max = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double xi = x[static_cast<size_t>(r * k + i)], wi = w[static_cast<size_t>(c * k + i)];
            exact += xi * wi;
            absolute += std::fabs(xi * wi);
            x_max = std::max(x_max, std::fabs(xi));
            w_max = std::max(w_max, std::fabs(wi));
          }
          // Rounding of the weights, then of k additions; int8 rounds both sides to 1/254 of their maximum.
          const double eps = 0x1p-24;
          double tolerance = absolute * eps * (static_cast<double>(k) + 2);
          // Fast: both sides are rounded to eight bits.
          if (GetParam().math == "fast") tolerance += absolute * (0x1p-8 + 0x1p-16) + 1e-6;
          if (GetParam().dtype == DType::kBF16) tolerance += absolute * 0x1p-8;
          if (GetParam().dtype == DType::kF16) tolerance += absolute * 0x1p-11 + 1e-6;
          if (GetParam().dtype == DType::kI8) tolerance += static_cast<double>(k) * x_max * w_max / 127.0;
          // int4: half of the widest gap between two levels beside the rounding of x.
          if (GetParam().dtype == DType::kI4) tolerance += static_cast<double>(k) * x_max * w_max * (0.15 + 1 / 254.0);
          ASSERT_NEAR(y[static_cast<size_t>(r * n + c)], exact, tolerance)
              << "k " << k << " n " << n << " rows " << rows << " at " << r << "," << c;
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowHasTheSameBitsInAnyCompany) {
  const auto backend = backend_or_null(GetParam().isa, 2, GetParam().math);
  if (backend == nullptr) GTEST_SKIP() << "this CPU has no " << GetParam().isa;
  const int64_t k = 300, n = 200, total = 64;
  const auto w = random_floats(static_cast<size_t>(k * n), 3), x = random_floats(static_cast<size_t>(total * k), 4);
  const HostMatrix matrix{reinterpret_cast<const std::byte*>(w.data()), DType::kF32, n, k};
  const auto weights = backend->make_linear({&matrix, 1}, GetParam().dtype);
  const auto all = apply(*backend, *weights, x, total);
  const auto single = backend_or_null(GetParam().isa, 1, GetParam().math);
  for (int64_t rows = 1; rows < total; ++rows) {
    const auto part = apply(rows % 2 == 0 ? *single : *backend, *weights, x, rows);
    ASSERT_EQ(std::memcmp(part.data(), all.data(), part.size() * sizeof(float)), 0) << rows << " rows";
    std::vector<float> sum(part.size(), 0.5f), reference(all.begin(), all.begin() + rows * n);
    backend->linear_add(*weights, {x.data(), rows, k}, {sum.data(), rows, n});
    std::vector<float> one(static_cast<size_t>(n), 0.5f);
    backend->linear_add(*weights, {x.data() + (rows - 1) * k, 1, k}, {one.data(), 1, n});
    ASSERT_EQ(std::memcmp(sum.data() + (rows - 1) * n, one.data(), one.size() * sizeof(float)), 0)
        << rows << " rows added";
  }
}

TEST(Linear, InstructionSetsWithFusedMultiplyAddGiveTheSameBits) {
  const int64_t k = 257, n = 70, rows = 17;
  const auto w = random_floats(static_cast<size_t>(k * n), 5), x = random_floats(static_cast<size_t>(rows * k), 6);
  const HostMatrix matrix{reinterpret_cast<const std::byte*>(w.data()), DType::kF32, n, k};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kI4}) {
    std::vector<float> first;
    for (const char* isa : {"avx2", "avx512", "avx512vnni"}) {
      const auto backend = backend_or_null(isa, 1);
      if (backend == nullptr) continue;
      const auto y = apply(*backend, *backend->make_linear({&matrix, 1}, dtype), x, rows);
      if (first.empty()) first = y;
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0) << isa << " " << dtype_name(dtype);
    }
  }
}

// The definition of fast math in kernels/cpu/gemm_bf16.h, number by number.
float pair_chain(const float* x, const float* w, int64_t k, float start) {
  const auto flush = [](float v) { return std::fabs(v) < 0x1p-126f ? 0.0f : v; };
  const auto round = [&](const float* from, int64_t i) {
    return i < k ? bf16_to_f32(f32_to_bf16(flush(from[i]))) : 0.0f;
  };
  float sum = flush(start);
  for (int64_t i = 0; i < k; i += 2) {
    sum = flush(std::fma(round(x, i + 1), round(w, i + 1), sum));
    sum = flush(std::fma(round(x, i), round(w, i), sum));
  }
  return sum;
}

TEST(Linear, FastMathHasTheSameBitsOnEveryLevelAndForEveryShape) {
  for (const auto& [k, n, rows] :
       {std::tuple<int64_t, int64_t, int64_t>{257, 70, 17}, {64, 32, 1}, {5000, 65, 13}, {1, 1, 1}}) {
    auto w = random_floats(static_cast<size_t>(k * n), 5), x = random_floats(static_cast<size_t>(rows * k), 6);
    for (size_t i = 0; i < x.size(); i += 5) x[i] *= 0x1p-70f;  // products that underflow
    for (size_t i = 0; i < w.size(); i += 7) w[i] *= 0x1p-64f;
    x[0] = 0x1p-130f;
    const HostMatrix matrix{reinterpret_cast<const std::byte*>(w.data()), DType::kF32, n, k};
    int levels = 0;
    for (const char* isa : {"portable", "avx2", "avx512", "avx512vnni", "avx512bf16"}) {
      const auto backend = backend_or_null(isa, 2, "fast");
      if (backend == nullptr) continue;
      ++levels;
      const auto weights = backend->make_linear({&matrix, 1}, DType::kBF16);
      std::vector<float> y(static_cast<size_t>(rows * n), 0.25f);
      backend->linear_add(*weights, {x.data(), rows, k}, {y.data(), rows, n});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          ASSERT_EQ(y[static_cast<size_t>(r * n + c)], pair_chain(x.data() + r * k, w.data() + c * k, k, 0.25f))
              << isa << ", k " << k << ", row " << r << ", column " << c;
        }
      }
    }
    EXPECT_GE(levels, 1);
  }
}

TEST(Linear, TheKindOfArithmeticNamesFastMath) {
  const auto exact = make_cpu_backend({.num_threads = 1}), fast = make_cpu_backend({.num_threads = 1, .math = "fast"});
  EXPECT_NE(exact->numerics(), fast->numerics());
  EXPECT_THROW(make_cpu_backend({.num_threads = 1, .math = "quick"}), UsageError);
}

TEST(Linear, StackedPartsAreTheirConcatenation) {
  const auto backend = make_cpu_backend({.num_threads = 1});
  const int64_t k = 64;
  const auto a = random_floats(40 * k, 7), b = random_floats(9 * k, 8), x = random_floats(3 * k, 9);
  const HostMatrix parts[] = {{reinterpret_cast<const std::byte*>(a.data()), DType::kF32, 40, k},
                              {reinterpret_cast<const std::byte*>(b.data()), DType::kF32, 9, k}};
  const auto both = apply(*backend, *backend->make_linear(parts, DType::kF32), x, 3);
  const auto second = apply(*backend, *backend->make_linear({parts + 1, 1}, DType::kF32), x, 3);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 9; ++c) EXPECT_EQ(both[r * 49 + 40 + c], second[r * 9 + c]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearTest, ::testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const char* isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
                             for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kI4})
                               cases.push_back({isa, dtype});
                           }
                           for (const char* isa : {"portable", "avx2", "avx512bf16"}) {
                             for (DType dtype : {DType::kBF16, DType::kF16}) cases.push_back({isa, dtype, "fast"});
                           }
                           return cases;
                         }()),
                         [](const auto& info) {
                           return info.param.isa + "_" + std::string(dtype_name(info.param.dtype)) + "_" +
                                  info.param.math;
                         });

}  // namespace
}  // namespace bam
