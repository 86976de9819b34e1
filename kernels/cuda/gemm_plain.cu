// Matrix products without tensor cores: any format on any device, float32 (or exact int32) arithmetic. Also the per-row
// quantisation of activations for int8, and what is left to do after the products of another library.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/numeric.h"

namespace bam::cuda {
namespace {

constexpr int kTile = 32;      // rows and columns of a block's output
constexpr int kDepth = 32;     // k taken to shared memory at a time
constexpr int kThreads = 256;  // each computes 2 x 2 outputs

template <typename T>
__device__ __forceinline__ void store_output(const GemmArgs& args, long long row, long long col, float value) {
  const long long at = row * args.n + col;
  switch (args.output) {
    case GemmOutput::kOperand: static_cast<T*>(args.out)[at] = from_float<T>(value); return;
    case GemmOutput::kAddFloat: static_cast<float*>(args.out)[at] += value; return;
    case GemmOutput::kFloat: static_cast<float*>(args.out)[at] = value; return;
  }
}

__device__ __forceinline__ float load_element(float value) { return value; }
__device__ __forceinline__ float load_element(__half value) { return to_float(value); }
__device__ __forceinline__ float load_element(__nv_bfloat16 value) { return to_float(value); }
__device__ __forceinline__ int load_element(int8_t value) { return value; }

__device__ __forceinline__ void accumulate(float& sum, float a, float b) { sum = fmaf(a, b, sum); }
__device__ __forceinline__ void accumulate(int& sum, int a, int b) { sum += a * b; }

// [first .. first + kTile) rows of a row-major matrix, columns k0 .. k0 + kDepth, transposed into `tile`; zeros
// outside.
template <typename In, typename Acc>
__device__ __forceinline__ void load_tile(const In* matrix, long long ld, long long first, long long rows, long long k0,
                                          long long k, Acc (&tile)[kDepth][kTile + 1]) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int r = i / kDepth, d = i % kDepth;
    const bool inside = first + r < rows && k0 + d < k;
    tile[d][r] = inside ? load_element(matrix[(first + r) * ld + k0 + d]) : Acc(0);
  }
}

// grid: (columns / 32, rows / 32). T: format of the output; X, W: of the inputs; Acc: of the sums.
template <typename T, typename X, typename W, typename Acc>
__global__ void __launch_bounds__(kThreads) gemm_plain_kernel(GemmArgs args) {
  BAM_SHARED(Acc, x_tile, [kDepth][kTile + 1]);
  BAM_SHARED(Acc, w_tile, [kDepth][kTile + 1]);
  const long long row0 = static_cast<long long>(blockIdx.y) * kTile, col0 = static_cast<long long>(blockIdx.x) * kTile;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  Acc sum[2][2] = {};
  for (long long k0 = 0; k0 < args.k; k0 += kDepth) {
    load_tile(static_cast<const X*>(args.x), args.ldk, row0, args.rows, k0, args.k, x_tile);
    load_tile(static_cast<const W*>(args.w), args.ldk, col0, args.n, k0, args.k, w_tile);
    __syncthreads();
    const int depth = static_cast<int>(args.k - k0 < kDepth ? args.k - k0 : kDepth);
    for (int d = 0; d < depth; ++d) {
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) accumulate(sum[i][j], x_tile[d][ty + 16 * i], w_tile[d][tx + 16 * j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const long long row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;
      if (row >= args.rows || col >= args.n) continue;
      float value = static_cast<float>(sum[i][j]);
      if (args.x_scale != nullptr) value = value * (args.x_scale[row] * args.w_scale[col]);
      store_output<T>(args, row, col, value);
    }
  }
}

// grid: rows; one warp per row. A NaN in the row becomes its scale, and so the result.
template <typename T>
__global__ void __launch_bounds__(32)
    quantize_kernel(const T* x, long long k, long long ldk, int8_t* out, float* scale) {
  const long long row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  float largest = 0;
  for (long long d = lane; d < k; d += 32) largest = max_or_nan(largest, fabsf(to_float(x[row * k + d])));
  for (int step = 16; step > 0; step /= 2) largest = max_or_nan(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  for (long long d = lane; d < ldk; d += 32) {
    const float code = d < k ? rintf(to_float(x[row * k + d]) * inverse) : 0.0f;
    out[row * ldk + d] = static_cast<int8_t>(static_cast<int>(fminf(fmaxf(code, -127.0f), 127.0f)));
  }
  if (lane == 0) scale[row] = largest / 127.0f;
}

// grid: (columns / kThreads, rows)
template <typename T>
__global__ void __launch_bounds__(kThreads) scale_kernel(GemmArgs args, const int32_t* products) {
  const long long row = blockIdx.y, col = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (col >= args.n) return;
  const float value = static_cast<float>(products[row * args.n + col]) * (args.x_scale[row] * args.w_scale[col]);
  store_output<T>(args, row, col, value);
}

__global__ void __launch_bounds__(kThreads) clamp_kernel(__half* values, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = from_float<__half>(to_float(values[i]));
}

template <typename T, typename X, typename W, typename Acc>
void launch_plain(const GemmArgs& args, const Queue& queue) {
  constexpr int64_t kRowsAtOnce = 65535 * static_cast<int64_t>(kTile);  // the second grid dimension ends at 65535
  BAM_CHECK(args.rows <= kRowsAtOnce);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.n, kTile)), static_cast<unsigned>(ceil_div(args.rows, kTile)));
  check(launch(gemm_plain_kernel<T, X, W, Acc>, grid, dim3(kThreads), 0, queue, args), "gemm_plain_kernel");
}

}  // namespace

void gemm_plain(const GemmArgs& args, const Queue& queue) {
  with_float_type(args.operand, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.weight == DType::kI8) return launch_plain<T, int8_t, int8_t, int>(args, queue);
    with_float_type(args.weight,
                    [&](auto weight) { launch_plain<T, T, typename decltype(weight)::type, float>(args, queue); });
  });
}

void scale_products(const GemmArgs& args, const int32_t* products, const Queue& queue) {
  BAM_CHECK(args.rows <= 65535);  // a step's rows
  with_float_type(args.operand, [&](auto type) {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.n, kThreads)), static_cast<unsigned>(args.rows));
    check(launch(scale_kernel<typename decltype(type)::type>, grid, dim3(kThreads), 0, queue, args, products),
          "scale_kernel");
  });
}

void clamp_halves(OperandRows values, const Queue& queue) {
  check(launch(clamp_kernel, dim3(static_cast<unsigned>(ceil_div(values.size(), kThreads))), dim3(kThreads), 0, queue,
               static_cast<__half*>(values.data), values.size()),
        "clamp_kernel");
}

void quantize_rows(DType operand, ConstOperandRows x, Rows<int8_t> out, float* scale, const Queue& queue) {
  BAM_CHECK(out.count == x.count && out.width >= x.width);
  with_float_type(operand, [&](auto type) {
    using T = typename decltype(type)::type;
    check(launch(quantize_kernel<T>, dim3(static_cast<unsigned>(x.count)), dim3(32), 0, queue,
                 static_cast<const T*>(x.data), x.width, out.width, out.data, scale),
          "quantize_kernel");
  });
}

}  // namespace bam::cuda
