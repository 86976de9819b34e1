// Shapes of the tensor-core attention kernel: configurations, shared memory, what a thread holds. See attention_mma.cu.
#pragma once

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/fragments.h"

namespace bam::cuda::mma {

constexpr int kMaxThreads = kMaxBlockRows / 16 * 32;
constexpr int kStagesPerTile = kTileKeys / kStageKeys;
constexpr int kKeyRowBytes = kStageKeys * 2 + 16;

template <typename T>
struct MmaOf;
template <>
struct MmaOf<__half> {
  static constexpr MmaType kType = MmaType::kF16;
};
template <>
struct MmaOf<__nv_bfloat16> {
  static constexpr MmaType kType = MmaType::kBF16;
};

// What the cache holds: numbers of type T, or codes of 8 bits that are widened to T and a scale per key.
enum class Codes { kNone, kInt8, kFp8 };

// T: 16-bit format of the products; kDims: dims / 16, padding included.
template <typename T_, Codes kCodes_, int kDims_>
struct Config {
  using T = T_;
  static constexpr Codes kCodes = kCodes_;
  static constexpr bool kQuantised = kCodes != Codes::kNone;
  static constexpr int kDims = kDims_;
  // Queries stay in registers while there are enough of them.
  static constexpr bool kSharedQueries = kDims > 4;
  static constexpr int kKeyBytes = kDims * 16 * kKeyRowBytes;
  static constexpr int kValueRowBytes = kDims * 32 + 16;
  static constexpr int kValueBytes = kStageKeys * kValueRowBytes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  // Codes arrive as they are and are widened into one stage: keys [dims][32], values [32][dims], scales of both.
  static constexpr int kRawValues = kDims * 16 * kStageKeys;
  static constexpr int kRawScales = 2 * kRawValues;
  static constexpr int kRawBytes = kQuantised ? kRawScales + 2 * kStageKeys * 2 : 0;
  static constexpr int kStages = kQuantised ? 1 : 2;
  // Blocks of four warps on one multiprocessor: what the compiler may spend on registers (65536 / 128 / blocks) without
  // spilling, and not more than shared memory allows.
  static constexpr int kMinBlocks = kDims + kQuantised <= 2 ? 4 : kDims <= 4 ? 3 : 2;
  static constexpr int kThreadTotals = kDims * 8 + 4;  // floats: output, max and sum of two rows
};

// Dynamic shared memory, in this order: stages, raw stages, queries of every warp, totals, bias of two stages.
template <typename C>
struct SharedLayout {
  static constexpr int kStage = 0;
  static constexpr int kRaw = kStage + C::kStages * C::kStageBytes;
  static constexpr int kCopies = C::kQuantised ? kRaw : kStage;  // where cp.async writes to
  static constexpr int kQueries = kRaw + 2 * C::kRawBytes;
  static constexpr int kQueryBytes = C::kSharedQueries ? 16 * C::kValueRowBytes : 0;  // of one warp
  __host__ __device__ static constexpr int totals(int threads) { return kQueries + threads / 32 * kQueryBytes; }
  __host__ __device__ static constexpr int bias(int threads) {
    return totals(threads) + threads * C::kThreadTotals * 4;
  }
  static constexpr size_t bytes(int threads, int bias_floats) {
    return static_cast<size_t>(bias(threads)) + 2 * sizeof(float) * static_cast<size_t>(bias_floats);
  }
};

// The tiles that are visited one after the other with one softmax state.
struct Run {
  int count;
  int span;  // of the segment
  int tile[kSegmentTiles];
  const unsigned char* data[kSegmentTiles];
  unsigned long long mask[kSegmentTiles];
};

// Registers of one thread: its two rows (lane / 4 and lane / 4 + 8 of the warp) and its part of the output tile.
template <typename C>
struct Fragment {
  uint32_t q[C::kSharedQueries ? 1 : C::kDims][4];
  float out[2 * C::kDims][4];
  float max[2], sum[2];       // logits are in units of log 2; sum: this thread's columns only
  float content[2], bias[2];  // factors of q.k and of B
  int position[2], first_key[2], bias_row[2];
};

template <typename C>
__device__ __forceinline__ void clear(Fragment<C>& f) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    f.max[r] = kNothingSeen;
    f.sum[r] = 0;
  }
#pragma unroll
  for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f.out[n][i] = 0;
  }
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

}  // namespace bam::cuda::mma
