// Matrix products and elementwise operations of the CUDA backend on the emulated device, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <sstream>

#include "tests/cuda_emu/backend_test_support.h"
#include "tests/reference/oracle.h"

namespace bam {
namespace {

using cuda_test::make_cuda;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::to_device;

struct LinearCase {
  DType operand = DType::kF16, weight = DType::kF16;
  int64_t rows = 1, k = 64, n = 32;
  friend std::ostream& operator<<(std::ostream& stream, const LinearCase& test) {
    return stream << dtype_name(test.operand) << "_" << dtype_name(test.weight) << "_" << test.rows << "x" << test.k
                  << "x" << test.n;
  }
};

// What the device stores of a weight matrix [n, k].
std::vector<float> stored_weights(const LinearCase& test, const std::vector<float>& w) {
  if (test.weight == DType::kI8) return w;
  return rounded(w, test.operand == DType::kF32 ? test.weight : test.operand);
}

class LinearOp : public ::testing::TestWithParam<LinearCase> {};

TEST_P(LinearOp, AgreesWithDoubleArithmetic) {
  const LinearCase& test = GetParam();
  const auto backend = make_cuda(test.operand);
  const auto x = rounded(random_floats(static_cast<size_t>(test.rows * test.k), 1), test.operand);
  const auto w = random_floats(static_cast<size_t>(test.n * test.k), 2, 0.1f);
  const auto before = random_floats(static_cast<size_t>(test.rows * test.n), 3);
  // Two parts, as q | k | v are stacked.
  const int64_t split = test.n / 3;
  const HostMatrix all = cuda_test::host_matrix(w, test.n, test.k);
  const HostMatrix parts[] = {{all.data, all.dtype, split, test.k},
                              {all.data + split * test.k * 4, all.dtype, test.n - split, test.k}};
  const auto weights = backend->make_linear(parts, test.weight);
  EXPECT_EQ(weights->out_features(), test.n);
  const auto operands = to_device(*backend, x, test.operand);
  const auto residual = to_device(*backend, before, DType::kF32);
  const auto logits = backend->allocate(before.size() * sizeof(float));
  const auto out = backend->allocate(before.size() * backend->operand_bytes());
  const OperandRows in = backend->operand_rows(*operands, test.rows, test.k);
  backend->linear(*weights, in, backend->operand_rows(*out, test.rows, test.n));
  backend->linear_add(*weights, in, backend->float_rows(*residual, test.rows, test.n));
  backend->linear_logits(*weights, in, backend->float_rows(*logits, test.rows, test.n));

  const auto stored = stored_weights(test, w);
  std::vector<double> exact(before.size()), added(before.size());
  double bound = 0;  // of |x| |w|: what float32 sums can lose is a few units of it
  for (int64_t r = 0; r < test.rows; ++r) {
    for (int64_t c = 0; c < test.n; ++c) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < test.k; ++i) {
        const double product =
            static_cast<double>(x[static_cast<size_t>(r * test.k + i)]) * stored[static_cast<size_t>(c * test.k + i)];
        sum += product;
        size += std::fabs(product);
      }
      exact[static_cast<size_t>(r * test.n + c)] = sum;
      added[static_cast<size_t>(r * test.n + c)] = sum + before[static_cast<size_t>(r * test.n + c)];
      bound = std::max(bound, size);
    }
  }
  // int8 rounds x and w to 1/127 of their largest values.
  const double tolerance = test.weight == DType::kI8 ? bound * 0.03 : bound * 1e-5;
  EXPECT_LT(cuda_test::worst(cuda_test::floats(*backend, *logits, exact.size()), exact), tolerance);
  EXPECT_LT(cuda_test::worst(cuda_test::floats(*backend, *residual, exact.size()), added), tolerance);
  double largest = 0;
  for (const double value : exact) largest = std::max(largest, std::fabs(value));
  EXPECT_LT(cuda_test::worst(cuda_test::operands(*backend, *out, exact.size()), exact),
            tolerance + 2 * largest * cuda_test::unit(test.operand));
}

