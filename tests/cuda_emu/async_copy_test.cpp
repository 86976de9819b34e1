// cp.async in the emulator: data come when they are waited for and not before.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/ptx.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu_test_support.h"

namespace {

using bam::cuda::cp_async;
using bam::cuda::cp_async_commit;
using bam::cuda::cp_async_wait;
using bam::cuda::launch;
using cuda_emu::Fault;
using cuda_emu_test::check;
using cuda_emu_test::DeviceArray;

std::vector<float> ramp(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

// Two stages; `pending` at the first read says how many groups may still be under way.
template <int kPending>
__global__ void two_stages(const float* in, float* out) {
  BAM_SHARED(float, stage, [2][128]);
  const unsigned t = threadIdx.x;
  cp_async<16>(&stage[0][t * 4], in + t * 4);
  cp_async_commit();
  cp_async<16>(&stage[1][t * 4], in + 128 + t * 4);
  cp_async_commit();
  cp_async_wait<kPending>();
  __syncthreads();
  out[t] = stage[0][(t * 4 + 5) % 128];
  __syncthreads();
  cp_async_wait<0>();
  __syncthreads();
  out[32 + t] = stage[1][(t * 4 + 5) % 128];
}

TEST(AsyncCopy, DataArriveWithTheWaitAndNotBefore) {
  const DeviceArray<float> in(ramp(256));
  const auto run = [&](auto kernel) {
    const DeviceArray<float> out(64);
    check(launch(kernel, 1, 32, 0, nullptr, in.data(), out.data()));
    return out.read();
  };
  const auto good = run(&two_stages<1>);
  for (int t = 0; t < 32; ++t) {
    EXPECT_EQ(good[t], static_cast<float>((t * 4 + 5) % 128 + 1));
    EXPECT_EQ(good[32 + t], static_cast<float>(128 + (t * 4 + 5) % 128 + 1));
  }
  const auto too_early = run(&two_stages<2>);
  for (int t = 0; t < 32; ++t) {
    EXPECT_TRUE(std::isnan(too_early[t]));
    EXPECT_FALSE(std::isnan(too_early[32 + t]));
  }
}

__global__ void wait_without_barrier(const float* in, float* out, bool barrier) {
  BAM_SHARED(float, tile, [128]);
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[t], in + t);
  cp_async_commit();
  cp_async_wait<0>();
  if (barrier) __syncthreads();
  out[t] = tile[127 - t];
}

TEST(AsyncCopy, AWaitIsForTheOwnCopiesOnly) {
  const DeviceArray<float> in(ramp(128));
  for (const bool barrier : {true, false}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const cuda_emu_test::WithSeed with(seed);
      const DeviceArray<float> out(128);
      check(launch(wait_without_barrier, 1, 128, 0, nullptr, in.data(), out.data(), barrier));
      int wrong = 0;
      const auto values = out.read();
      for (int t = 0; t < 128; ++t) wrong += values[t] != static_cast<float>(128 - t);
      EXPECT_EQ(wrong == 0, barrier) << "seed " << seed;
    }
  }
}

__global__ void overwrite_while_read(const float* in, float* out) {
  BAM_SHARED(float, tile, [64]);
  tile[threadIdx.x] = -7.0f;
  __syncthreads();
  // The copy into what the neighbour still reads lacks a barrier.
  const float before = tile[(threadIdx.x + 1) % 64];
  cp_async<4>(&tile[threadIdx.x], in + threadIdx.x);
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = before;
}

TEST(AsyncCopy, ACopyIntoMemoryStillInUseIsExposed) {
  const DeviceArray<float> in(ramp(64)), out(64);
  check(launch(overwrite_while_read, 1, 64, 0, nullptr, in.data(), out.data()));
  int wrong = 0;
  for (const float value : out.read()) wrong += value != -7.0f;
  EXPECT_GT(wrong, 0);
}

template <int kBytes>
__global__ void partial(const unsigned char* in, unsigned char* out, int source_bytes) {
  BAM_DYNAMIC_SHARED(unsigned char, memory);
  cp_async<kBytes>(memory, in, source_bytes);
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = 0; i < kBytes; ++i) out[i] = memory[i];
}

template <int kBytes>
void check_partial(int source_bytes) {
  std::vector<unsigned char> source(16);
  for (int i = 0; i < 16; ++i) source[i] = static_cast<unsigned char>(i + 1);
  const DeviceArray<unsigned char> in(source), out(16);
  check(launch(partial<kBytes>, 1, 1, 16, nullptr, in.data(), out.data(), source_bytes));
  const auto values = out.read();
  for (int i = 0; i < kBytes; ++i) EXPECT_EQ(values[i], i < source_bytes ? i + 1 : 0);
}

TEST(AsyncCopy, ShortSourcesAreFilledWithZeros) {
  check_partial<4>(4);
  check_partial<4>(0);
  check_partial<8>(6);
  check_partial<16>(16);
  check_partial<16>(10);
  check_partial<16>(0);
}

__global__ void misplaced(const unsigned char* in, int shared_offset, int global_offset, int source_bytes) {
  BAM_DYNAMIC_SHARED(unsigned char, memory);
  cp_async<16>(memory + shared_offset, in + global_offset, source_bytes);
}

TEST(AsyncCopy, BadAddressesAreFaults) {
  const DeviceArray<unsigned char> in(32);
  const auto message = [&](int shared_offset, int global_offset, int source_bytes) -> std::string {
    try {
      check(launch(misplaced, 1, 1, 32, nullptr, in.data(), shared_offset, global_offset, source_bytes));
      check(cudaDeviceSynchronize());
    } catch (const Fault& fault) {
      return fault.what();
    }
    return "";
  };
  EXPECT_EQ(message(16, 16, 16), "");
  EXPECT_EQ(message(0, 32, 0), "");  // nothing is read
  EXPECT_NE(message(8, 0, 16).find("not aligned"), std::string::npos);
  EXPECT_NE(message(0, 8, 16).find("not aligned"), std::string::npos);
  EXPECT_NE(message(32, 0, 16).find("not in shared memory"), std::string::npos);
  EXPECT_NE(message(0, 32, 16).find("not in device memory"), std::string::npos);
  EXPECT_NE(message(0, 0, 17).find("source size"), std::string::npos);
}

}  // namespace
