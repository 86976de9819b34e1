// Matrix products on tensor cores (mma.sync, sm_80 and later), fed by a ring of cp.async copies.
//
// One output is one accumulator that goes through mma steps of 32 bytes of k in ascending order, in every tile size
// below. An mma computes each row of its tile from that row alone, so few rows (decode) and many rows (prefill) give
// the same bits.
//
// Shared memory of one stage, rows padded by 16 bytes so that the 8 rows of an ldmatrix fall into different banks:
//   x  [kRows][kDepth + 16] bytes      w  [kCols][kDepth + 16] bytes
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fragments.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/numeric.h"
#include "kernels/cuda/ptx.h"

namespace bam::cuda {
namespace {

constexpr int kStepBytes = 32;  // k of one mma: 16 elements of 16 bits or 32 of 8 bits
constexpr int kPad = 16;

// kRows x kCols outputs per block by kWarpRows x kWarpCols warps; kDepth bytes of k per stage.
template <int kRows_, int kCols_, int kWarpRows_, int kWarpCols_, int kDepth_, int kStages_>
struct Shape {
  static constexpr int kRows = kRows_, kCols = kCols_, kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
  static constexpr int kDepth = kDepth_, kStages = kStages_;
  static constexpr int kThreads = kWarpRows * kWarpCols * 32;
  static constexpr int kTilesM = kRows / kWarpRows / 16;  // 16x8 tiles of one warp
  static constexpr int kTilesN = kCols / kWarpCols / 8;
  static constexpr int kRowBytes = kDepth + kPad;
  static constexpr int kStageBytes = (kRows + kCols) * kRowBytes;
  static constexpr size_t kSharedBytes = static_cast<size_t>(kStages) * kStageBytes;
};
using Narrow = Shape<16, 8, 1, 1, 128, 4>;   // one warp: so that a small matrix still fills a device
using Decode = Shape<16, 32, 1, 4, 128, 4>;  // streams weights
using Few = Shape<32, 32, 1, 4, 128, 4>;
using Some = Shape<64, 32, 2, 2, 64, 4>;
using Medium = Shape<64, 64, 2, 2, 64, 3>;
using Large = Shape<128, 128, 2, 4, 64, 3>;

struct F16 {
  using Element = __half;
  using Accumulator = float;
  static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16_f16(d, a, b);
  }
};
struct BF16 {
  using Element = __nv_bfloat16;
  using Accumulator = float;
  static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16_bf16(d, a, b);
  }
};
struct I8 {
  using Element = int8_t;
  using Accumulator = int32_t;
  static __device__ __forceinline__ void mma(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k32_s8(d, a, b);
  }
};

// The pieces of 16 bytes that one thread copies of every stage: its rows are found once, only k advances. Rows outside the
// matrix repeat its last one, and what comes of them is not stored.
template <typename S, int kCount>
struct Copies {
  static constexpr int kChunks = S::kDepth / 16, kRowsAtOnce = S::kThreads / kChunks, kPieces = kCount / kRowsAtOnce;
  static_assert(kCount % kRowsAtOnce == 0);
  const unsigned char* from[kPieces];

  __device__ __forceinline__ Copies(const void* matrix, long long row_bytes, long long first, long long rows) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const long long row = first + thread / kChunks + i * kRowsAtOnce;
      from[i] = static_cast<const unsigned char*>(matrix) + (row < rows ? row : rows - 1) * row_bytes +
                16 * (thread % kChunks);
    }
  }
  // bytes: 16, or 0 past the end of k, where the stage gets zeros.
  __device__ __forceinline__ void start(SharedAddress to, int bytes) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      cp_async_16(to + i * kRowsAtOnce * S::kRowBytes, from[i], bytes);
      from[i] += S::kDepth;
    }
  }
};

// One 32-byte step of k: this warp's tiles of x and w from shared memory, then all its mma. x, w: the rows that this
// lane names in an ldmatrix, at this k.
template <typename Type, typename S>
__device__ __forceinline__ void multiply_step(SharedAddress x, SharedAddress w,
                                              typename Type::Accumulator (&sum)[S::kTilesM][S::kTilesN][4]) {
  uint32_t a[S::kTilesM][4];
#pragma unroll
  for (int m = 0; m < S::kTilesM; ++m) ldmatrix_x4(a[m], x + 16 * m * S::kRowBytes);
  if constexpr (S::kTilesN == 1) {
    uint32_t b[2];
    ldmatrix_x2(b, w);
#pragma unroll
    for (int m = 0; m < S::kTilesM; ++m) Type::mma(sum[m][0], a[m], b);
  } else {
#pragma unroll
    for (int n = 0; n < S::kTilesN; n += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, w + 8 * n * S::kRowBytes);
      const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
#pragma unroll
      for (int m = 0; m < S::kTilesM; ++m) {
        Type::mma(sum[m][n], a[m], first);
        Type::mma(sum[m][n + 1], a[m], second);
      }
    }
  }
}