// A row alone, among few and among many: the kernels for decode, medium and large tiles.
TEST_P(LinearOp, ARowHasTheSameBitsInEveryBatch) {
  LinearCase test = GetParam();
  const auto backend = make_cuda(test.operand);
  constexpr int64_t kMost = 70;
  const auto x = rounded(random_floats(static_cast<size_t>(kMost * test.k), 4), test.operand);
  const auto w = random_floats(static_cast<size_t>(test.n * test.k), 5, 0.1f);
  const HostMatrix matrix = cuda_test::host_matrix(w, test.n, test.k);
  const auto weights = backend->make_linear({&matrix, 1}, test.weight);
  const auto compute = [&](int64_t first, int64_t rows) {
    const std::vector<float> part(x.begin() + first * test.k, x.begin() + (first + rows) * test.k);
    const auto operands = to_device(*backend, part, test.operand);
    const auto out = backend->allocate(static_cast<size_t>(rows * test.n) * sizeof(float));
    backend->linear_logits(*weights, backend->operand_rows(*operands, rows, test.k),
                           backend->float_rows(*out, rows, test.n));
    return cuda_test::floats(*backend, *out, static_cast<size_t>(rows * test.n));
  };
  const auto whole = compute(0, kMost);
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {69, 1}, {3, 20}, {30, 40}}) {
    const auto part = compute(first, rows);
    ASSERT_EQ(std::memcmp(part.data(), whole.data() + first * test.n, part.size() * sizeof(float)), 0)
        << "rows " << first << " to " << first + rows;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearOp,
    ::testing::Values(LinearCase{DType::kF16, DType::kF16, 1, 64, 40},
                      LinearCase{DType::kF16, DType::kF16, 33, 72, 129},
                      LinearCase{DType::kF16, DType::kBF16, 17, 200, 24},
                      LinearCase{DType::kBF16, DType::kBF16, 65, 96, 66},
                      LinearCase{DType::kF16, DType::kI8, 5, 100, 35}, LinearCase{DType::kBF16, DType::kI8, 65, 64, 64},
                      LinearCase{DType::kF32, DType::kF32, 3, 37, 33}, LinearCase{DType::kF32, DType::kF16, 34, 64, 31},
                      LinearCase{DType::kF32, DType::kBF16, 2, 50, 7}, LinearCase{DType::kF32, DType::kI8, 33, 50, 40},
                      LinearCase{DType::kF16, DType::kF16, 4, 50, 12}),  // k not a multiple of 8: the plain kernel
    [](const auto& info) { return (std::ostringstream() << info.param).str(); });

// int8 activations have no code for NaN: the row's scale must carry it, wherever in the row it stands.
TEST(LinearOp, NanInAQuantisedRowIsNotLost) {
  const auto backend = make_cuda();
  const int64_t k = 96, n = 16, rows = 3;
  const auto weights = random_floats(static_cast<size_t>(n * k), 1);
  const HostMatrix matrix = cuda_test::host_matrix(weights, n, k);
  const auto linear = backend->make_linear({&matrix, 1}, DType::kI8);
  for (const size_t where : {0u, 40u, 95u}) {
    auto x = rounded(random_floats(static_cast<size_t>(rows * k), 2), DType::kF16);
    x[k + where] = std::nanf("");
    const auto input = to_device(*backend, x, DType::kF16);
    const auto out = backend->allocate(static_cast<size_t>(rows * n) * sizeof(float));
    backend->linear_logits(*linear, backend->operand_rows(*input, rows, k), backend->float_rows(*out, rows, n));
    const auto got = cuda_test::floats(*backend, *out, static_cast<size_t>(rows * n));
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / n == 1) << where << " " << i;
  }
}

