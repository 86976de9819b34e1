// Host entry points of the kernels that are not attention. Rows and all pointers are device memory, everything is issued
// on `queue` and returns at once; rows whose shapes do not belong together are refused. `operand` is kF32, kF16 or kBF16, the format of inputs and outputs of linear layers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/draw.h"
#include "kernels/dtype.h"
#include "kernels/head_bias.h"
#include "kernels/paged_kv.h"
#include "kernels/rows.h"

namespace bam::cuda {

// ---- elementwise.cu ----

// x[r, :] = table[tokens[r], :]; table [vocab, x.width] of kF32, kF16 or kBF16.
void embed_rows(const void* table, DType dtype, const int32_t* tokens, FloatRows x, const Queue& queue);
// x[r, :] += sinusoidal vector of positions[r]; turns [x.width]: by which angles advance from one position to the next,
// in units of 2^-64.
void add_sinusoidal_rows(const int32_t* positions, const unsigned long long* turns, FloatRows x, const Queue& queue);
// weight [x.width]
void rms_norm_rows(ConstFloatRows x, const float* weight, float eps, DType operand, OperandRows out,
                   const Queue& queue);
// in = gate | up, twice as wide as out.
void swiglu_rows(DType operand, ConstOperandRows in, OperandRows out, const Queue& queue);
// out[r, :] = in[rows[r], :]
void gather_float_rows(ConstFloatRows in, const int32_t* rows, FloatRows out, const Queue& queue);
void operands_to_float(DType operand, ConstOperandRows in, FloatRows out, const Queue& queue);

// Pages between a cache and `packed`, where they lie one behind the other.
void move_pages(std::byte* packed, const KvCacheView& cache, const int32_t* pages, int count, bool to_cache,
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
// tokens[i] = what row i of `rows` draws from its row of the logits, at most kMaxDrawVocab wide; work: one row for each
// of `rows`, as wide.
void draw_rows(const DrawRow* rows, const DrawLists& lists, ConstFloatRows logits, FloatRows work, int32_t* tokens,
               const Queue& queue);

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
void clamp_halves(OperandRows values, const Queue& queue);

// Per-row symmetric int8: zeros where out is wider than x; scale [x.count].
void quantize_rows(DType operand, ConstOperandRows x, Rows<int8_t> out, float* scale, const Queue& queue);

}  // namespace bam::cuda
