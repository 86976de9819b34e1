// Host entry points of the kernels that are not attention. All pointers are device memory, everything is issued on
// `stream` and returns at once. `operand` is kF32, kF16 or kBF16, the format of inputs and outputs of linear layers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/draw.h"
#include "kernels/dtype.h"
#include "kernels/head_bias.h"

namespace bam::cuda {

// ---- elementwise.cu ----

// x[r, :] = table[tokens[r], :]; table [vocab, hidden] of kF32, kF16 or kBF16.
void embed_rows(const void* table, DType dtype, const int32_t* tokens, int64_t rows, int64_t hidden, float* x,
                const Queue& queue);
// x[r, :] += sinusoidal vector of positions[r]; turns [hidden]: by which angles advance from one position to the next, in
// units of 2^-64.
void add_sinusoidal_rows(const int32_t* positions, int64_t rows, const unsigned long long* turns, int64_t hidden,
                         float* x, const Queue& queue);
void rms_norm_rows(const float* x, const float* weight, float eps, int64_t rows, int64_t hidden, DType operand,
                   void* out, const Queue& queue);
// in [rows, 2 * intermediate] = gate | up.
void swiglu_rows(DType operand, const void* in, int64_t rows, int64_t intermediate, void* out, const Queue& queue);
void gather_float_rows(const float* in, const int32_t* rows, int64_t count, int64_t hidden, float* out,
                       const Queue& queue);
void operands_to_float(DType operand, const void* in, int64_t count, float* out, const Queue& queue);

// Pages of `bytes` (a multiple of 16) between a cache and `packed`, where they lie one behind the other.
void move_pages(void* packed, void* cache, const int32_t* pages, int count, size_t bytes, bool to_cache,
                const Queue& queue);

// One entry of a block table that has changed; null: none.
struct TablePatch {
  int32_t* at;
  int32_t page;
};
void patch_tables(const TablePatch* patches, int count, const Queue& queue);

// table[d] = B(d) for d in [begin, end), computed in double and rounded once.
void fill_bias_table(const HeadBias& bias, int64_t begin, int64_t end, float* table, const Queue& queue);

// ---- draw.cu ----

// The lists of a DrawBatch on the device.
struct DrawLists {
  const SeenToken* seen = nullptr;
  const TokenBias* biases = nullptr;
  const int32_t* banned = nullptr;
  friend bool operator==(const DrawLists&, const DrawLists&) = default;
};
// tokens[i] = what row i of `rows` draws from logits [any, vocab], vocab <= kMaxDrawVocab; work [num_rows, vocab].
void draw_rows(const DrawRow* rows, int num_rows, const DrawLists& lists, const float* logits, int64_t vocab,
               float* work, int32_t* tokens, const Queue& queue);

// ---- gemm_plain.cu, gemm_mma.cu ----

enum class GemmOutput { kOperand, kAddFloat, kFloat };

// out[m, n] = sum over k of x[m, k] * w[n, k]. Every output is one chain of sums over ascending k, so its bits depend
// on its own row of x and row of w only, whatever the other rows and the size of the tile it was computed in.
struct GemmArgs {
  const void* x = nullptr;         // [rows, ldk] operands, or int8 when quantised
  const void* w = nullptr;         // [n, ldk] of `weight`
  const float* x_scale = nullptr;  // [rows] int8
  const float* w_scale = nullptr;  // [n] int8
  int64_t rows = 0, k = 0, n = 0;
  int64_t ldk = 0;              // elements between rows of x and of w
  DType operand = DType::kF32;  // of x (unless quantised) and of kOperand output
  DType weight = DType::kF32;   // kF32, kF16, kBF16, kI8
  void* out = nullptr;          // [rows, n]
  GemmOutput output = GemmOutput::kOperand;
  friend bool operator==(const GemmArgs&, const GemmArgs&) = default;
};
// Any combination, any device.
void gemm_plain(const GemmArgs& args, const Queue& queue);
// Tensor cores: 16-bit weights of the operands' own format, or int8. ldk must be a multiple of 16 bytes.
void gemm_mma(const GemmArgs& args, const Queue& queue);
// Raises the limits of shared memory of the kernels above, once per device.
void prepare_gemm_mma();

// int8 products [rows, n] of another library -> args.out, with scales; the same bits as gemm_mma().
void scale_products(const GemmArgs& args, const int32_t* products, const Queue& queue);

// Infinite float16 results of another library -> the largest float16, as own kernels round.
void clamp_halves(void* values, int64_t count, const Queue& queue);

// Per-row symmetric int8: out [rows, ldk] with zeros from k to ldk, scale [rows].
void quantize_rows(DType operand, const void* x, int64_t rows, int64_t k, int64_t ldk, int8_t* out, float* scale,
                   const Queue& queue);

}  // namespace bam::cuda
