#include "kernels/cpu/gemm_bf16.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/next_panels.h"
#include "kernels/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BAM_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define BAM_FMA __attribute__((target("avx2,fma")))
#define BAM_INLINE __attribute__((always_inline)) inline
#endif

namespace bam::cpu {
namespace {

constexpr int kVector = 16;                          // outputs of one 512-bit register
constexpr int kPanelVectors = kPanelCols / kVector;  // per panel
constexpr int64_t kSlicePairs = 1024;  // of two panels worked on at a time: they stay in the second-level cache
constexpr int kRowsAhead = 24;         // rows of pairs fetched ahead
constexpr int kPairRows = 6;           // most rows of a register tile of two panels
constexpr int kBufferRows = 12;        // of one

float flushed(float value) { return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value; }

uint32_t pair_of(float low, float high) {
  return uint32_t{f32_to_bf16(flushed(low))} | uint32_t{f32_to_bf16(flushed(high))} << 16;
}

void convert_row(const float* x, int64_t k, uint32_t* out) {
  for (int64_t i = 0; i < k / 2; ++i) out[i] = pair_of(x[2 * i], x[2 * i + 1]);
  if (k % 2 != 0) out[k / 2] = pair_of(x[k - 1], 0);
}

// One row against one panel, as the header defines it. `Fma` is std::fma compiled for some instruction set.
template <typename Fma>
inline __attribute__((always_inline)) void plain_row(const uint32_t* x, int64_t pairs, const uint32_t* panel,
                                                     float* acc, Fma fma) {
  const auto low = [](uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto high = [](uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); };
  const auto flush = [](float v) { return std::fabs(v) < std::numeric_limits<float>::min() ? 0.0f : v; };
  for (int c = 0; c < kPanelCols; ++c) acc[c] = flush(acc[c]);
  for (int64_t i = 0; i < pairs; ++i) {
    const float x0 = low(x[i]), x1 = high(x[i]);
    const uint32_t* w = panel + i * kPanelCols;
    for (int c = 0; c < kPanelCols; ++c) acc[c] = flush(fma(x0, low(w[c]), flush(fma(x1, high(w[c]), acc[c]))));
  }
}

// All rows against the panels asked for, by `row`.
template <typename Row>
inline __attribute__((always_inline)) void plain_gemm(const PairGemmArgs& args, Row row) {
  for (int64_t p = args.first_panel; p < args.last_panel; ++p) {
    const int64_t col0 = p * kPanelCols, cols = std::min<int64_t>(kPanelCols, args.n - col0);
    for (int64_t r = 0; r < args.rows; ++r) {
      float* y = args.y + r * args.ldy + col0;
      float acc[kPanelCols] = {};
      if (args.accumulate) std::memcpy(acc, y, static_cast<size_t>(cols) * sizeof(float));
      row(args.x + r * args.ldx, args.pairs, args.panels + p * args.pairs * kPanelCols, acc);
      std::memcpy(y, acc, static_cast<size_t>(cols) * sizeof(float));
    }
  }
}

void portable_row(const uint32_t* x, int64_t pairs, const uint32_t* panel, float* acc) {
  plain_row(x, pairs, panel, acc, [](float a, float b, float c) { return std::fma(a, b, c); });
}
void gemm_portable(const PairGemmArgs& args) { plain_gemm(args, portable_row); }

#if defined(__x86_64__)

// AVX2: eight outputs per register, 16 accumulators would spill, so a panel is done in halves.
BAM_FMA void fma_row(const uint32_t* x, int64_t pairs, const uint32_t* panel, float* acc) {
  const __m256 smallest = _mm256_set1_ps(std::numeric_limits<float>::min());
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
#define BAM_FLUSH(v) _mm256_and_ps(v, _mm256_cmp_ps(_mm256_and_ps(v, magnitude), smallest, _CMP_NLT_UQ))
  for (int half = 0; half < kPanelCols; half += 16) {
    __m256 sum0 = _mm256_loadu_ps(acc + half), sum1 = _mm256_loadu_ps(acc + half + 8);
    sum0 = BAM_FLUSH(sum0);
    sum1 = BAM_FLUSH(sum1);
    for (int64_t i = 0; i < pairs; ++i) {
      const __m256i* at = reinterpret_cast<const __m256i*>(panel + i * kPanelCols + half);
      const __m256i w0 = _mm256_loadu_si256(at), w1 = _mm256_loadu_si256(at + 1);
      const __m256i both = _mm256_set1_epi32(static_cast<int>(x[i]));
      const __m256 x1 = _mm256_castsi256_ps(_mm256_and_si256(both, high_half));
      const __m256 x0 = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      sum0 = _mm256_fmadd_ps(x1, _mm256_castsi256_ps(_mm256_and_si256(w0, high_half)), sum0);
      sum1 = _mm256_fmadd_ps(x1, _mm256_castsi256_ps(_mm256_and_si256(w1, high_half)), sum1);
      sum0 = BAM_FLUSH(sum0);
      sum1 = BAM_FLUSH(sum1);
      sum0 = _mm256_fmadd_ps(x0, _mm256_castsi256_ps(_mm256_slli_epi32(w0, 16)), sum0);
      sum1 = _mm256_fmadd_ps(x0, _mm256_castsi256_ps(_mm256_slli_epi32(w1, 16)), sum1);
      sum0 = BAM_FLUSH(sum0);
      sum1 = BAM_FLUSH(sum1);
    }
    _mm256_storeu_ps(acc + half, sum0);
    _mm256_storeu_ps(acc + half + 8, sum1);
  }
#undef BAM_FLUSH
}
BAM_FMA void gemm_fma(const PairGemmArgs& args) { plain_gemm(args, fma_row); }

// A register tile: kRows rows x kPanels panels. Row pointers are x, x + ldx, x + 2 ldx per group of three to keep address
// registers few. Weights that stream by are fetched kAhead rows of pairs ahead; those that many rows share lie in the
// second-level cache, and the tile fetches its share of what comes next instead.
template <int kRows, int kPanels, int kAhead, int kLines>
BAM_BF16 void native_tile(const uint32_t* x, int64_t ldx, int64_t pairs, const uint32_t* const* panel, float* y,
                          int64_t ldy, bool accumulate, Share next) {
  constexpr int kVectors = kPanels * kPanelVectors;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = accumulate ? _mm512_loadu_ps(y + r * ldy + v * kVector) : _mm512_setzero_ps();
  }
  constexpr int kGroups = (kRows + 2) / 3;
  const uint32_t* group[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) group[g] = x + 3 * g * ldx;
  for (int64_t i = 0; i < pairs; ++i) {
    __m512i w[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t* at = panel[v / kPanelVectors] + i * kPanelCols + v % kPanelVectors * kVector;
      w[v] = _mm512_loadu_si512(at);
      if constexpr (kAhead > 0) __builtin_prefetch(at + kAhead * kPanelCols);
    }
    if constexpr (kLines > 0) next.template Fetch<kLines>();
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512i both = _mm512_set1_epi32(static_cast<int>(group[r / 3][(r % 3) * ldx + i]));
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = _mm512_dpbf16_ps(acc[r][v], reinterpret_cast<__m512bh>(both), reinterpret_cast<__m512bh>(w[v]));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(y + r * ldy + v * kVector, acc[r][v]);
  }
}

// native_tile for a number of rows known at run time only.
template <int kPanels, int kRows, bool kStreams>
BAM_BF16 void any_tile(int64_t rows, const uint32_t* x, int64_t ldx, int64_t pairs, const uint32_t* const* panel,
                       float* y, int64_t ldy, bool accumulate, Share next) {
  if (rows == kRows) {
    if constexpr (kStreams)
      return native_tile<kRows, kPanels, kRowsAhead, 0>(x, ldx, pairs, panel, y, ldy, accumulate, next);
    if (next.step > kLineBytes)
      return native_tile<kRows, kPanels, 0, 2>(x, ldx, pairs, panel, y, ldy, accumulate, next);
    return native_tile<kRows, kPanels, 0, 1>(x, ldx, pairs, panel, y, ldy, accumulate, next);
  }
  if constexpr (kRows > 1) any_tile<kPanels, kRows - 1, kStreams>(rows, x, ldx, pairs, panel, y, ldy, accumulate, next);
}

// All rows against kPanels neighbouring panels. next: the first of those that come afterwards, -1 if not known.
template <int kPanels, bool kStreams>
BAM_BF16 void native_panels(const PairGemmArgs& args, int64_t first, int64_t next) {
  constexpr int kMostRows = kPanels == 2 ? kPairRows : kBufferRows;
  const int64_t col0 = first * kPanelCols, cols = std::min<int64_t>(kPanels * kPanelCols, args.n - col0);
  const bool whole = cols == kPanels * kPanelCols;
  float buffer[kMostRows * kPanels * kPanelCols];
  for (int64_t begin = 0; begin < args.pairs; begin += kSlicePairs) {
    const int64_t depth = std::min(kSlicePairs, args.pairs - begin);
    const bool add = args.accumulate || begin > 0;
    const auto at = [&](int64_t panel, int64_t pair) { return args.panels + (panel * args.pairs + pair) * kPanelCols; };
    const uint32_t* panel[kPanels];
    for (int p = 0; p < kPanels; ++p) panel[p] = at(first + p, begin);
    const bool last = begin + depth == args.pairs;
    const int64_t coming = last ? next : first, coming_pair = last ? 0 : begin + depth;
    const int64_t coming_depth = std::min(kSlicePairs, args.pairs - coming_pair);
    const NextPanels share = kStreams || coming < 0 ? NextPanels(panel[0])
                                                    : NextPanels(at(coming, coming_pair), at(coming + 1, coming_pair),
                                                                 coming_depth * kPanelCols * 4,
                                                                 (args.rows + kMostRows - 1) / kMostRows, depth);
    int64_t tile = 0;
    for (int64_t r = 0; r < args.rows; ++tile) {
      const int64_t tiles = (args.rows - r + kMostRows - 1) / kMostRows, height = (args.rows - r + tiles - 1) / tiles;
      float* y = args.y + r * args.ldy + col0;
      float* to = whole ? y : buffer;
      const int64_t ldto = whole ? args.ldy : kPanels * kPanelCols;
      for (int64_t i = 0; i < height && !whole && add; ++i)
        std::memcpy(to + i * ldto, y + i * args.ldy, static_cast<size_t>(cols) * sizeof(float));
      any_tile<kPanels, kMostRows, kStreams>(height, args.x + r * args.ldx + begin, args.ldx, depth, panel, to, ldto,
                                             add, share.Tile(tile));
      for (int64_t i = 0; i < height && !whole; ++i)
        std::memcpy(y + i * args.ldy, to + i * ldto, static_cast<size_t>(cols) * sizeof(float));
      r += height;
    }
  }
}

// Twelve rows of one panel keep as many sums as six of two, but two panels need fewer loads, and their next ones can be
// fetched by the tiles in between: for rows that fill several tiles, and for few, whose streams are then twice as many.
BAM_BF16 void gemm_native(const PairGemmArgs& args) {
  const int64_t panels = (args.n + kPanelCols - 1) / kPanelCols;
  const bool streams = args.rows <= kPairRows;
  int64_t p = args.first_panel;
  for (; p + 1 < args.last_panel; p += 2) {
    const int64_t next = p + 2 < args.last_panel ? p + 2 : args.next_panel;
    if (streams) {
      native_panels<2, true>(args, p, -1);
    } else {
      native_panels<2, false>(args, p, next + 2 <= panels ? next : -1);
    }
  }
  if (p < args.last_panel) native_panels<1, true>(args, p, -1);
}

// The same roundings as f32_to_bf16 of flushed numbers; weights and activations are finite or the model is lost anyway.
BAM_BF16 void convert_row_native(const float* x, int64_t k, uint32_t* out) {
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
    _mm512_storeu_si512(out + i / 2, reinterpret_cast<__m512i>(both));
  }
  convert_row(x + i, k - i, out + i / 2);
}

