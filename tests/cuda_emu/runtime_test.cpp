// The emulated runtime: streams that work late, events, graphs, memory, devices that are not there, matrix products.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/dtype.h"
#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu_test_support.h"

namespace {

using bam::cuda::launch;
using cuda_emu::Config;
using cuda_emu::Fault;
using cuda_emu::ScopedConfig;
using cuda_emu_test::check;
using cuda_emu_test::DeviceArray;

__global__ void add(int* value, int n) { *value += n; }
__global__ void multiply(int* value, int n) { *value *= n; }
__global__ void store_sum(int* out, const int* a, const int* b) { *out = *a + *b; }

Config with(const std::function<void(Config&)>& change) {
  Config next;
  change(next);
  return next;
}

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) { check(cudaStreamCreateWithFlags(&stream_, flags)); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }
  operator bam::cuda::Queue() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct PinnedInt {
  PinnedInt() { check(cudaMallocHost(&value, sizeof(int))); }
  ~PinnedInt() { static_cast<void>(cudaFreeHost(value)); }
  int* value = nullptr;
};

TEST(EmulatedStreams, ResultsAreThereOnlyAfterASynchronisingCall) {
  const Stream stream;
  const DeviceArray<int> value(std::vector<int>{1});
  const PinnedInt result;
  *result.value = -7;
  check(launch(add, 1, 1, 0, stream, value.data(), 5));
  check(cudaMemcpyAsync(result.value, value.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(*result.value, -7);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  check(cudaStreamSynchronize(stream));
  EXPECT_EQ(*result.value, 6);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST(EmulatedStreams, SourcesOfAsynchronousCopiesAreReadLate) {
  const Stream stream;
  const DeviceArray<int> a(1), b(1);
  const PinnedInt pinned;
  *pinned.value = 1;
  int pageable = 1;
  check(cudaMemcpyAsync(a.data(), pinned.value, sizeof(int), cudaMemcpyHostToDevice, stream));
  check(cudaMemcpyAsync(b.data(), &pageable, sizeof(int), cudaMemcpyHostToDevice, stream));
  *pinned.value = pageable = 2;  // too early for both: the driver stages a pageable source or does not
  EXPECT_EQ(a.read()[0], 2);
  EXPECT_EQ(b.read()[0], 2);
}

TEST(EmulatedStreams, APageableCopyIsOrderedByTheLegacyStreamOnly) {
  const Stream other;
  const DeviceArray<int> value(std::vector<int>{1}), sum(std::vector<int>{0});
  int source = 10;
  check(cudaMemcpy(value.data(), &source, sizeof(int), cudaMemcpyHostToDevice));
  source = 99;  // it was staged
  check(launch(store_sum, 1, 1, 0, other, sum.data(), value.data(), value.data()));
  check(cudaStreamSynchronize(other));
  check(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(sum.read()[0], 2) << "a non-blocking stream waited for a copy on the legacy stream";
  EXPECT_EQ(value.read()[0], 10);
}

TEST(EmulatedStreams, ACopyWithoutAStreamDoesNotWaitForNonBlockingStreams) {
  const Stream other, blocking(cudaStreamDefault);
  const DeviceArray<int> a(std::vector<int>{1}), b(std::vector<int>{1});
  check(launch(add, 1, 1, 0, other, a.data(), 1));
  check(launch(add, 1, 1, 0, blocking, b.data(), 1));
  int seen_a = 0, seen_b = 0;
  check(cudaMemcpy(&seen_a, a.data(), sizeof(int), cudaMemcpyDeviceToHost));
  check(cudaMemcpy(&seen_b, b.data(), sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen_a, 1);
  EXPECT_EQ(seen_b, 2);
  EXPECT_EQ(a.read()[0], 2);
}

TEST(EmulatedStreams, EventsOrderStreams) {
  for (const auto mode : {cuda_emu::StreamMode::kLazy, cuda_emu::StreamMode::kEager, cuda_emu::StreamMode::kRandom}) {
    const ScopedConfig scope(with([&](Config& c) { c.streams = mode; }));
    const Stream first, second;
    const Event ready;
    const DeviceArray<int> value(std::vector<int>{3});
    check(launch(add, 1, 1, 0, first, value.data(), 4));
    check(cudaEventRecord(ready, first));
    check(cudaStreamWaitEvent(second, ready));
    check(launch(multiply, 1, 1, 0, second, value.data(), 10));
    check(cudaStreamSynchronize(second));
    EXPECT_EQ(cudaEventQuery(ready), cudaSuccess);
    EXPECT_EQ(value.read()[0], 70);
  }
}

TEST(EmulatedStreams, WithoutTheEventTheOrderIsLost) {
  const Stream first, second;
  const DeviceArray<int> value(std::vector<int>{3});
  check(launch(add, 1, 1, 0, first, value.data(), 4));
  check(launch(multiply, 1, 1, 0, second, value.data(), 10));
  check(cudaStreamSynchronize(second));
  check(cudaStreamSynchronize(first));
  EXPECT_EQ(value.read()[0], 34);
}

TEST(EmulatedStreams, FreeingWaitsAndAsynchronousFreeingKeepsItsPlace) {
  const Stream stream;
  int* temporary = nullptr;
  const DeviceArray<int> out(std::vector<int>{0});
  check(cudaMallocAsync(&temporary, sizeof(int), stream));
  check(cudaMemsetAsync(temporary, 0, sizeof(int), stream));
  check(launch(add, 1, 1, 0, stream, temporary, 9));
  check(launch(store_sum, 1, 1, 0, stream, out.data(), temporary, temporary));
  check(cudaFreeAsync(temporary, stream));
  EXPECT_EQ(out.read()[0], 18);
  EXPECT_EQ(cudaFree(temporary), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

// a graph of: copy in, add, copy out
cudaGraph_t capture(cudaStream_t stream, const PinnedInt& in, const DeviceArray<int>& value, const PinnedInt& out,
                    int n, bool twice = false) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  check(cudaMemcpyAsync(value.data(), in.value, sizeof(int), cudaMemcpyHostToDevice, stream));
  check(launch(add, 1, 1, 0, stream, value.data(), n));
  if (twice) check(launch(add, 1, 1, 0, stream, value.data(), n));
  check(cudaMemcpyAsync(out.value, value.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  return graph;
}

TEST(EmulatedGraphs, ReplaysReadTheirInputsAgainAndUpdatesReplaceArguments) {
  const Stream stream;
  const DeviceArray<int> value(1);
  const PinnedInt in, out;
  *in.value = 1;
  *out.value = -1;
  cudaGraph_t graph = capture(stream, in, value, out, 10);
  check(cudaStreamSynchronize(stream));
  EXPECT_EQ(*out.value, -1);  // recorded, not run
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    *in.value = i;
    check(cudaGraphLaunch(exec, stream));
    check(cudaStreamSynchronize(stream));
    EXPECT_EQ(*out.value, i + 10);
  }
  cudaGraphExecUpdateResultInfo info{};
  cudaGraph_t changed = capture(stream, in, value, out, 20);
  check(cudaGraphExecUpdate(exec, changed, &info));
  check(cudaGraphLaunch(exec, stream));
  check(cudaStreamSynchronize(stream));
  EXPECT_EQ(*out.value, 22);
  cudaGraph_t longer = capture(stream, in, value, out, 20, true);
  EXPECT_EQ(cudaGraphExecUpdate(exec, longer, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(cudaGetLastError(), cudaErrorGraphExecUpdateFailure);
  for (cudaGraph_t one : {graph, changed, longer}) check(cudaGraphDestroy(one));
  check(cudaGraphExecDestroy(exec));
}

TEST(EmulatedGraphs, ForkedStreamsJoinTheCaptureAndMustComeBack) {
  const Stream origin, side;
  const Event fork, join;
  const DeviceArray<int> a(std::vector<int>{1}), b(std::vector<int>{2}), sum(1);
  const auto record = [&](bool come_back) {
    check(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
    check(cudaEventRecord(fork, origin));
    check(cudaStreamWaitEvent(side, fork));
    check(launch(add, 1, 1, 0, side, b.data(), 40));
    check(launch(add, 1, 1, 0, origin, a.data(), 300));
    if (come_back) {
      check(cudaEventRecord(join, side));
      check(cudaStreamWaitEvent(origin, join));
    }
    check(launch(store_sum, 1, 1, 0, origin, sum.data(), a.data(), b.data()));
  };
  cudaGraph_t graph = nullptr;
  record(false);
  EXPECT_EQ(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnjoined);
  record(true);
  check(cudaStreamEndCapture(origin, &graph));
  size_t nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  check(cudaGraphLaunch(exec, origin));
  EXPECT_EQ(sum.read()[0], 343);
  check(cudaGraphDestroy(graph));
  check(cudaGraphExecDestroy(exec));
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnjoined);
}

TEST(EmulatedGraphs, WaitingAndAllocatingAreForbiddenWhileCapturing) {
  const Stream stream;
  int* memory = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphDestroy(graph));
  check(cudaMalloc(&memory, 4));
  check(cudaFree(memory));
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedDevices, MachinesWithoutAUsableDevice) {
  int count = -1;
  void* memory = nullptr;
  {
    const ScopedConfig scope(with([](Config& c) { c.device_count = 0; }));
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorNoDevice);
  }
  {
    const ScopedConfig scope(with([](Config& c) { c.driver_too_old = true; }));
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    cublasHandle_t handle = nullptr;
    EXPECT_EQ(cublasCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
  }
  const ScopedConfig scope(with([](Config& c) { c.compute_capability = 89; }));
  check(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 1);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(properties.major * 10 + properties.minor, 89);
  EXPECT_EQ(properties.sharedMemPerBlockOptin, 99u << 10);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 40 << 10));
  EXPECT_EQ(blocks, 2);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedDevices, MemoryRunsOut) {
  const ScopedConfig scope(with([](Config& c) { c.memory_bytes = 1 << 20; }));
  size_t before = 0, after = 0, total = 0;
  check(cudaMemGetInfo(&before, &total));
  EXPECT_EQ(total, 1u << 20);
  {
    const DeviceArray<char> some(600 << 10);
    check(cudaMemGetInfo(&after, &total));
    EXPECT_EQ(before - after, 600u << 10);
    void* more = nullptr;
    EXPECT_EQ(cudaMalloc(&more, 600 << 10), cudaErrorMemoryAllocation);
    EXPECT_EQ(more, nullptr);
  }
  check(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedDevices, CopiesBeyondAnAllocationAndWrongDirectionsAreFaults) {
  const DeviceArray<int> value(4);
  std::vector<int> host(8);
  EXPECT_THROW(static_cast<void>(cudaMemcpy(host.data(), value.data(), 20, cudaMemcpyDeviceToHost)), Fault);
  EXPECT_THROW(static_cast<void>(cudaMemcpy(value.data() + 1, host.data(), 16, cudaMemcpyHostToDevice)), Fault);
  EXPECT_THROW(static_cast<void>(cudaMemcpy(host.data(), value.data(), 16, cudaMemcpyHostToDevice)), Fault);
  EXPECT_THROW(static_cast<void>(cudaMemset(value.data(), 0, 20)), Fault);
}

TEST(EmulatedDevicesDeathTest, ProtectedDeviceMemoryIsNotForTheHost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ScopedConfig scope(with([](Config& c) { c.protect_device_memory = true; }));
  const DeviceArray<int> value(std::vector<int>{41});
  check(launch(add, 1, 1, 0, nullptr, value.data(), 1));
  EXPECT_EQ(value.read()[0], 42);
  EXPECT_DEATH({ *const_cast<volatile int*>(value.data()) = 0; }, "");
}

// Column-major references with odd sizes and leading dimensions larger than needed.
struct GemmCase {
  bool ta, tb;
  int m, n, k, lda, ldb, ldc;
};

constexpr GemmCase kGemmCases[] = {{false, false, 5, 3, 7, 6, 9, 8},
                                   {true, false, 5, 3, 7, 8, 7, 5},
                                   {false, true, 4, 6, 2, 4, 7, 6},
                                   {true, true, 3, 5, 4, 4, 5, 3}};

TEST(EmulatedCublas, GemmExFollowsTransposesLeadingDimensionsAndTypes) {
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  const Stream stream;
  ASSERT_EQ(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
  for (const GemmCase& g : kGemmCases) {
    const int a_rows = g.ta ? g.k : g.m, a_cols = g.ta ? g.m : g.k, b_rows = g.tb ? g.n : g.k,
              b_cols = g.tb ? g.k : g.n;
    std::vector<__half> a(g.lda * a_cols), b(g.ldb * b_cols);
    std::vector<float> c(g.ldc * g.n);
    for (int j = 0; j < a_cols; ++j)
      for (int i = 0; i < a_rows; ++i) a[j * g.lda + i] = __half((i * 3 + j * 5) % 7 - 3);
    for (int j = 0; j < b_cols; ++j)
      for (int i = 0; i < b_rows; ++i) b[j * g.ldb + i] = __half((i * 2 + j * 7) % 5 - 2);
    for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i);
    const DeviceArray<__half> da(a), db(b);
    const DeviceArray<float> dc(c);
    const float alpha = 2, beta = -1;
    ASSERT_EQ(cublasGemmEx(handle, g.ta ? CUBLAS_OP_T : CUBLAS_OP_N, g.tb ? CUBLAS_OP_T : CUBLAS_OP_N, g.m, g.n, g.k,
                           &alpha, da.data(), CUDA_R_16F, g.lda, db.data(), CUDA_R_16F, g.ldb, &beta, dc.data(),
                           CUDA_R_32F, g.ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
    const auto result = dc.read();
    for (int j = 0; j < g.n; ++j) {
      for (int i = 0; i < g.ldc; ++i) {
        float expected = c[j * g.ldc + i];
        if (i < g.m) {
          float sum = 0;
          for (int p = 0; p < g.k; ++p) {
            sum += static_cast<float>(g.ta ? a[i * g.lda + p] : a[p * g.lda + i]) *
                   static_cast<float>(g.tb ? b[p * g.ldb + j] : b[j * g.ldb + p]);
          }
          expected = alpha * sum + beta * expected;
        }
        EXPECT_EQ(result[j * g.ldc + i], expected);
      }
    }
  }
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

TEST(EmulatedCublas, LtMultipliesBytesExactlyAndRefusesWhatTheLibraryRefuses) {
  cublasLtHandle_t handle = nullptr;
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32I, CUDA_R_32I), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
            CUBLAS_STATUS_SUCCESS);
  constexpr int m = 8, n = 3, k = 64;
  std::vector<int8_t> a(k * m), b(k * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int8_t>(i * 37 % 256 - 128);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int8_t>(i * 91 % 256 - 128);
  const DeviceArray<int8_t> da(a), db(b);
  const DeviceArray<int32_t> dc(m * n);
  cublasLtMatrixLayout_t la = nullptr, lb = nullptr, lc = nullptr, odd = nullptr;
  cublasLtMatrixLayoutCreate(&la, CUDA_R_8I, k, m, k);
  cublasLtMatrixLayoutCreate(&lb, CUDA_R_8I, k, n, k);
  cublasLtMatrixLayoutCreate(&lc, CUDA_R_32I, m, n, m);
  cublasLtMatrixLayoutCreate(&odd, CUDA_R_32F, m, n, m);
  const int32_t one = 1, zero = 0;
  ASSERT_EQ(cublasLtMatmul(handle, desc, &one, da.data(), la, db.data(), lb, &zero, dc.data(), lc, dc.data(), lc,
                           nullptr, nullptr, 0, nullptr),
            CUBLAS_STATUS_SUCCESS);
  const auto result = dc.read();
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      int32_t sum = 0;
      for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[j * k + p];
      EXPECT_EQ(result[j * m + i], sum);
    }
  }
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulPreferenceCreate(&preference);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, lc, lc, preference, 1, &found, &count),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, odd, odd, preference, 1, &found, &count),
            CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatmulPreferenceDestroy(preference);
  for (cublasLtMatrixLayout_t layout : {la, lb, lc, odd}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(desc);
  cublasLtDestroy(handle);
}

// All halves one way, and floats around every rounding boundary the other way, against the project's own conversions
// (written differently) and the compiler's.
TEST(EmulatedHalf, ConversionsRoundToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = __half2float(__ushort_as_half(half));
    const float expected = bam::f16_to_f32(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    ASSERT_EQ(value, expected) << bits;
    // The half itself, its upper neighbour, the tie between them, and both sides of the tie.
    const float next = bam::f16_to_f32(static_cast<uint16_t>(half + 1));
    if (std::isfinite(value) && std::isfinite(next)) {
      const float tie = value + (next - value) / 2;
      for (const float f : {value, tie, std::nextafter(tie, value), std::nextafter(tie, next)}) {
        ASSERT_EQ(__half_as_ushort(__float2half(f)), bam::f32_to_f16(f)) << f;
#ifdef __FLT16_MANT_DIG__
        const auto compiler = static_cast<_Float16>(f);
        ASSERT_EQ(__half_as_ushort(__float2half(f)), std::bit_cast<uint16_t>(compiler)) << f;
#endif
      }
    }
    const float wide = bam::bf16_to_f32(half), step = bam::bf16_to_f32(static_cast<uint16_t>(half + 1));
    if (std::isfinite(wide) && std::isfinite(step)) {
      const float tie = wide + (step - wide) / 2;
      for (const float f : {wide, tie, std::nextafter(tie, wide), std::nextafter(tie, step)}) {
        ASSERT_EQ(__bfloat16_as_ushort(__float2bfloat16(f)), bam::f32_to_bf16(f)) << f;
      }
    }
  }
  for (const float f : {65504.0f, 65519.99f, 65520.0f, 1e9f, -1e9f, 1e-9f, INFINITY, 3.4e38f}) {
    EXPECT_EQ(__half_as_ushort(__float2half(f)), bam::f32_to_f16(f)) << f;
    EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(f)), bam::f32_to_bf16(f)) << f;
  }
  EXPECT_TRUE(std::isnan(__half2float(__float2half(NAN))));
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16(NAN))));
}

TEST(EmulatedHalf, ArithmeticRoundsOnce) {
  // 2049 is a tie between 2048 and 2050 and goes to the even one; with a little more it goes up.
  EXPECT_EQ(__half2float(__hadd(__half(2048.0f), __half(1.0f))), 2048.0f);
  EXPECT_EQ(__half2float(__hfma(__half(1.0f), __half(2048.0f), __half(1.0f))), 2048.0f);
  const __half tiny = __ushort_as_half(1);  // 2^-24
  EXPECT_EQ(__half2float(__hfma(__half(2050.0f), __half(1.0f), __half(-1.0f))), 2048.0f);
  EXPECT_EQ(__half2float(__hfma(tiny, tiny, __half(1.0f))), 1.0f);
  EXPECT_EQ(__half2float(__hmul(__half(255.0f), __half(255.0f))), 65024.0f);
  // In bfloat16 1 + 2^-8 is a tie; a product far below decides it.
  const __nv_bfloat16 one(1.0f), eighth(0x1p-8f);
  EXPECT_EQ(__bfloat162float(__hadd(one, eighth)), 1.0f);
  EXPECT_EQ(__bfloat162float(__hfma(__nv_bfloat16(1.0f + 0x1p-7f), eighth, one)), 1.0f + 0x1p-7f);
}

}  // namespace
