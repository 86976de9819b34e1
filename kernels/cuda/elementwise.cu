// Everything between the matrix products that touches each number once: bound by memory, one thread block per row or
// per 256 elements.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/numeric.h"

namespace bam::cuda {
namespace {

constexpr int kThreads = 128;

// grid: rows
template <typename T>
__global__ void __launch_bounds__(kThreads) embed_kernel(const T* table, const int32_t* tokens, int hidden, float* x) {
  const long long row = blockIdx.x;
  const T* from = table + static_cast<long long>(tokens[row]) * hidden;
  for (int d = static_cast<int>(threadIdx.x); d < hidden; d += kThreads) x[row * hidden + d] = to_float(from[d]);
}

// grid: rows. turns: of one position, in units of 2^-64, so that whole turns of any position vanish without a rounding.
__global__ void __launch_bounds__(kThreads)
    sinusoidal_kernel(const int32_t* positions, const unsigned long long* turns, int hidden, float* x) {
  const long long row = blockIdx.x;
  const auto position = static_cast<unsigned long long>(positions[row]);
  for (int d = static_cast<int>(threadIdx.x); d < hidden; d += kThreads) {
    const auto half_turns = static_cast<float>(static_cast<int>(position * turns[d] >> 32)) * 0x1p-31f;
    x[row * hidden + d] += d % 2 == 0 ? sinpif(half_turns) : cospif(half_turns);
  }
}

// grid: rows
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, const float* weight, float eps, int hidden, T* out) {
  BAM_SHARED(float, partial, [kThreads / 32]);
  const long long row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const float* from = x + row * hidden;
  float squares = 0;
  for (int d = thread; d < hidden; d += kThreads) squares = fmaf(from[d], from[d], squares);
  squares = warp_sum(squares);
  if (thread % 32 == 0) partial[thread / 32] = squares;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  const float inverse = 1.0f / sqrtf(total / static_cast<float>(hidden) + eps);
  for (int d = thread; d < hidden; d += kThreads) out[row * hidden + d] = from_float<T>(from[d] * inverse * weight[d]);
}

// grid: (elements of a row / kThreads, rows)
template <typename T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const T* in, int intermediate, T* out) {
  const long long row = blockIdx.y;
  const int d = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (d >= intermediate) return;
  const float gate = to_float(in[row * 2 * intermediate + d]);
  const float up = to_float(in[row * 2 * intermediate + intermediate + d]);
  // exp of a negative number only, so that nothing overflows.
  const float e = expf(-fabsf(gate));
  const float sigmoid = (gate >= 0 ? 1.0f : e) / (1.0f + e);
  out[row * intermediate + d] = from_float<T>(gate * sigmoid * up);
}

// grid: rows
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const float* in, const int32_t* rows, int hidden, float* out) {
  const long long row = blockIdx.x;
  const float* from = in + static_cast<long long>(rows[row]) * hidden;
  for (int d = static_cast<int>(threadIdx.x); d < hidden; d += kThreads) out[row * hidden + d] = from[d];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) to_float_kernel(const T* in, long long count, float* out) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = to_float(in[i]);
}

__global__ void __launch_bounds__(kThreads)
    bias_table_kernel(HeadBias bias, long long begin, long long end, float* table) {
  const long long d = begin + static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (d < end) table[d] = static_cast<float>(bias.value(d));
}

__global__ void __launch_bounds__(kThreads) patch_tables_kernel(const TablePatch* patches, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count && patches[i].at != nullptr) *patches[i].at = patches[i].page;
}

dim3 blocks(int64_t count) { return dim3(static_cast<unsigned>(count)); }

// grid: (pages, parts of a page)
__global__ void __launch_bounds__(kThreads)
    move_pages_kernel(uint4* packed, uint4* cache, const int32_t* pages, long long words, bool to_cache) {
  uint4* const one = packed + static_cast<long long>(blockIdx.x) * words;
  uint4* const other = cache + pages[blockIdx.x] * words;
  const uint4* const from = to_cache ? one : other;
  uint4* const to = to_cache ? other : one;
  for (long long i = static_cast<long long>(blockIdx.y) * kThreads + threadIdx.x; i < words;
       i += static_cast<long long>(gridDim.y) * kThreads) {
    to[i] = from[i];
  }
}

}  // namespace