// Whether this processor's instruction does what the header says, by numbers where other orders of operations and other
// roundings would show.
bool native_is_plain() {
  constexpr int64_t kPairs = 96;
  std::vector<uint32_t> x(kPairs), panel(static_cast<size_t>(kPairs * kPanelCols));
  uint32_t state = 12345;
  const auto number = [&state] {
    state = state * 1664525u + 1013904223u;
    const float size = std::ldexp(1.0f, static_cast<int>(state >> 24 & 31) - 20);
    return size * (static_cast<float>(state >> 8 & 0xffff) / 32768.0f - 1.0f);
  };
  for (uint32_t& pair : x) {
    const float low = number();
    pair = pair_of(low, number());
  }
  for (uint32_t& pair : panel) {
    const float low = number();
    pair = pair_of(low, number());
  }
  float plain[kPanelCols] = {}, native[kPanelCols] = {};
  fma_row(x.data(), kPairs, panel.data(), plain);
  gemm_native({.x = x.data(),
               .ldx = kPairs,
               .rows = 1,
               .pairs = kPairs,
               .n = kPanelCols,
               .panels = panel.data(),
               .first_panel = 0,
               .last_panel = 1,
               .y = native,
               .ldy = kPanelCols});
  return std::memcmp(plain, native, sizeof plain) == 0;
}

#endif

}  // namespace

PairKernels pair_kernels(PairLevel most) {
#if defined(__x86_64__)
  const bool has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_native = has_fma && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bf16");
  if (most == PairLevel::kNative && has_native) return {gemm_native, convert_row_native, true, native_is_plain()};
  if (most != PairLevel::kPortable && has_fma) return {gemm_fma, convert_row, false, true};
#endif
  return {gemm_portable, convert_row, false, true};
}

size_t packed_pair_bytes(int64_t k, int64_t n) {
  const int64_t panels = (n + kPanelCols - 1) / kPanelCols;
  return static_cast<size_t>(panels * kPanelCols * num_pairs(k)) * sizeof(uint32_t);
}

void pack_row_pairs(const float* source, int64_t k, int64_t out, uint32_t* panels) {
  uint32_t* base = panels + out / kPanelCols * num_pairs(k) * kPanelCols + out % kPanelCols;
  for (int64_t i = 0; i < num_pairs(k); ++i) {
    base[i * kPanelCols] = pair_of(source[2 * i], 2 * i + 1 < k ? source[2 * i + 1] : 0.0f);
  }
}

}  // namespace bam::cpu
