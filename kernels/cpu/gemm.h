// Matrix products against weights that were packed once. Every output element is accumulated over k in one fixed order
// by one chain of fused multiply-adds, so its bits do not depend on how many rows are computed together.
//
// Packed weights: panels of 32 outputs, a panel is [k][32] (int8: [k / 4][32][4]), the last panel padded with zeros.
// int4: k in pairs of groups of sixteen; a panel's codes are [pair][4][32][4] bytes, the byte's low nibble for k and the
// high one for k + 4, its factors [pair][32] bytes, the low nibble for the first group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/int4.h"

namespace bam::cpu {

inline constexpr int kPanelCols = 32;

// y[m, n] (+)= x[m, k] * panels[first .. last): columns outside [0, n) are not written.
struct GemmArgs {
  const float* x = nullptr;  // [rows][k], row stride ldx
  int64_t ldx = 0;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t n = 0;
  const void* panels = nullptr;
  DType dtype = DType::kF32;  // kF32, kBF16, kF16
  int64_t first_panel = 0;
  int64_t last_panel = 0;
  int64_t next_panel = -1;  // where the same thread will go on, if known
  float* y = nullptr;       // [rows][n], row stride ldy
  int64_t ldy = 0;
  bool accumulate = false;  // start from y instead of zero
  float* unpack = nullptr;  // scratch of gemm_unpack_floats() floats
};
inline constexpr int64_t kUnpackDepth = 256;  // k of one 16-bit panel converted at a time
inline constexpr int64_t kSliceDepth = 1024;  // k of two panels worked on at a time
constexpr int64_t gemm_unpack_floats() { return std::max(kUnpackDepth, 2 * kSliceDepth) * kPanelCols; }

// x quantised per row to int8; sums are exact integers, so every path gives the same bits.
struct Int8GemmArgs {
  const uint8_t* x = nullptr;  // rows written by quantize_row, ldx bytes apart
  int64_t ldx = 0;
  const float* x_scale = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t k = 0;
  int64_t n = 0;
  const int8_t* panels = nullptr;
  const float* w_scale = nullptr;     // [padded n]
  const int32_t* w_offset = nullptr;  // [padded n] -128 times the sum over k of the weights
  int64_t first_panel = 0;
  int64_t last_panel = 0;
  int64_t next_panel = -1;
  float* y = nullptr;
  int64_t ldy = 0;
  bool accumulate = false;
};

inline constexpr int64_t kInt4PairBytes = 2 * kInt4Group * kPanelCols / 2;
constexpr int64_t int4_padded_depth(int64_t k) { return (k + 2 * kInt4Group - 1) / (2 * kInt4Group) * 2 * kInt4Group; }

struct Int4GemmArgs {
  Int8GemmArgs sums;  // all of it but the panels; k padded by int4_padded_depth(), x with zeros there
  const uint8_t* codes = nullptr;
  const uint8_t* factors = nullptr;
  int8_t* decoded = nullptr;  // scratch of two panels of int8
};

// Kernels of one instruction set.
struct GemmKernels {
  void (*gemm)(const GemmArgs& args);
  void (*gemm_int8)(const Int8GemmArgs& args);
  void (*gemm_int4)(const Int4GemmArgs& args);
  int64_t quad_bytes;  // of four quantised values: unsigned bytes for VNNI, 16-bit pairs elsewhere
  uint8_t zero_byte;   // four quantised zeros are bytes of this
  int64_t quantised_row_bytes(int64_t k) const { return (k + 3) / 4 * quad_bytes; }
  // Writes one row in the format gemm_int8 wants and returns its scale.
  float (*quantize_row)(const float* x, int64_t k, uint8_t* out);
};
GemmKernels gemm_kernels();  // for the instruction set chosen by Highway's dispatch

// Of an int4 matrix: its codes; its factors.
size_t packed_int4_code_bytes(int64_t k, int64_t n);
size_t packed_int4_factor_bytes(int64_t k, int64_t n);
// Writes column `out` of the panels and sets w_offset[out].
void pack_row_int4(const Int4Row& row, int64_t out, uint8_t* codes, uint8_t* factors, int32_t* w_offset);

size_t packed_bytes(DType dtype, int64_t k, int64_t n);
// source: row `out` of W as float32, [k]; writes column `out` of the panels. kF32, kBF16, kF16.
void pack_row(DType dtype, const float* source, int64_t k, int64_t out, void* panels);
// Quantises one output row symmetrically; also sets w_scale[out] and w_offset[out].
void pack_row_int8(const float* source, int64_t k, int64_t out, int8_t* panels, float* w_scale, int32_t* w_offset);

}  // namespace bam::cpu
