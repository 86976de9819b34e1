// What devices differ in and how they fail: shared memory of every architecture, several devices in one process, a
// device that is lost, a step that ends half-way.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/cuda_emu/attention_test_support.h"
#include "tests/cuda_emu/emu/fault.h"

namespace bam {
namespace {

using cuda_test::Case;
using cuda_test::make_cuda;
using cuda_test::make_spec;
using reference::HarnessOptions;
using reference::ModelHarness;
using reference::TestCheckpoint;

constexpr int kArchitectures[] = {80, 86, 87, 89, 90, 100, 103, 120};

cuda_emu::Config changed(const std::function<void(cuda_emu::Config&)>& change) {
  cuda_emu::Config next = cuda_emu::config();
  change(next);
  return next;
}

struct RepairedAtTheEnd {
  ~RepairedAtTheEnd() {
    cuda_emu::repair_devices();
    static_cast<void>(cudaGetLastError());
  }
};

__global__ void with_shared(int* out, int n) {
  BAM_SHARED(int, table, [100]);
  BAM_SHARED(double, sum2);
  BAM_DYNAMIC_SHARED(int, rest);
  table[threadIdx.x] = rest[threadIdx.x] = n;
  sum2 = n;
  out[threadIdx.x] = table[threadIdx.x] + static_cast<int>(sum2);
}

TEST(SharedMemory, StaticBytesCountBeforeAKernelHasRun) {
  cudaFuncAttributes attributes{};
  cuda_emu_test::check(cudaFuncGetAttributes(&attributes, with_shared));
  EXPECT_EQ(attributes.sharedSizeBytes, 408u);
  for (const int capability : kArchitectures) {
    const cuda_emu::ScopedConfig scope(changed([&](auto& c) { c.compute_capability = capability; }));
    const auto most = static_cast<int>(cuda_emu::config().shared_per_block_optin()) - 408;
    EXPECT_EQ(cudaFuncSetAttribute(with_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaFuncSetAttribute(with_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, most), cudaSuccess);
  }
  static_cast<void>(cudaGetLastError());
}

TEST(SharedMemory, EveryArchitectureTakesEveryHeadDim) {
  for (const int capability : kArchitectures) {
    const cuda_emu::ScopedConfig scope(changed([&](auto& c) { c.compute_capability = capability; }));
    const auto backend = make_cuda();
    for (const DType kv : {DType::kF16, DType::kBF16, DType::kI8, DType::kFp8}) {
      for (const int dim : {16, 32, 48, 64, 80, 96, 112, 128}) {
        for (const int heads : {1, 4, 7, 44, 64, 100}) {
          const Case test{.name = "fits", .kv = kv, .head_dim = dim, .heads = heads, .kv_heads = 1};
          const auto layer = backend->make_attention(make_spec(test));
          AttentionLayer* layers[] = {layer.get()};
          EXPECT_NO_THROW(backend->prepare_attention(layers, make_kv_layout(kv, dim, 64)))
              << "sm_" << capability << " " << dtype_name(kv) << " head_dim " << dim << " heads " << heads;
        }
      }
    }
  }
}

// The largest block that a model can ask for, where there is least room: it is cut, and the cut changes no bit.
TEST(SharedMemory, ManyHeadsPerKvHeadAreCutWhereTheyDoNotFit) {
  const Case test{.name = "wide", .head_dim = 128, .heads = 64, .kv_heads = 1, .tokens = 70, .chunk = 70};
  const auto qkv = cuda_test::make_qkv(test, 5);
  const auto compute = [&](int capability) {
    const cuda_emu::ScopedConfig scope(changed([&](auto& c) { c.compute_capability = capability; }));
    const auto backend = make_cuda();
    return cuda_test::run(*backend, test, make_spec(test), qkv, test.chunk, {}, nullptr, 66);
  };
  const auto large = compute(90), small = compute(86);
  ASSERT_EQ(large.size(), small.size());
  EXPECT_EQ(std::memcmp(large.data(), small.data(), large.size() * sizeof(float)), 0);
}

HarnessOptions harness(std::unique_ptr<Backend> backend) {
  HarnessOptions options;
  options.kv_dtype = DType::kF16;
  options.max_tokens = 128;
  options.backend = std::move(backend);
  return options;
}

TEST(SeveralDevices, TwoBackendsInOneProcessDoNotKnowOfEachOther) {
  const cuda_emu::ScopedConfig scope(changed([](auto& c) { c.device_count = 2; }));
  const TestCheckpoint checkpoint(reference::all_variants().front().spec);
  const auto on = [](int device) {
    return std::make_unique<cuda::CudaBackend>(BackendOptions{.device = device, .operands = "f16"});
  };
  auto first = on(0), second = on(1);
  EXPECT_TRUE(first->description().starts_with("cuda:0 ")) << first->description();
  EXPECT_TRUE(second->description().starts_with("cuda:1 ")) << second->description();
  ModelHarness a(checkpoint, harness(std::move(first))), b(checkpoint, harness(std::move(second)));
  const auto prompt = reference::random_tokens(40, checkpoint.config().vocab_size);
  // Steps alternate; whoever works leaves the caller's device as it was.
  cuda_emu_test::check(cudaSetDevice(0));
  for (size_t i = 0; i < prompt.size(); i += 10) {
    const std::vector<int32_t> piece(prompt.begin() + static_cast<std::ptrdiff_t>(i),
                                     prompt.begin() + static_cast<std::ptrdiff_t>(i) + 10);
    const auto x = a.step({{0, piece, static_cast<int64_t>(i)}}, {9}),
               y = b.step({{0, piece, static_cast<int64_t>(i)}}, {9});
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0);
    int device = -1;
    cuda_emu_test::check(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
  }
}

TEST(SeveralDevices, TheEmulatorKeepsThemApart) {
  const cuda_emu::ScopedConfig scope(changed([](auto& c) { c.device_count = 2; }));
  cuda_emu_test::check(cudaSetDevice(1));
  const cuda_emu_test::DeviceArray<int> there(std::vector<int>(32, 1));
  cudaStream_t stream = nullptr;
  cuda_emu_test::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cuda_emu_test::check(cudaSetDevice(0));
  EXPECT_EQ(cuda::launch(with_shared, 1, 1, 0, stream, nullptr, 1), cudaErrorInvalidResourceHandle);
  EXPECT_THROW(static_cast<void>(cuda::launch(with_shared, 1, 1, 4, nullptr, there.data(), 1)), cuda_emu::Fault);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  cuda_emu_test::check(cudaSetDevice(1));
  cuda_emu_test::check(cudaStreamDestroy(stream));
  static_cast<void>(cudaGetLastError());
  cuda_emu_test::check(cudaSetDevice(0));
}

TEST(LostDevice, IsTellingFromTheFirstErrorOn) {
  const RepairedAtTheEnd repaired;
  const TestCheckpoint checkpoint(reference::all_variants().front().spec);
  ModelHarness model(checkpoint, harness(make_cuda()));
  const auto prompt = reference::random_tokens(80, checkpoint.config().vocab_size);
  model.step({{0, prompt, 0}}, {79});
  const cuda_emu::ScopedConfig scope(changed([](auto& c) { c.break_at_launch = cuda_emu::statistics().launches + 5; }));
  EXPECT_THROW(model.step({{0, {prompt[0]}, 80}}, {0}), DeviceLost);
  EXPECT_THROW(model.step({{0, {prompt[1]}, 81}}, {0}), DeviceLost) << "nothing heals it";
  for (const cudaError_t error : {cudaErrorECCUncorrectable, cudaErrorIllegalAddress, cudaErrorLaunchFailure,
                                  cudaErrorAssert, cudaErrorUnknown}) {
    EXPECT_THROW(cuda::check(error, "a call"), DeviceLost);
  }
  // NVLink, contained faults, a context that was destroyed, tensor memory, a client that MPS ended, an external device:
  // the toolkit says of each that the process must end. Older toolkits do not name all of them.
  for (const int error : {220, 226, 709, 721, 810, 911}) {
    EXPECT_THROW(cuda::check(static_cast<cudaError_t>(error), "a call"), DeviceLost) << error;
  }
  for (const cudaError_t error :
       {cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorStreamCaptureUnsupported}) {
    EXPECT_THROW(
        {
          try {
            cuda::check(error, "a call");
          } catch (const DeviceLost&) {
            ADD_FAILURE() << cudaGetErrorName(error);
          }
        },
        Error);
  }
}

TEST(SetUpErrors, SayWhatHelps) {
  const std::pair<int, const char*> cases[] = {{46, "compute mode"},
                                               {209, "BAM_CUDA_ARCHITECTURES"},
                                               {222, "newer driver"},
                                               {802, "fabricmanager"},
                                               {803, "restart"}};
  for (const auto& [error, words] : cases) {
    try {
      cuda::check(static_cast<cudaError_t>(error), "a call");
      ADD_FAILURE() << error;
    } catch (const Error& told) {
      EXPECT_EQ(dynamic_cast<const DeviceLost*>(&told), nullptr) << error;
      EXPECT_NE(std::string(told.what()).find(words), std::string::npos) << told.what();
    }
  }
}

// A step of few rows is written down and runs when it is read: what it uses may not go before.
TEST(RecordedStep, RunsBeforeItsWeightsGo) {
  const auto run = [](bool drop) {
    const auto backend = make_cuda();
    const auto table = cuda_test::random_floats(4 * 64, 1), w = cuda_test::random_floats(16 * 64, 2);
    const HostMatrix matrix = cuda_test::host_matrix(w, 16, 64);
    auto weights = backend->make_linear({&matrix, 1}, DType::kF16);
    const auto norm = backend->make_vector(std::vector<float>(64, 1.0f));
    const auto x = backend->allocate(2 * 64 * sizeof(float)), y = backend->allocate(2 * 64 * sizeof(uint16_t)),
               out = backend->allocate(2 * 16 * sizeof(float));
    backend->embed(cuda_test::host_matrix(table, 4, 64), std::vector<int32_t>{3, 1}, backend->float_rows(*x, 2, 64));
    backend->rms_norm(backend->float_rows(*x, 2, 64), *norm, 1e-5f, backend->operand_rows(*y, 2, 64));
    const uint64_t before = cuda_emu::statistics().graph_launches;
    backend->linear_logits(*weights, backend->operand_rows(*y, 2, 64), backend->float_rows(*out, 2, 16));
    EXPECT_EQ(cuda_emu::statistics().graph_launches, before) << "this test needs a step that is written down";
    if (drop) weights.reset();
    return cuda_test::floats(*backend, *out, 32);
  };
  EXPECT_EQ(run(true), run(false));
}

// Any allocation of a step may fail. The step ends with an error; the next one computes what it should.
TEST(FailedStep, LeavesNothingBehindForTheNextOne) {
  const TestCheckpoint checkpoint(reference::all_variants().front().spec);
  const auto prompt = reference::random_tokens(40, checkpoint.config().vocab_size);
  const auto run = [&](ModelHarness& model) { return model.step({{0, prompt, 0}}, {39}); };
  ModelHarness good(checkpoint, harness(make_cuda()));
  const uint64_t before = cuda_emu::statistics().allocations;
  const auto expected = run(good);
  const auto launches_of_step = [&](ModelHarness& model) {
    const uint64_t start = cuda_emu::statistics().launches;
    const auto logits = run(model);
    EXPECT_EQ(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)), 0);
    return cuda_emu::statistics().launches - start;
  };
  const uint64_t allocations = cuda_emu::statistics().allocations - before;
  ASSERT_GT(allocations, 1u) << "this test needs a step that allocates";
  for (uint64_t failing = 1; failing <= allocations; ++failing) {
    ModelHarness model(checkpoint, harness(make_cuda()));
    {
      const cuda_emu::ScopedConfig scope(
          changed([&](auto& c) { c.fail_allocation = cuda_emu::statistics().allocations + failing; }));
      EXPECT_THROW(run(model), Error) << "allocation " << failing;
    }
    EXPECT_EQ(launches_of_step(model), launches_of_step(good)) << "after allocation " << failing << " failed";
  }
}

}  // namespace
}  // namespace bam