// Every shape of tile: 16x8 and 16x32 up to 16 rows, 32x32 up to 32, then 64x32, 64x64 and 128x128 by how many there are.
// The first and the last row of every batch are those of a step of one row, in all three kinds of output.
class GemmTiles : public ::testing::TestWithParam<DType> {};

TEST_P(GemmTiles, GiveTheSameBits) {
  const int64_t most = 257, k = 48;
  const auto backend = make_cuda();
  const auto x = rounded(random_floats(static_cast<size_t>(most * k), 6), DType::kF16);
  for (const int64_t n : {2800l, 6l}) {  // columns by four, and not
    const auto w = random_floats(static_cast<size_t>(n * k), 7, 0.1f);
    const auto before = random_floats(static_cast<size_t>(n), 8);
    const HostMatrix matrix = cuda_test::host_matrix(w, n, k);
    const auto weights = backend->make_linear({&matrix, 1}, GetParam());
    struct Result {
      std::vector<float> floats, added, operands;
    };
    const auto compute = [&](int64_t first, int64_t count) {
      const auto size = static_cast<size_t>(count * n);
      const auto in = to_device(*backend, {x.begin() + first * k, x.begin() + (first + count) * k}, DType::kF16);
      std::vector<float> residual;
      for (int64_t r = 0; r < count; ++r) residual.insert(residual.end(), before.begin(), before.end());
      const auto floats = backend->allocate(size * sizeof(float)), added = to_device(*backend, residual, DType::kF32),
                 operands = backend->allocate(size * backend->operand_bytes());
      const auto rows = backend->operand_rows(*in, count, k);
      backend->linear_logits(*weights, rows, backend->float_rows(*floats, count, n));
      if (count > 64) return Result{cuda_test::floats(*backend, *floats, size), {}, {}};  // for the time it takes
      backend->linear_add(*weights, rows, backend->float_rows(*added, count, n));
      backend->linear(*weights, rows, backend->operand_rows(*operands, count, n));
      return Result{cuda_test::floats(*backend, *floats, size), cuda_test::floats(*backend, *added, size),
                    cuda_test::operands(*backend, *operands, size)};
    };
    const Result first = compute(0, 1);
    for (const int64_t rows : n > 6 ? std::vector<int64_t>{16, 32, 64, 200, 257} : std::vector<int64_t>{2, 17, 33}) {
      const Result whole = compute(0, rows), last = compute(rows - 1, 1);
      const auto same = [&](const std::vector<float>& one, const std::vector<float>& all, int64_t row) {
        return all.empty() || std::memcmp(one.data(), all.data() + row * n, one.size() * sizeof(float)) == 0;
      };
      EXPECT_TRUE(same(first.floats, whole.floats, 0) && same(last.floats, whole.floats, rows - 1))
          << rows << " x " << n;
      EXPECT_TRUE(same(first.added, whole.added, 0) && same(last.added, whole.added, rows - 1)) << rows << " x " << n;
      EXPECT_TRUE(same(first.operands, whole.operands, 0) && same(last.operands, whole.operands, rows - 1))
          << rows << " x " << n;
      for (int64_t c = 0; c < n; ++c) {
        ASSERT_EQ(first.added[static_cast<size_t>(c)],
                  before[static_cast<size_t>(c)] + first.floats[static_cast<size_t>(c)]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, GemmTiles, ::testing::Values(DType::kF16, DType::kI8),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

class ElementwiseOp : public ::testing::TestWithParam<DType> {};

TEST_P(ElementwiseOp, RmsNorm) {
  const auto backend = make_cuda(GetParam());
  const int64_t rows = 3, hidden = 200;
  const auto x = random_floats(static_cast<size_t>(rows * hidden), 1, 3),
             w = random_floats(static_cast<size_t>(hidden), 2);
  const auto input = to_device(*backend, x, DType::kF32);
  const auto weight = backend->make_vector(w);
  const auto out = backend->allocate(x.size() * backend->operand_bytes());
  backend->rms_norm(backend->float_rows(*input, rows, hidden), *weight, 1e-5f,
                    backend->operand_rows(*out, rows, hidden));
  std::vector<double> exact;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t d = 0; d < hidden; ++d)
      squares += std::pow(static_cast<double>(x[static_cast<size_t>(r * hidden + d)]), 2);
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
    for (int64_t d = 0; d < hidden; ++d)
      exact.push_back(x[static_cast<size_t>(r * hidden + d)] * inverse * w[static_cast<size_t>(d)]);
  }
  EXPECT_LT(cuda_test::worst(cuda_test::operands(*backend, *out, x.size()), exact),
            10 * cuda_test::unit(GetParam()) + 1e-5);
}

TEST_P(ElementwiseOp, SwiGluDoesNotOverflow) {
  const auto backend = make_cuda(GetParam());
  const int64_t rows = 2, width = 150;
  auto x = rounded(random_floats(static_cast<size_t>(rows * 2 * width), 3, 2), GetParam());
  x[0] = -1000, x[1] = 1000, x[2] = 0;
  const auto input = to_device(*backend, x, GetParam());
  const auto out = backend->allocate(static_cast<size_t>(rows * width) * backend->operand_bytes());
  backend->swiglu(backend->operand_rows(*input, rows, 2 * width), backend->operand_rows(*out, rows, width));
  const auto got = cuda_test::operands(*backend, *out, static_cast<size_t>(rows * width));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < width; ++d) {
      const double gate = rounded(x[static_cast<size_t>(r * 2 * width + d)], GetParam());
      const double up = x[static_cast<size_t>(r * 2 * width + width + d)], exact = gate / (1 + std::exp(-gate)) * up;
      ASSERT_NEAR(got[static_cast<size_t>(r * width + d)], exact,
                  std::fabs(exact) * 2 * cuda_test::unit(GetParam()) + 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operands, ElementwiseOp, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(ElementwiseOp, EmbeddingGatherAndSinusoidalVectors) {
  const auto backend = make_cuda();
  const int64_t vocab = 11, hidden = 130;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto table = rounded(random_floats(static_cast<size_t>(vocab * hidden), 1), dtype);
    std::vector<uint16_t> halves;
    for (const float value : table) halves.push_back(dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value));
    const auto* data = dtype == DType::kF32 ? reinterpret_cast<const std::byte*>(table.data())
                                            : reinterpret_cast<const std::byte*>(halves.data());
    const std::vector<int32_t> tokens = {3, 10, 0, 3}, wanted = {3, 1};
    const auto x = backend->allocate(tokens.size() * hidden * sizeof(float));
    const auto picked = backend->allocate(wanted.size() * hidden * sizeof(float));
    const FloatRows rows = backend->float_rows(*x, static_cast<int64_t>(tokens.size()), hidden);
    backend->embed({data, dtype, vocab, hidden}, tokens, rows);
    const SequenceRows sequences[] = {{nullptr, 0, 0, 3, 1'000'000}, {nullptr, 0, 3, 1, 5}};
    backend->add_sinusoidal(sequences, 10000, rows);
    backend->gather_rows(rows, wanted, backend->float_rows(*picked, static_cast<int64_t>(wanted.size()), hidden));
    const auto got = cuda_test::floats(*backend, *picked, wanted.size() * hidden);
    const int64_t positions[] = {5, 1'000'001};
    for (size_t r = 0; r < wanted.size(); ++r) {
      const auto vector = reference::sinusoidal_vector(hidden, positions[r], 10000);
      for (int64_t d = 0; d < hidden; ++d) {
        const double exact = vector[static_cast<size_t>(d)] +
                             table[static_cast<size_t>(tokens[static_cast<size_t>(wanted[r])] * hidden + d)];
        ASSERT_NEAR(got[r * static_cast<size_t>(hidden) + static_cast<size_t>(d)], exact, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace bam
