// Linear layers in pairs of bfloat16, for --math fast: twice the multiplications of float32 per instruction where the
// processor has AVX512-BF16. Activations are rounded to bfloat16 once per row; sums are float32.
//
// An output is one chain over k, two fused multiply-adds per pair, the odd element first, each rounded to nearest, and
// numbers below 2^-126 are zero, in and out. That is what the instruction is documented to do and what plain code does
// here, so all levels give the same bits; a processor whose instruction differs is found out when the kernels are
// taken.
//
// Packed weights: panels of 32 outputs, a panel is [k / 2][32] pairs, k and n padded with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bam::cpu {

struct PairGemmArgs {
  const uint32_t* x = nullptr;  // [rows][pairs], row stride ldx
  int64_t ldx = 0;
  int64_t rows = 0;
  int64_t pairs = 0;
  int64_t n = 0;
  const uint32_t* panels = nullptr;
  int64_t first_panel = 0;
  int64_t last_panel = 0;
  int64_t next_panel = -1;  // where the same thread will go on, if known
  float* y = nullptr;       // [rows][n], row stride ldy
  int64_t ldy = 0;
  bool accumulate = false;  // start from y instead of zero
};

struct PairKernels {
  void (*gemm)(const PairGemmArgs& args) = nullptr;
  // [k] numbers as [(k + 1) / 2] pairs, the first one low.
  void (*convert_row)(const float* x, int64_t k, uint32_t* out) = nullptr;
  bool native = false;    // the processor's own instruction
  bool same_bits = true;  // as plain code
};
enum class PairLevel : uint8_t { kPortable, kFma, kNative };  // plain code, AVX2 with FMA, AVX512-BF16
// The best that the processor has, but not above `most`.
PairKernels pair_kernels(PairLevel most);

constexpr int64_t num_pairs(int64_t k) { return (k + 1) / 2; }
size_t packed_pair_bytes(int64_t k, int64_t n);
// source: row `out` of W, [k]; writes column `out` of the panels.
void pack_row_pairs(const float* source, int64_t k, int64_t out, uint32_t* panels);

}  // namespace bam::cpu
