// The emulator itself: blocks, warps and shared memory, and that it notices what a device would not forgive.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.h"
#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu_test_support.h"

namespace {

using bam::cuda::launch;
using cuda_emu::Fault;
using cuda_emu_test::check;
using cuda_emu_test::DeviceArray;
using cuda_emu_test::WithSeed;

constexpr uint64_t kSeeds = 8;
constexpr unsigned kFull = 0xffffffffu;

// The message of the fault that `body` runs into, or "" if it does not.
std::string fault_of(const std::function<void()>& body) {
  try {
    body();
    check(cudaDeviceSynchronize());
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

// How many seeds make `body` give something else than `expected`.
template <typename T>
uint64_t seeds_that_show(const std::vector<T>& expected, const std::function<std::vector<T>()>& body) {
  uint64_t shown = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithSeed with(seed);
    shown += body() != expected;
  }
  return shown;
}

__global__ void block_sum(const float* in, float* out, int n) {
  BAM_SHARED(float, partial, [32]);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    sum += in[static_cast<int>(blockIdx.x) * n + i];
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFull, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < blockDim.x / 32; ++w) sum += partial[w];
    out[blockIdx.x] = sum;
  }
}

TEST(EmulatorBlock, SumsThroughShufflesAndSharedMemoryWithEverySeed) {
  std::vector<float> values(5 * 100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const DeviceArray<float> in(values);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithSeed with(seed);
    const DeviceArray<float> out(5);
    check(launch(block_sum, 5, 128, 0, nullptr, in.data(), out.data(), 100));
    const auto sums = out.read();
    for (int b = 0; b < 5; ++b) EXPECT_EQ(sums[b], 100 * 100 * b + 99 * 50) << "seed " << seed;
  }
}

__global__ void write_indices(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

TEST(EmulatorBlock, ThreeDimensionalIndicesCoverEverythingOnce) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const WithSeed with(seed);
    const DeviceArray<unsigned> out(3 * 2 * 4 * 5 * 3 * 2);
    check(launch(write_indices, dim3(3, 2, 4), dim3(5, 3, 2), 0, nullptr, out.data()));
    const auto values = out.read();
    for (unsigned i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i / 30 * 1000 + i % 30);
  }
}

__global__ void reverse_in_shared(const int* in, int* out, bool synchronise) {
  BAM_SHARED(int, tile, [128]);
  tile[threadIdx.x] = in[threadIdx.x];
  if (synchronise) __syncthreads();
  out[threadIdx.x] = tile[127 - threadIdx.x];
}

TEST(EmulatorBlock, AMissingBarrierIsExposed) {
  std::vector<int> values(128), reversed(128);
  for (int i = 0; i < 128; ++i) values[i] = i, reversed[127 - i] = i;
  const DeviceArray<int> in(values);
  const auto run = [&](bool synchronise) {
    return seeds_that_show<int>(reversed, [&] {
      const DeviceArray<int> out(128);
      check(launch(reverse_in_shared, 1, 128, 0, nullptr, in.data(), out.data(), synchronise));
      return out.read();
    });
  };
  EXPECT_EQ(run(true), 0u);
  EXPECT_EQ(run(false), kSeeds);  // whoever comes first reads what was never written
}

// Each round writes the tile that the round before still reads.
__global__ void rotate_in_shared(int* out, int rounds, bool synchronise) {
  BAM_SHARED(int, tile, [64]);
  int value = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    tile[threadIdx.x] = value;
    __syncthreads();
    value = tile[(threadIdx.x + 1) % 64];
    if (synchronise) __syncthreads();
  }
  out[threadIdx.x] = value;
}

TEST(EmulatorBlock, AMissingBarrierBeforeReuseIsExposed) {
  std::vector<int> expected(64);
  for (int i = 0; i < 64; ++i) expected[i] = (i + 5) % 64;
  const auto run = [&](bool synchronise) {
    return seeds_that_show<int>(expected, [&] {
      const DeviceArray<int> out(64);
      check(launch(rotate_in_shared, 1, 64, 0, nullptr, out.data(), 5, synchronise));
      return out.read();
    });
  };
  EXPECT_EQ(run(true), 0u);
  EXPECT_GT(run(false), 0u);
}