template <typename T>
__device__ __forceinline__ void store_one(const GemmArgs& args, long long at, float value) {
  if (args.output == GemmOutput::kOperand) {
    static_cast<T*>(args.out)[at] = from_float<T>(value);
  } else if (args.output == GemmOutput::kAddFloat) {
    static_cast<float*>(args.out)[at] += value;
  } else {
    static_cast<float*>(args.out)[at] = value;
  }
}

// Four neighbours of a row; `at` is a multiple of four.
template <typename T>
__device__ __forceinline__ void store_four(const GemmArgs& args, long long at, const float (&value)[4]) {
  if (args.output == GemmOutput::kOperand) {
    struct alignas(4 * sizeof(T)) Four {
      T value[4];
    };
    *reinterpret_cast<Four*>(static_cast<T*>(args.out) + at) = {
        {from_float<T>(value[0]), from_float<T>(value[1]), from_float<T>(value[2]), from_float<T>(value[3])}};
    return;
  }
  auto* out = reinterpret_cast<float4*>(static_cast<float*>(args.out) + at);
  const float4 old = args.output == GemmOutput::kAddFloat ? *out : float4{0, 0, 0, 0};
  const bool adds = args.output == GemmOutput::kAddFloat;
  *out = {adds ? old.x + value[0] : value[0], adds ? old.y + value[1] : value[1], adds ? old.z + value[2] : value[2],
          adds ? old.w + value[3] : value[3]};
}

// row0, col0: of this warp's tiles.
template <typename Type, typename S, typename T>
__device__ __forceinline__ void store_tiles(const GemmArgs& args, long long row0, long long col0,
                                            const typename Type::Accumulator (&sum)[S::kTilesM][S::kTilesN][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool wide = args.n % 4 == 0 && reinterpret_cast<uintptr_t>(args.out) % 16 == 0, odd = lane % 2 != 0;
#pragma unroll
  for (int m = 0; m < S::kTilesM; ++m) {
#pragma unroll
    for (int n = 0; n < S::kTilesN; ++n) {
      const auto& mine = sum[m][n];
      if (wide) {
        // Neighbouring lanes hold two columns of the same two rows: each gives one pair away and stores four of one row.
        const auto first = __shfl_xor_sync(kAllLanes, odd ? mine[0] : mine[2], 1);
        const auto second = __shfl_xor_sync(kAllLanes, odd ? mine[1] : mine[3], 1);
        const long long row = row0 + 16 * m + fragments::c_row(lane, odd ? 2 : 0);
        const long long col = col0 + 8 * n + fragments::c_col(lane - (odd ? 1 : 0), 0);
        if (row >= args.rows || col >= args.n) continue;
        float value[4] = {static_cast<float>(odd ? first : mine[0]), static_cast<float>(odd ? second : mine[1]),
                          static_cast<float>(odd ? mine[2] : first), static_cast<float>(odd ? mine[3] : second)};
        if (args.x_scale != nullptr) {
#pragma unroll
          for (int i = 0; i < 4; ++i) value[i] = value[i] * (args.x_scale[row] * args.w_scale[col + i]);
        }
        store_four<T>(args, row * args.n + col, value);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const long long row = row0 + 16 * m + fragments::c_row(lane, i), col = col0 + 8 * n + fragments::c_col(lane, i);
        if (row >= args.rows || col >= args.n) continue;
        float value = static_cast<float>(mine[i]);
        if (args.x_scale != nullptr) value = value * (args.x_scale[row] * args.w_scale[col]);
        store_one<T>(args, row * args.n + col, value);
      }
    }
  }
}

// grid: (row tiles, column tiles): blocks that run together share their tile of w.
template <typename Type, typename S, typename T>
__global__ void __launch_bounds__(S::kThreads) gemm_mma_kernel(GemmArgs args) {
  using Accumulator = typename Type::Accumulator;
  BAM_DYNAMIC_SHARED(unsigned char, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const long long row0 = static_cast<long long>(blockIdx.x) * S::kRows,
                  col0 = static_cast<long long>(blockIdx.y) * S::kCols;
  const int warp_row = warp / S::kWarpCols * (16 * S::kTilesM), warp_col = warp % S::kWarpCols * (8 * S::kTilesN);
  // Rows are zero from k to ldk, which is a multiple of 16 bytes.
  const auto row_bytes = static_cast<int>(args.ldk * static_cast<long long>(sizeof(typename Type::Element)));
  const int steps = (row_bytes + S::kDepth - 1) / S::kDepth;

  // Where this lane's rows of an ldmatrix are inside a stage; the second half of the lanes means nothing to an x2.
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = fragments::ldmatrix_matrix(lane),
            row = fragments::ldmatrix_row(lane);
  const int x_row =
      (warp_row + fragments::a_matrix_row(matrix) + row) * S::kRowBytes + 2 * fragments::a_matrix_col(matrix);
  const int n_row = S::kTilesN == 1 ? 0 : fragments::b_matrix_n(matrix);
  const int w_row = (S::kRows + warp_col + n_row + row) * S::kRowBytes + 2 * fragments::b_matrix_k(matrix);

  Copies<S, S::kRows> x_copies(args.x, row_bytes, row0, args.rows);
  Copies<S, S::kCols> w_copies(args.w, row_bytes, col0, args.n);
  constexpr int kChunks = S::kDepth / 16;
  const int thread = static_cast<int>(threadIdx.x), own = thread / kChunks * S::kRowBytes + 16 * (thread % kChunks);
  const SharedAddress base = shared_address(shared), to = base + own;
  int left = row_bytes - 16 * (thread % kChunks);  // of k, from this thread's piece of the next stage on
  // `at`: where the stage lies. Past the end of k groups hold zeros, which keeps the count of groups right.
  const auto start = [&](int at) {
    const int bytes = left > 0 ? 16 : 0;
    x_copies.start(to + at, bytes);
    w_copies.start(to + at + S::kRows * S::kRowBytes, bytes);
    left -= S::kDepth;
    cp_async_commit();
  };

  Accumulator sum[S::kTilesM][S::kTilesN][4] = {};
#pragma unroll
  for (int step = 0; step < S::kStages - 1; ++step) start(step * S::kStageBytes);
  int at = 0, last = (S::kStages - 1) * S::kStageBytes;
#pragma unroll 1  // twice the loop would not fit the registers
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // the stage is here for everybody, and the one before it is read by nobody
    start(last);
#pragma unroll
    for (int k = 0; k < S::kDepth; k += kStepBytes) {
      multiply_step<Type, S>(base + at + x_row + k, base + at + w_row + k, sum);
    }
    last = at;
    at = at == (S::kStages - 1) * S::kStageBytes ? 0 : at + S::kStageBytes;
  }
  cp_async_wait<0>();
  store_tiles<Type, S, T>(args, row0 + warp_row, col0 + warp_col, sum);
}

template <typename Type, typename S, typename T>
void launch_mma(const GemmArgs& args, const Queue& queue) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, S::kRows)),
                  static_cast<unsigned>(ceil_div(args.n, S::kCols)));
  check(launch(gemm_mma_kernel<Type, S, T>, grid, dim3(S::kThreads), S::kSharedBytes, queue, args), "gemm_mma_kernel");
}

