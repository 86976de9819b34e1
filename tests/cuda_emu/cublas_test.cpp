// --cuda-gemm cublas on the emulated device, where a reference product answers for the library.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/cuda_emu/backend_test_support.h"

namespace bam {
namespace {

using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::to_device;

std::unique_ptr<Backend> with_gemm(DType operand, const std::string& gemm) {
  return std::make_unique<cuda::CudaBackend>(
      BackendOptions{.operands = std::string(dtype_name(operand)), .gemm = gemm});
}

struct Products {
  std::vector<float> operands, added, floats;
  uint64_t library_calls;
};

// One layer in its three forms: operands out, added to the residual stream, float32 logits.
Products multiply(Backend& backend, DType operand, DType weight, int64_t rows, int64_t k, int64_t n,
                  float size = 0.1f) {
  const auto w = random_floats(static_cast<size_t>(n * k), 2, size);
  const HostMatrix matrix = cuda_test::host_matrix(w, n, k);
  const auto weights = backend.make_linear({&matrix, 1}, weight);
  const auto x = to_device(backend, rounded(random_floats(static_cast<size_t>(rows * k), 1), operand), operand);
  const auto count = static_cast<size_t>(rows * n);
  const auto residual = to_device(backend, random_floats(count, 3), DType::kF32);
  const auto logits = backend.allocate(count * sizeof(float)), out = backend.allocate(count * backend.operand_bytes());
  const uint64_t before = cuda_emu::statistics().gemms;
  const OperandRows in = backend.operand_rows(*x, rows, k);
  backend.linear(*weights, in, backend.operand_rows(*out, rows, n));
  backend.linear_add(*weights, in, backend.float_rows(*residual, rows, n));
  backend.linear_logits(*weights, in, backend.float_rows(*logits, rows, n));
  Products result{cuda_test::operands(backend, *out, count), cuda_test::floats(backend, *residual, count),
                  cuda_test::floats(backend, *logits, count), 0};
  result.library_calls = cuda_emu::statistics().gemms - before;
  return result;
}

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

struct Case {
  DType operand, weight;
  int64_t rows, k, n;
};

TEST(CublasGemm, GivesTheProductsOfOwnKernels) {
  for (const Case& c : {Case{DType::kF16, DType::kF16, 5, 72, 40},
                        {DType::kBF16, DType::kBF16, 33, 64, 35},
                        {DType::kF32, DType::kF32, 3, 37, 33},
                        {DType::kF16, DType::kI8, 7, 100, 36},
                        {DType::kF32, DType::kI8, 1, 50, 40}}) {
    SCOPED_TRACE(::testing::Message() << dtype_name(c.operand) << " " << dtype_name(c.weight));
    const auto own = with_gemm(c.operand, "own"), library = with_gemm(c.operand, "cublas");
    EXPECT_EQ(own->description().find("cuBLAS"), std::string::npos);
    EXPECT_NE(library->description().find("cuBLAS"), std::string::npos);
    const Products a = multiply(*own, c.operand, c.weight, c.rows, c.k, c.n);
    const Products b = multiply(*library, c.operand, c.weight, c.rows, c.k, c.n);
    EXPECT_EQ(a.library_calls, 0u);
    EXPECT_EQ(b.library_calls, 3u);
    if (c.weight == DType::kI8) {  // integers are exact in any order
      EXPECT_EQ(a.operands, b.operands);
      EXPECT_EQ(a.added, b.added);
      EXPECT_EQ(a.floats, b.floats);
    } else {
      EXPECT_LT(cuda_test::worst(b.floats, widened(a.floats)), 1e-4);
      EXPECT_LT(cuda_test::worst(b.added, widened(a.added)), 1e-4);
      EXPECT_LT(cuda_test::worst(b.operands, widened(a.operands)), 1e-4 + 8 * cuda_test::unit(c.operand));
    }
  }
}

// Weights in another format than the operands are not the library's business, nor are int8 rows that it cannot align.
TEST(CublasGemm, LeavesTheRestToOwnKernels) {
  const auto library = with_gemm(DType::kF32, "cublas");
  EXPECT_EQ(multiply(*library, DType::kF32, DType::kI8, 2, 50, 7).library_calls, 0u);
  EXPECT_EQ(multiply(*library, DType::kF32, DType::kBF16, 2, 50, 7).library_calls, 0u);
}

TEST(CublasGemm, ResultsBeyondFloat16Saturate) {
  const auto own = with_gemm(DType::kF16, "own"), library = with_gemm(DType::kF16, "cublas");
  const Products a = multiply(*own, DType::kF16, DType::kF16, 4, 64, 16, 20000);
  const Products b = multiply(*library, DType::kF16, DType::kF16, 4, 64, 16, 20000);
  const auto largest = [](const Products& p) { return *std::max_element(p.operands.begin(), p.operands.end()); };
  EXPECT_EQ(largest(a), 65504.0f);
  EXPECT_EQ(largest(b), 65504.0f);
}

TEST(CublasGemm, AMissingLibraryIsTold) {
  cuda_emu::Config config = cuda_emu::config();
  config.cublas = false;
  const cuda_emu::ScopedConfig scope(config);
  EXPECT_NO_THROW(with_gemm(DType::kF16, "own"));
  try {
    with_gemm(DType::kF16, "cublas");
    FAIL() << "there is no library";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("libcublas"), std::string::npos) << error.what();
  }
}

// The manual wants the device of cublasCreate() to be current in cublasDestroy(); the emulation insists on it.
TEST(CublasGemm, TheLibraryEndsOnItsOwnDevice) {
  cuda_emu::Config config = cuda_emu::config();
  config.device_count = 2;
  const cuda_emu::ScopedConfig scope(config);
  auto there = std::make_unique<cuda::CudaBackend>(BackendOptions{.device = 1, .operands = "f16", .gemm = "cublas"});
  cuda_emu_test::check(cudaSetDevice(0));
  there.reset();
  int device = -1;
  cuda_emu_test::check(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

TEST(CublasGemm, ALostDeviceIsToldFromABadCall) {
  const struct Repaired {
    ~Repaired() {
      cuda_emu::repair_devices();
      static_cast<void>(cudaGetLastError());
    }
  } repaired;
  const auto library = with_gemm(DType::kF16, "cublas");
  const auto w = random_floats(16 * 64, 2);
  const HostMatrix matrix = cuda_test::host_matrix(w, 16, 64);
  const auto weights = library->make_linear({&matrix, 1}, DType::kF16);
  const auto x = library->allocate(2 * 64 * sizeof(uint16_t)), out = library->allocate(2 * 16 * sizeof(float));
  cuda_emu::break_device(0, cudaErrorIllegalAddress);
  EXPECT_THROW(library->linear_logits(*weights, library->operand_rows(*x, 2, 64), library->float_rows(*out, 2, 16)),
               DeviceLost);
}

// The whole model, with steps recorded as graphs.
TEST(CublasGemm, AModelGivesTheTokensOfTheCpu) {
  const reference::TestCheckpoint checkpoint(reference::all_variants().front().spec);
  reference::HarnessOptions options;
  options.max_tokens = 64;
  reference::ModelHarness cpu(checkpoint, options);
  options.kv_dtype = DType::kF32;
  options.backend = with_gemm(DType::kF32, "cublas");
  reference::ModelHarness device(checkpoint, options);
  const auto prompt = reference::random_tokens(20, checkpoint.config().vocab_size);
  const auto expected = cpu.logits(prompt, 20), got = device.logits(prompt, 7);
  double size = 1;
  for (const float value : expected) size = std::max(size, std::fabs(static_cast<double>(value)));
  EXPECT_LT(cuda_test::worst(got, widened(expected)), 2e-3 * size) << "f16 keys and values on the CPU";
}

// Also products of the library are part of a step's graph: nothing is captured anew while decoding.
TEST(CublasGemm, DecodingIsOneGraphThatIsThere) {
  const reference::TestCheckpoint checkpoint(reference::all_variants().front().spec);
  for (const DType weights : {DType::kF16, DType::kI8}) {
    reference::HarnessOptions options;
    options.kv_dtype = DType::kF16;
    options.weight_dtype = weights;
    options.max_tokens = 64;
    options.backend = with_gemm(DType::kF16, "cublas");
    reference::ModelHarness device(checkpoint, options);
    const auto tokens = reference::random_tokens(40, checkpoint.config().vocab_size);
    device.step({{0, {tokens.begin(), tokens.begin() + 20}, 0}}, {});
    const auto decode = [&](int64_t position) {
      device.step({{0, {tokens[static_cast<size_t>(position)]}, position}}, {0});
    };
    decode(20);
    decode(21);
    for (int64_t position = 22; position < 40; ++position) {
      const cuda_emu::Statistics before = cuda_emu::statistics();
      decode(position);
      const cuda_emu::Statistics after = cuda_emu::statistics();
      ASSERT_EQ(after.graph_launches - before.graph_launches, 1u) << "position " << position;
      ASSERT_EQ(after.captures, before.captures) << "position " << position;
      ASSERT_EQ(after.graph_instantiations, before.graph_instantiations);
      ASSERT_EQ(after.copies - before.copies, 1u);
    }
  }
}

}  // namespace
}  // namespace bam