// Lanes of one warp: correct on no architecture with independent lanes, though it often looks so on a GPU.
__global__ void exchange_in_warp(int* out, bool synchronise) {
  BAM_SHARED(int, tile, [32]);
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (synchronise) __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

TEST(EmulatorBlock, AMissingWarpBarrierIsExposed) {
  std::vector<int> expected(32);
  for (int i = 0; i < 32; ++i) expected[i] = i ^ 1;
  const auto run = [&](bool synchronise) {
    return seeds_that_show<int>(expected, [&] {
      const DeviceArray<int> out(32);
      check(launch(exchange_in_warp, 1, 32, 0, nullptr, out.data(), synchronise));
      return out.read();
    });
  };
  EXPECT_EQ(run(true), 0u);
  EXPECT_EQ(run(false), kSeeds);
}

__global__ void count_without_atomics(int* counter, bool atomic) {
  const int seen = *counter;
  __syncthreads();
  if (atomic) {
    atomicAdd(counter, 1);
  } else {
    *counter = seen + 1;
  }
}

TEST(EmulatorBlock, AtomicsAddUp) {
  const DeviceArray<int> counter(std::vector<int>{0});
  check(launch(count_without_atomics, 3, 96, 0, nullptr, counter.data(), true));
  EXPECT_EQ(counter.read()[0], 3 * 96);
  check(launch(count_without_atomics, 3, 96, 0, nullptr, counter.data(), false));
  EXPECT_EQ(counter.read()[0], 3 * 96 + 3);  // lost updates
}

__global__ void read_unwritten(float* out) {
  BAM_SHARED(float, tile, [4][4]);
  BAM_SHARED(float, one);
  BAM_DYNAMIC_SHARED(float, dynamic);
  out[0] = tile[1][2];
  out[1] = one;
  out[2] = dynamic[3];
  tile[1][2] = one = dynamic[3] = 1.0f;
}

TEST(EmulatorBlock, UnwrittenMemoryIsNotANumberInEveryBlock) {
  const DeviceArray<float> out(4);
  for (int blocks = 1; blocks <= 2; ++blocks) {
    check(launch(read_unwritten, blocks, 1, 16, nullptr, out.data()));
    for (const float value : out.read()) EXPECT_TRUE(std::isnan(value));
  }
}

__global__ void barrier_for_half() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void barrier_against_shuffle() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void barrier_after_exit(int* out) {
  if (threadIdx.x >= 8) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST(EmulatorFaults, DivergentBarriers) {
  const std::string divergent = fault_of([] { check(launch(barrier_for_half, 1, 32, 0, nullptr)); });
  EXPECT_NE(divergent.find("divergent barrier"), std::string::npos) << divergent;
  EXPECT_NE(divergent.find("emulator_test.cpp"), std::string::npos) << divergent;
  const std::string deadlock = fault_of([] { check(launch(barrier_against_shuffle, 1, 32, 0, nullptr)); });
  EXPECT_NE(deadlock.find("deadlock"), std::string::npos) << deadlock;
  EXPECT_NE(deadlock.find("16 threads wait in __syncwarp mask 0xffffffff"), std::string::npos) << deadlock;
  // Threads that ended do not count, as on sm_70 and newer.
  const DeviceArray<int> out(8);
  check(launch(barrier_after_exit, 1, 32, 0, nullptr, out.data()));
  EXPECT_EQ(out.read(), std::vector<int>(8, 1));
}

__global__ void shuffle_with_mask(unsigned mask, int first_lane) {
  if (static_cast<int>(threadIdx.x) >= first_lane) __shfl_xor_sync(mask, 1, 1);
}

__global__ void shuffle_against_ballot() {
  if (threadIdx.x % 2 == 0) {
    __shfl_sync(kFull, 1, 0);
  } else {
    __ballot_sync(kFull, 1);
  }
}

__global__ void shuffle_width(int width) { __shfl_sync(kFull, 1, 0, width); }

TEST(EmulatorFaults, WarpMasks) {
  const WithSeed ascending(0);  // the lanes that end do so before the others ask for them
  const auto run = [](unsigned mask, int first_lane, int threads = 32) {
    return fault_of([=] { check(launch(shuffle_with_mask, 1, threads, 0, nullptr, mask, first_lane)); });
  };
  EXPECT_EQ(run(kFull, 0), "");
  EXPECT_EQ(run(0xffff0000u, 16), "");
  EXPECT_NE(run(0x0000ffffu, 0).find("is not in its own mask"), std::string::npos);
  EXPECT_NE(run(kFull, 16).find("ended or do not exist"), std::string::npos);
  EXPECT_NE(run(kFull, 0, 40).find("ended or do not exist"), std::string::npos);
  const std::string disagree = fault_of([] { check(launch(shuffle_against_ballot, 1, 32, 0, nullptr)); });
  EXPECT_NE(disagree.find("disagree"), std::string::npos) << disagree;
  EXPECT_NE(fault_of([] { check(launch(shuffle_width, 1, 32, 0, nullptr, 12)); }).find("width is 12"),
            std::string::npos);
}

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[0 * 32 + lane] = __shfl_sync(kFull, lane * 10, 5);
  out[1 * 32 + lane] = __shfl_sync(kFull, lane * 10, lane + 1, 8);
  out[2 * 32 + lane] = __shfl_up_sync(kFull, lane, 3);
  out[3 * 32 + lane] = __shfl_down_sync(kFull, lane, 3, 16);
  out[4 * 32 + lane] = __shfl_xor_sync(kFull, lane, 9);
  out[5 * 32 + lane] = static_cast<int>(__ballot_sync(kFull, lane % 3 == 0));
  out[6 * 32 + lane] = __any_sync(kFull, lane == 7) + 2 * __all_sync(kFull, lane < 32) + 4 * __all_sync(kFull, lane);
  out[7 * 32 + lane] =
      __reduce_add_sync(kFull, lane) + __reduce_max_sync(kFull, -lane) + __reduce_min_sync(kFull, -lane);
  out[8 * 32 + lane] = static_cast<int>(__match_any_sync(kFull, lane % 4));
  out[9 * 32 + lane] =
      __syncthreads_count(lane % 2) + 100 * __syncthreads_or(lane == 3) + 200 * __syncthreads_and(lane);
  // Half warps on their own; the source lies in the other half: undefined, so poisoned here.
  const unsigned mine = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  out[10 * 32 + lane] = __shfl_xor_sync(mine, lane, lane % 2 == 0 ? 1 : 17);
}

TEST(EmulatorWarp, OperationsGiveWhatTheManualSays) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithSeed with(seed);
    const DeviceArray<int> out(11 * 32);
    check(launch(shuffles, 1, 32, 0, nullptr, out.data()));
    const auto r = out.read();
    for (int lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(r[0 * 32 + lane], 50);
      EXPECT_EQ(r[1 * 32 + lane], (lane / 8 * 8 + (lane + 1) % 8) * 10);
      EXPECT_EQ(r[2 * 32 + lane], lane < 3 ? lane : lane - 3);
      EXPECT_EQ(r[3 * 32 + lane], lane % 16 + 3 < 16 ? lane + 3 : lane);
      EXPECT_EQ(r[4 * 32 + lane], lane ^ 9);
      EXPECT_EQ(static_cast<unsigned>(r[5 * 32 + lane]), 0b01001001001001001001001001001001u);
      EXPECT_EQ(r[6 * 32 + lane], 1 + 2);
      EXPECT_EQ(r[7 * 32 + lane], 31 * 16 + 0 - 31);
      EXPECT_EQ(static_cast<unsigned>(r[8 * 32 + lane]), 0x11111111u << (lane % 4));
      EXPECT_EQ(r[9 * 32 + lane], 16 + 100);
      EXPECT_EQ(r[10 * 32 + lane], lane % 2 == 0 ? lane + 1 : -1);
    }
  }
}

