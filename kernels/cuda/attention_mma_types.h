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

// What the cache holds: numbers of type T, or codes of 8 bits and a scale per key. fp8 is widened to T in shared memory, int8
// becomes fragments as it is (attention_mma_codes.h).
enum class Codes { kNone, kInt8, kFp8 };

// T: 16-bit format of the products; kDims: dims / 16, padding included; kRows: of a warp, 8 for blocks of one warp with few rows.
template <typename T_, Codes kCodes_, int kDims_, int kRows_ = 16>
struct Config {
  using T = T_;
  static constexpr Codes kCodes = kCodes_;
  static constexpr bool kQuantised = kCodes != Codes::kNone;
  static constexpr bool kInt8 = kCodes == Codes::kInt8;
  static constexpr int kDims = kDims_;
  static constexpr bool kFew = kRows_ == 8;
  static constexpr int kRowsOfThread = kRows_ / 8;
  static_assert(!kFew || kInt8);
  // What falls to this kernel has more dims than the next smaller one takes.
  static constexpr bool kExact = kDims == 3 || kDims == 4;  // there is no other number of 16 dims between
  static constexpr int kSureDims = kDims <= 2 ? 0 : kDims <= 4 ? kDims * 16 - 16 : kDims * 16 - 32;
  // Queries stay in registers while there are enough of them.
  static constexpr bool kSharedQueries = kDims > 4 && !kFew;
  // The A fragments of one query tile: steps of k, registers of each. int8: 32 dims, upper bytes and lower bytes.
  static constexpr int kQuerySteps = kInt8 ? (kDims + 1) / 2 : kDims;
  static constexpr int kQueryWords = kInt8 && !kFew ? 8 : 4;
  static constexpr int kKeyBytes = kDims * 16 * kKeyRowBytes;
  static constexpr int kValueRowBytes = kDims * 32 + 16;
  static constexpr int kValueBytes = kStageKeys * kValueRowBytes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  // Codes arrive as they are: keys [dims][32], values [32][dims], scales of both. fp8 is then widened into one stage. int8 is
  // read by ldmatrix: keys [2 panels][dims][16], rows of values apart by an odd number of 16 bytes.
  static constexpr int kRawValues = kDims * 16 * kStageKeys;
  static constexpr int kRawValueRow = kDims * 16 + (kInt8 && kDims % 2 == 0 ? 16 : 0);
  static constexpr int kRawScales = kRawValues + kStageKeys * kRawValueRow;
  static constexpr int kRawBytes = kQuantised ? kRawScales + 2 * kStageKeys * 2 : 0;
  static constexpr int kStages = kQuantised ? 1 : 2;  // that fragments are read from; int8: the raw ones
  // Blocks of four warps on one multiprocessor: what the compiler may spend on registers (65536 / 128 / blocks) without
  // spilling, and not more than shared memory allows.
  static constexpr int kMinBlocks = (kDims + kQuantised <= 2 ? 4 : kDims <= 4 ? 3 : 2) * (kFew ? 4 : 1);
  static constexpr int kMostThreads = kFew ? 32 : kMaxThreads;
  static constexpr int kThreadTotals = kDims * 8 + 4;  // floats: output, max and sum of two rows

  // The key (dim) of column e of this lane's pair in score (output) tile n. int8: neighbouring codes are columns of two tiles.
  __device__ __forceinline__ static constexpr int column(int lane, int n, int e) {
    return kInt8 ? 16 * (n / 2) + 4 * fragments::in_group(lane) + 2 * e + n % 2 : 8 * n + fragments::c_col(lane, e);
  }
};

// Dynamic shared memory, in this order: stages, raw stages, queries of every warp, totals, bias of two stages.
template <typename C>
struct SharedLayout {
  static constexpr int kStage = 0;
  static constexpr int kRaw = kStage + (C::kInt8 ? 0 : C::kStages * C::kStageBytes);
  static constexpr int kCopies = C::kQuantised ? kRaw : kStage;  // where cp.async writes to
  static constexpr int kQueries = kRaw + 2 * C::kRawBytes;
  static constexpr int kQueryBytes = !C::kSharedQueries ? 0  // of one warp
                                     : C::kInt8         ? C::kQuerySteps * C::kQueryWords * 4 * 32
                                                        : 16 * C::kValueRowBytes;
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
  uint32_t q[C::kSharedQueries ? 1 : C::kQuerySteps][C::kQueryWords];
  float out[2 * C::kDims][4];
  float weights[4];           // int8: sums of the weights that values were multiplied with, [0] and [2]
  float max[2], sum[2];       // logits are in units of log 2; sum: this thread's columns only
  float content[2], bias[2];  // factors of q.k and of B; int8: logits are in units of content, bias in those as well
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
#pragma unroll
  for (int i = 0; i < 4; ++i) f.weights[i] = 0;
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