// The largest tile of which there are enough to fill a device: 64 is a little more than half an A100. The choice changes
// no bit of the result.
template <typename Type, typename T>
void choose_shape(const GemmArgs& args, const Queue& queue) {
  const auto fills = [&]<typename S>(std::type_identity<S>) {
    return ceil_div(args.rows, S::kRows) * ceil_div(args.n, S::kCols) >= 64;
  };
  if (args.rows <= Few::kRows) {
    if (args.rows > Decode::kRows && fills(std::type_identity<Few>())) return launch_mma<Type, Few, T>(args, queue);
    if (args.rows <= Decode::kRows && fills(std::type_identity<Decode>())) {
      return launch_mma<Type, Decode, T>(args, queue);
    }
    return launch_mma<Type, Narrow, T>(args, queue);
  }
  if (fills(std::type_identity<Large>())) return launch_mma<Type, Large, T>(args, queue);
  if (fills(std::type_identity<Medium>())) return launch_mma<Type, Medium, T>(args, queue);
  launch_mma<Type, Some, T>(args, queue);
}

}  // namespace

void gemm_mma(const GemmArgs& args, const Queue& queue) {
  if (args.weight == DType::kI8) {
    with_float_type(args.operand, [&](auto type) { choose_shape<I8, typename decltype(type)::type>(args, queue); });
  } else if (args.weight == DType::kF16) {
    choose_shape<F16, __half>(args, queue);
  } else {
    choose_shape<BF16, __nv_bfloat16>(args, queue);
  }
}

void prepare_gemm_mma() {
  const auto allow = [](auto kernel) {
    check(allow_shared(kernel, Large::kSharedBytes), "cudaFuncSetAttribute(gemm_mma)");
  };
  static_assert(Few::kSharedBytes <= kDefaultSharedBytes && Some::kSharedBytes <= kDefaultSharedBytes &&
                Medium::kSharedBytes <= kDefaultSharedBytes);
  allow(gemm_mma_kernel<F16, Large, __half>);
  allow(gemm_mma_kernel<BF16, Large, __nv_bfloat16>);
  allow(gemm_mma_kernel<I8, Large, float>);
  allow(gemm_mma_kernel<I8, Large, __half>);
  allow(gemm_mma_kernel<I8, Large, __nv_bfloat16>);
}

}  // namespace bam::cuda