__global__ void nothing() {}
__global__ void use_dynamic(float* out, int i) {
  BAM_DYNAMIC_SHARED(float, memory);
  memory[i] = 1.0f;
  out[0] = memory[i];
}
__global__ void want_static() {
  BAM_SHARED(double, large, [6 * 1024 + 1]);
  large[0] = 0;
}

TEST(EmulatorFaults, Launches) {
  EXPECT_NE(fault_of([] { check(launch(nothing, 0, 32, 0, nullptr)); }).find("grid of 0"), std::string::npos);
  EXPECT_NE(fault_of([] { check(launch(nothing, dim3(1, 65536), 32, 0, nullptr)); }).find("grid of"),
            std::string::npos);
  EXPECT_NE(fault_of([] { check(launch(nothing, 1, 1025, 0, nullptr)); }).find("block of 1025"), std::string::npos);
  EXPECT_NE(fault_of([] { check(launch(want_static, 1, 1, 0, nullptr)); }).find("48 KiB"), std::string::npos);
  const DeviceArray<float> out(1);
  const auto large = [&](int bytes) {
    return fault_of([&] { check(launch(use_dynamic, 1, 1, bytes, nullptr, out.data(), bytes / 4 - 1)); });
  };
  EXPECT_NE(large(49156).find("allow_shared"), std::string::npos);
  check(bam::cuda::allow_shared(use_dynamic, 100 << 10));
  EXPECT_EQ(large(100 << 10), "");
  EXPECT_EQ(bam::cuda::allow_shared(use_dynamic, 164 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  float on_host = 0;
  EXPECT_NE(fault_of([&] { check(launch(use_dynamic, 1, 1, 64, nullptr, &on_host, 0)); }).find("memory of the host"),
            std::string::npos);
}

__global__ void stray_shared_write(int index) {
  BAM_SHARED(int, tile, [8]);
  tile[index] = 1;
}
__global__ void stray_dynamic_write(int index) {
  BAM_DYNAMIC_SHARED(unsigned char, memory);
  memory[index] = 1;
}
__global__ void stray_global_write(unsigned char* memory, int index) { memory[index] = 1; }
__global__ void stray_global_read(const unsigned char* memory, int index, unsigned char* out) { *out = memory[index]; }

#ifdef __SANITIZE_ADDRESS__

class EmulatorBoundsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(EmulatorBoundsDeathTest, SharedAndDeviceMemoryAreGuardedToTheByte) {
  const auto run = [](auto kernel, size_t shared, auto... args) {
    check(launch(kernel, 1, 1, shared, nullptr, args...));
    check(cudaDeviceSynchronize());
  };
  const DeviceArray<unsigned char> memory(13), out(1);
  run(stray_shared_write, 0, 7);
  EXPECT_DEATH(run(stray_shared_write, 0, 8), "use-after-poison|out of bounds");
  EXPECT_DEATH(run(stray_shared_write, 0, -1), "use-after-poison|out of bounds");
  run(stray_dynamic_write, 13, 12);
  EXPECT_DEATH(run(stray_dynamic_write, 13, 13), "use-after-poison");
  run(stray_global_write, 0, memory.data(), 12);
  EXPECT_DEATH(run(stray_global_write, 0, memory.data(), 13), "use-after-poison");
  EXPECT_DEATH(run(stray_global_read, 0, memory.data(), -1, out.data()), "use-after-poison");
  EXPECT_DEATH(run(stray_global_read, 0, memory.data(), 4096, out.data()), "SEGV");
}

#else

TEST(EmulatorFaults, StrayWrites) {
  const auto run = [](auto kernel, size_t shared, auto... args) {
    return fault_of([&] { check(launch(kernel, 1, 1, shared, nullptr, args...)); });
  };
  EXPECT_EQ(run(stray_shared_write, 0, 7), "");
  EXPECT_NE(run(stray_shared_write, 0, 8).find("bounds of a shared array"), std::string::npos);
  EXPECT_NE(run(stray_shared_write, 0, -1).find("bounds of a shared array"), std::string::npos);
  EXPECT_NE(run(stray_dynamic_write, 13, 13).find("bounds of a shared array"), std::string::npos);
  unsigned char* memory = nullptr;
  check(cudaMalloc(&memory, 13));
  EXPECT_EQ(run(stray_global_write, 0, memory, 12), "");
  EXPECT_NE(run(stray_global_write, 0, memory, 13).find("bounds of an allocation of 13 bytes"), std::string::npos);
  check(launch(stray_global_write, 1, 1, 0, nullptr, memory, 200));
  EXPECT_THROW(static_cast<void>(cudaFree(memory)), Fault);
}

TEST(EmulatorFaultsDeathTest, MemoryBehindAnAllocationAndFreedMemoryAreNotThere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DeviceArray<unsigned char> out(1);
  unsigned char* memory = nullptr;
  check(cudaMalloc(&memory, 4096));
  const auto read = [&](int index) {
    check(launch(stray_global_read, 1, 1, 0, nullptr, memory, index, out.data()));
    check(cudaDeviceSynchronize());
  };
  read(4095);
  EXPECT_EXIT(read(4096), ::testing::KilledBySignal(SIGSEGV), "");
  unsigned char* const stale = memory;
  check(launch(stray_global_write, 1, 1, 0, nullptr, stale, 0));
  check(cudaFree(memory));
  EXPECT_THROW(check(launch(stray_global_write, 1, 1, 0, nullptr, stale, 0)), Fault);
}

#endif

}  // namespace