void move_pages(std::byte* packed, const KvCacheView& cache, const int32_t* pages, int count, bool to_cache,
                const Queue& queue) {
  BAM_CHECK(cache.layout.page_bytes() % sizeof(uint4) == 0);
  if (count == 0) return;
  const auto words = static_cast<long long>(cache.layout.page_bytes() / sizeof(uint4));
  const dim3 grid(static_cast<unsigned>(count),
                  static_cast<unsigned>(std::min<int64_t>(ceil_div(words, 4 * kThreads), 64)));
  check(launch(move_pages_kernel, grid, dim3(kThreads), 0, queue, reinterpret_cast<uint4*>(packed),
               reinterpret_cast<uint4*>(cache.base), pages, words, to_cache),
        "move_pages_kernel");
}

void patch_tables(const TablePatch* patches, int count, const Queue& queue) {
  check(launch(patch_tables_kernel, blocks(ceil_div(count, kThreads)), dim3(kThreads), 0, queue, patches, count),
        "patch_tables_kernel");
}

void embed_rows(const void* table, DType dtype, const int32_t* tokens, FloatRows x, const Queue& queue) {
  with_float_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    check(launch(embed_kernel<T>, blocks(x.count), dim3(kThreads), 0, queue, static_cast<const T*>(table), tokens,
                 static_cast<int>(x.width), x.data),
          "embed_kernel");
  });
}

void add_sinusoidal_rows(const int32_t* positions, const unsigned long long* turns, FloatRows x, const Queue& queue) {
  check(launch(sinusoidal_kernel, blocks(x.count), dim3(kThreads), 0, queue, positions, turns,
               static_cast<int>(x.width), x.data),
        "sinusoidal_kernel");
}

void rms_norm_rows(ConstFloatRows x, const float* weight, float eps, DType operand, OperandRows out,
                   const Queue& queue) {
  BAM_CHECK(out.count == x.count && out.width == x.width);
  with_float_type(operand, [&](auto type) {
    using T = typename decltype(type)::type;
    check(launch(rms_norm_kernel<T>, blocks(x.count), dim3(kThreads), 0, queue, x.data, weight, eps,
                 static_cast<int>(x.width), static_cast<T*>(out.data)),
          "rms_norm_kernel");
  });
}

void swiglu_rows(DType operand, ConstOperandRows in, OperandRows out, const Queue& queue) {
  BAM_CHECK(in.count == out.count && in.width == 2 * out.width);
  with_float_type(operand, [&](auto type) {
    using T = typename decltype(type)::type;
    // The second grid dimension ends at 65535.
    constexpr int64_t kRowsAtOnce = 32768;
    for (int64_t first = 0; first < out.count; first += kRowsAtOnce) {
      const dim3 grid(static_cast<unsigned>(ceil_div(out.width, kThreads)),
                      static_cast<unsigned>(std::min(kRowsAtOnce, out.count - first)));
      check(launch(swiglu_kernel<T>, grid, dim3(kThreads), 0, queue, static_cast<const T*>(in.data) + first * in.width,
                   static_cast<int>(out.width), static_cast<T*>(out.data) + first * out.width),
            "swiglu_kernel");
    }
  });
}

void gather_float_rows(ConstFloatRows in, const int32_t* rows, FloatRows out, const Queue& queue) {
  BAM_CHECK(in.width == out.width);
  check(launch(gather_kernel, blocks(out.count), dim3(kThreads), 0, queue, in.data, rows, static_cast<int>(in.width),
               out.data),
        "gather_kernel");
}

void operands_to_float(DType operand, ConstOperandRows in, FloatRows out, const Queue& queue) {
  BAM_CHECK(in.count == out.count && in.width == out.width);
  with_float_type(operand, [&](auto type) {
    using T = typename decltype(type)::type;
    check(launch(to_float_kernel<T>, blocks(ceil_div(in.size(), kThreads)), dim3(kThreads), 0, queue,
                 static_cast<const T*>(in.data), in.size(), out.data),
          "to_float_kernel");
  });
}

void fill_bias_table(const HeadBias& bias, int64_t begin, int64_t end, float* table, const Queue& queue) {
  if (begin >= end) return;
  check(launch(bias_table_kernel, blocks(ceil_div(end - begin, kThreads)), dim3(kThreads), 0, queue, bias, begin, end,
               table),
        "bias_table_kernel");
}

}  // namespace bam::cuda
