#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm.h"

namespace bam::cpu {
namespace {

int64_t padded_cols(int64_t n) { return (n + kPanelCols - 1) / kPanelCols * kPanelCols; }

}  // namespace

size_t packed_bytes(DType dtype, int64_t k, int64_t n) {
  const int64_t depth = dtype == DType::kI8 ? (k + 3) / 4 * 4 : k;
  return static_cast<size_t>(padded_cols(n) * depth) * dtype_bits(dtype) / 8;
}

void pack_row(DType dtype, const float* source, int64_t k, int64_t out, void* panels) {
  const int64_t panel = out / kPanelCols, col = out % kPanelCols;
  if (dtype == DType::kF32) {
    float* base = static_cast<float*>(panels) + panel * k * kPanelCols + col;
    for (int64_t i = 0; i < k; ++i) base[i * kPanelCols] = source[i];
    return;
  }
  uint16_t* base = static_cast<uint16_t*>(panels) + panel * k * kPanelCols;
  if (dtype == DType::kF16) {
    for (int64_t i = 0; i < k; ++i) base[i * kPanelCols + col] = f32_to_f16(source[i]);
    return;
  }
  // bfloat16 columns c and c + 16 share a 32-bit word, see LoadBf16Pair.
  const int64_t slot = col < 16 ? 2 * col : 2 * (col - 16) + 1;
  for (int64_t i = 0; i < k; ++i) base[i * kPanelCols + slot] = f32_to_bf16(source[i]);
}

void pack_row_int8(const float* source, int64_t k, int64_t out, int8_t* panels, float* w_scale, int32_t* w_offset) {
  float max_abs = 0;
  for (int64_t i = 0; i < k; ++i) max_abs = std::max(max_abs, std::fabs(source[i]));
  const float scale = max_abs / 127.0f;
  const float inverse = max_abs > 0 ? 127.0f / max_abs : 0.0f;
  const int64_t quads = (k + 3) / 4;
  int8_t* base = panels + (out / kPanelCols) * quads * kPanelCols * 4 + (out % kPanelCols) * 4;
  int32_t sum = 0;
  for (int64_t i = 0; i < quads * 4; ++i) {
    const int value = i < k ? static_cast<int>(std::lrintf(source[i] * inverse)) : 0;
    base[(i / 4) * kPanelCols * 4 + i % 4] = static_cast<int8_t>(std::clamp(value, -127, 127));
    sum += std::clamp(value, -127, 127);
  }
  w_scale[out] = scale;
  w_offset[out] = -128 * sum;
}

size_t packed_int4_code_bytes(int64_t k, int64_t n) {
  return static_cast<size_t>(padded_cols(n) * int4_padded_depth(k) / 2);
}
size_t packed_int4_factor_bytes(int64_t k, int64_t n) {
  return static_cast<size_t>(padded_cols(n) * int4_padded_depth(k) / (2 * kInt4Group));
}

void pack_row_int4(const Int4Row& row, int64_t out, uint8_t* codes, uint8_t* factors, int32_t* w_offset) {
  const int64_t depth = int4_padded_depth(row.size()), col = out % kPanelCols;
  uint8_t* code_at = codes + out / kPanelCols * depth / 2 * kPanelCols;
  uint8_t* factor_at = factors + out / kPanelCols * depth / (2 * kInt4Group) * kPanelCols;
  int32_t sum = 0;
  for (int64_t k = 0; k < depth; ++k) {
    const auto group = static_cast<size_t>(k / kInt4Group);
    const unsigned code = k < row.size() ? row.codes[static_cast<size_t>(k)] : 0u;
    const unsigned factor = group < row.factors.size() ? row.factors[group] : 0u;
    uint8_t& byte = code_at[k / 8 * kPanelCols * 4 + col * 4 + k % 4];
    byte = static_cast<uint8_t>(k % 8 < 4 ? code : byte | code << 4);
    uint8_t& pair = factor_at[k / (2 * kInt4Group) * kPanelCols + col];
    pair = static_cast<uint8_t>(group % 2 == 0 ? factor : (pair & 15u) | factor << 4);
    sum += int4_value(static_cast<int>(code), static_cast<int>(factor));
  }
  w_offset[out] = -128 * sum;
}

}  // namespace bam::cpu
