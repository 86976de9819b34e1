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
using Decode = Shape<16, 32, 1, 4, 128, 4>;  // streams weights; 16 rows of x at most are in use
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

// Starts copying `kCount` rows from `first` on, bytes [k0, k0 + kDepth) of each; zeros outside the matrix.
template <typename S, int kCount>
__device__ __forceinline__ void copy_rows(unsigned char* shared, const unsigned char* matrix, long long ld_bytes,
                                          long long first, long long rows, long long k0, long long k_bytes) {
  constexpr int kChunks = S::kDepth / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kCount * kChunks; i += S::kThreads) {
    const int r = i / kChunks, c = i % kChunks;
    const long long at = k0 + 16 * c, left = k_bytes - at;
    const bool inside = first + r < rows && left > 0;
    const int bytes = inside ? static_cast<int>(left < 16 ? left : 16) : 0;
    cp_async<16>(shared + r * S::kRowBytes + 16 * c, inside ? matrix + (first + r) * ld_bytes + at : matrix, bytes);
  }
}

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

template <typename Type, typename S, typename T>
__device__ __forceinline__ void store_tiles(const GemmArgs& args, long long row0, long long col0,
                                            const typename Type::Accumulator (&sum)[S::kTilesM][S::kTilesN][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < S::kTilesM; ++m) {
#pragma unroll
    for (int n = 0; n < S::kTilesN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const long long row = row0 + 16 * m + fragments::c_row(lane, i), col = col0 + 8 * n + fragments::c_col(lane, i);
        if (row >= args.rows || col >= args.n) continue;
        float value = static_cast<float>(sum[m][n][i]);
        if (args.x_scale != nullptr) value = value * (args.x_scale[row] * args.w_scale[col]);
        const long long at = row * args.n + col;
        if (args.output == GemmOutput::kOperand) {
          static_cast<T*>(args.out)[at] = from_float<T>(value);
        } else if (args.output == GemmOutput::kAddFloat) {
          static_cast<float*>(args.out)[at] += value;
        } else {
          static_cast<float*>(args.out)[at] = value;
        }
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
  const long long k_bytes = args.k * static_cast<long long>(sizeof(typename Type::Element));
  const long long ld_bytes = args.ldk * static_cast<long long>(sizeof(typename Type::Element));
  const int steps = static_cast<int>((k_bytes + S::kDepth - 1) / S::kDepth);

  // Where this lane's rows of an ldmatrix are inside a stage; the second half of the lanes means nothing to an x2.
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = fragments::ldmatrix_matrix(lane),
            row = fragments::ldmatrix_row(lane);
  const int x_row =
      (warp_row + fragments::a_matrix_row(matrix) + row) * S::kRowBytes + 2 * fragments::a_matrix_col(matrix);
  const int n_row = S::kTilesN == 1 ? 0 : fragments::b_matrix_n(matrix);
  const int w_row = (S::kRows + warp_col + n_row + row) * S::kRowBytes + 2 * fragments::b_matrix_k(matrix);

  const auto start = [&](int step) {
    if (step < steps) {
      unsigned char* stage = shared + step % S::kStages * S::kStageBytes;
      const long long k0 = static_cast<long long>(step) * S::kDepth;
      copy_rows<S, S::kRows>(stage, static_cast<const unsigned char*>(args.x), ld_bytes, row0, args.rows, k0, k_bytes);
      copy_rows<S, S::kCols>(stage + S::kRows * S::kRowBytes, static_cast<const unsigned char*>(args.w), ld_bytes, col0,
                             args.n, k0, k_bytes);
    }
    cp_async_commit();  // an empty group keeps the count of groups right at the end
  };

  Accumulator sum[S::kTilesM][S::kTilesN][4] = {};
#pragma unroll
  for (int step = 0; step < S::kStages - 1; ++step) start(step);
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // the stage is here for everybody, and the one before it is read by nobody
    start(step + S::kStages - 1);
    const SharedAddress stage = shared_address(shared + step % S::kStages * S::kStageBytes);
#pragma unroll
    for (int k = 0; k < S::kDepth; k += kStepBytes) multiply_step<Type, S>(stage + x_row + k, stage + w_row + k, sum);
  }
  store_tiles<Type, S, T>(args, row0 + warp_row, col0 + warp_col, sum);
}

template <typename Type, typename S, typename T>
void launch_mma(const GemmArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, S::kRows)),
                  static_cast<unsigned>(ceil_div(args.n, S::kCols)));
  check(launch(gemm_mma_kernel<Type, S, T>, grid, dim3(S::kThreads), S::kSharedBytes, stream, args), "gemm_mma_kernel");
}

template <typename Type, typename T>
void choose_shape(const GemmArgs& args, cudaStream_t stream) {
  if (args.rows <= 32) return launch_mma<Type, Decode, T>(args, stream);
  // Large tiles need enough of them to fill a device; 64 is a little more than half an A100.
  if (ceil_div(args.rows, 128) * ceil_div(args.n, 128) >= 64) return launch_mma<Type, Large, T>(args, stream);
  launch_mma<Type, Medium, T>(args, stream);
}

}  // namespace

void gemm_mma(const GemmArgs& args, cudaStream_t stream) {
  if (args.weight == DType::kI8) {
    with_float_type(args.operand, [&](auto type) { choose_shape<I8, typename decltype(type)::type>(args, stream); });
  } else if (args.weight == DType::kF16) {
    choose_shape<F16, __half>(args, stream);
  } else {
    choose_shape<BF16, __nv_bfloat16>(args, stream);
  }
}

void prepare_gemm_mma() {
  const auto allow = [](auto kernel) {
    check(allow_shared(kernel, Large::kSharedBytes), "cudaFuncSetAttribute(gemm_mma)");
  };
  static_assert(Decode::kSharedBytes <= kDefaultSharedBytes && Medium::kSharedBytes <= kDefaultSharedBytes);
  allow(gemm_mma_kernel<F16, Large, __half>);
  allow(gemm_mma_kernel<BF16, Large, __nv_bfloat16>);
  allow(gemm_mma_kernel<I8, Large, float>);
  allow(gemm_mma_kernel<I8, Large, __half>);
  allow(gemm_mma_kernel<I8, Large, __nv_bfloat16>);
}

}  // namespace bam::cuda
