#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cpp"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

// Most rows of a register tile of one panel: with AVX-512 12 rows x 32 columns keep 24 accumulators busy.
constexpr int kTileRows = kParts == 1 ? 12 : (kParts == 2 ? 6 : 3);
// Sixteen-float blocks of a panel computed at once.
constexpr int kTileBlocks = kParts == 1 ? 2 : 1;
// With more rows than one such tile, 6 rows x two panels do the same work with 10 instead of 14 loads.
constexpr bool kPairs = kTileBlocks == 2;
constexpr int kPairRows = 6;

struct LoadF32Panel {
  using Element = float;
  static HWY_INLINE void Two(const float* at, F32x16& a, F32x16& b) {
    a = Load16(at);
    b = Load16(at + 16);
  }
};
struct LoadBf16Panel {
  using Element = uint16_t;
  static HWY_INLINE void Two(const uint16_t* at, F32x16& a, F32x16& b) { LoadBf16Pair(at, a, b); }
};
struct LoadF16Panel {
  using Element = uint16_t;
  static HWY_INLINE void Two(const uint16_t* at, F32x16& a, F32x16& b) {
    a = LoadF16(at);
    b = LoadF16(at + 16);
  }
};

// One register tile: kRows rows x (kPanels panels of 32 columns), k from begin to begin + depth.
// Row pointers are x, x + ldx, x + 2 ldx per group of three to keep address registers few.
template <typename Loader, int kRows, int kPanels>
HWY_INLINE void TileFma(const float* HWY_RESTRICT x, int64_t ldx, int64_t depth,
                        const typename Loader::Element* const* panels, float* HWY_RESTRICT y, int64_t ldy,
                        bool accumulate) {
  F32x16 acc[kRows][kPanels * 2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kPanels * 2; ++b) {
      acc[r][b] = accumulate ? Load16(y + r * ldy + 16 * b) : Zero16();
    }
  }
  constexpr int kGroups = (kRows + 2) / 3;
  const float* group[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) group[g] = x + 3 * g * ldx;
  for (int64_t i = 0; i < depth; ++i) {
    F32x16 b[kPanels * 2];
#pragma GCC unroll 16
    for (int q = 0; q < kPanels; ++q) {
      Loader::Two(panels[q] + i * kPanelCols, b[2 * q], b[2 * q + 1]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 a = Set16(group[r / 3][(r % 3) * ldx + i]);
#pragma GCC unroll 16
      for (int c = 0; c < kPanels * 2; ++c) acc[r][c] = MulAdd(a, b[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kPanels * 2; ++b) Store16(acc[r][b], y + r * ldy + 16 * b);
  }
}

// The same for narrow register files: one block of sixteen columns at a time.
template <typename Loader, int kRows>
HWY_INLINE void TileFmaNarrow(const float* HWY_RESTRICT x, int64_t ldx, int64_t depth,
                              const typename Loader::Element* panel, float* HWY_RESTRICT y, int64_t ldy,
                              bool accumulate) {
  for (int half = 0; half < 2; ++half) {
    F32x16 acc[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[r] = accumulate ? Load16(y + r * ldy + 16 * half) : Zero16();
    }
    for (int64_t i = 0; i < depth; ++i) {
      F32x16 b[2];
      Loader::Two(panel + i * kPanelCols, b[0], b[1]);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r] = MulAdd(Set16(x[r * ldx + i]), b[half], acc[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) Store16(acc[r], y + r * ldy + 16 * half);
  }
}

template <typename Loader, int kRows>
HWY_NOINLINE void OneTile(const float* x, int64_t ldx, int64_t depth, const typename Loader::Element* panel, float* y,
                          int64_t ldy, bool accumulate) {
  if constexpr (kTileBlocks == 2) {
    TileFma<Loader, kRows, 1>(x, ldx, depth, &panel, y, ldy, accumulate);
  } else {
    TileFmaNarrow<Loader, kRows>(x, ldx, depth, panel, y, ldy, accumulate);
  }
}

// OneTile for a number of rows known at run time only.
template <typename Loader, int kRows = kTileRows>
HWY_INLINE void AnyTile(int64_t rows, const float* x, int64_t ldx, int64_t depth, const typename Loader::Element* panel,
                        float* y, int64_t ldy, bool accumulate) {
  if (rows == kRows) return OneTile<Loader, kRows>(x, ldx, depth, panel, y, ldy, accumulate);
  if constexpr (kRows > 1) AnyTile<Loader, kRows - 1>(rows, x, ldx, depth, panel, y, ldy, accumulate);
}

// Row count of the tile that starts at row r when `rows` are cut into as few, equally high tiles as possible: a low
// last tile would have too few accumulators to hide the latency of an addition.
template <int kMost>
HWY_INLINE int64_t TileHeight(int64_t rows, int64_t r) {
  const int64_t tiles = (rows - r + kMost - 1) / kMost;
  return (rows - r + tiles - 1) / tiles;
}

// All rows against one panel slice; y points at the panel's first column and has room for 32 columns per row.
template <typename Loader>
void PanelRows(const float* x, int64_t ldx, int64_t rows, const typename Loader::Element* panel, int64_t depth,
               float* y, int64_t ldy, bool accumulate) {
  for (int64_t r = 0; r < rows;) {
    const int64_t height = TileHeight<kTileRows>(rows, r);
    AnyTile<Loader>(height, x + r * ldx, ldx, depth, panel, y + r * ldy, ldy, accumulate);
    r += height;
  }
}

// Two neighbouring float panels, all rows.
template <int kRows>
HWY_NOINLINE void PairTile(const float* x, int64_t ldx, int64_t depth, const float* const* panels, float* y,
                           int64_t ldy, bool accumulate) {
  TileFma<LoadF32Panel, kRows, 2>(x, ldx, depth, panels, y, ldy, accumulate);
}
template <int kRows = kPairRows>
HWY_INLINE void AnyPairTile(int64_t rows, const float* x, int64_t ldx, int64_t depth, const float* const* panels,
                            float* y, int64_t ldy, bool accumulate) {
  if (rows == kRows) return PairTile<kRows>(x, ldx, depth, panels, y, ldy, accumulate);
  if constexpr (kRows > 1) AnyPairTile<kRows - 1>(rows, x, ldx, depth, panels, y, ldy, accumulate);
}

// Panels p and p + 1 in slices of k that stay in the first-level cache while all rows pass; 16-bit weights are
// converted once per slice.
template <typename Loader>
void PanelPair(const GemmArgs& a, int64_t p) {
  using Element = typename Loader::Element;
  const Element* base = static_cast<const Element*>(a.panels) + p * a.k * kPanelCols;
  float* y = a.y + p * kPanelCols;
  for (int64_t k0 = 0; k0 < a.k; k0 += kSliceDepth) {
    const int64_t depth = std::min(kSliceDepth, a.k - k0);
    const float* panels[2];
    for (int q = 0; q < 2; ++q) {
      const Element* slice = base + (q * a.k + k0) * kPanelCols;
      if constexpr (sizeof(Element) == sizeof(float)) {
        panels[q] = slice;
      } else {
        float* unpacked = a.unpack + q * kSliceDepth * kPanelCols;
        for (int64_t i = 0; i < depth; ++i) {
          F32x16 first, second;
          Loader::Two(slice + i * kPanelCols, first, second);
          Store16(first, unpacked + i * kPanelCols);
          Store16(second, unpacked + i * kPanelCols + 16);
        }
        panels[q] = unpacked;
      }
    }
    for (int64_t r = 0; r < a.rows;) {
      const int64_t height = TileHeight<kPairRows>(a.rows, r);
      AnyPairTile(height, a.x + r * a.ldx + k0, a.ldx, depth, panels, y + r * a.ldy, a.ldy, a.accumulate || k0 > 0);
      r += height;
    }
  }
}

// Few rows: the weights are the traffic, so four panels stream side by side to hide latency.
template <typename Loader, int kRows>
HWY_NOINLINE int64_t FewRows(const GemmArgs& a, int64_t p, int64_t full_end) {
  using Element = typename Loader::Element;
  constexpr int kWide = 4;
  const Element* base = static_cast<const Element*>(a.panels);
  const int64_t stride = a.k * kPanelCols;
  for (; p + kWide <= full_end; p += kWide) {
    const Element* panels[kWide];
    for (int q = 0; q < kWide; ++q) panels[q] = base + (p + q) * stride;
    TileFma<Loader, kRows, kWide>(a.x, a.ldx, a.k, panels, a.y + p * kPanelCols, a.ldy, a.accumulate);
  }
  return p;
}

// One panel, k in slices of kUnpackDepth when 16-bit weights are worth converting once for many row tiles.
template <typename Loader>
void OnePanel(const GemmArgs& a, int64_t p, float* y, int64_t ldy) {
  using Element = typename Loader::Element;
  const Element* panel = static_cast<const Element*>(a.panels) + p * a.k * kPanelCols;
  if (sizeof(Element) == sizeof(float) || a.rows <= kTileRows) {
    return PanelRows<Loader>(a.x, a.ldx, a.rows, panel, a.k, y, ldy, a.accumulate);
  }
  for (int64_t k0 = 0; k0 < a.k; k0 += kUnpackDepth) {
    const int64_t depth = std::min(kUnpackDepth, a.k - k0);
    for (int64_t i = 0; i < depth; ++i) {
      F32x16 first, second;
      Loader::Two(panel + (k0 + i) * kPanelCols, first, second);
      Store16(first, a.unpack + i * kPanelCols);
      Store16(second, a.unpack + i * kPanelCols + 16);
    }
    PanelRows<LoadF32Panel>(a.x + k0, a.ldx, a.rows, a.unpack, depth, y, ldy, a.accumulate || k0 > 0);
  }
}

// The last panel when n is no multiple of 32: through a temporary, a few rows at a time.
template <typename Loader>
void RaggedPanel(const GemmArgs& a, int64_t p) {
  const int64_t cols = a.n - p * kPanelCols;
  HWY_ALIGN float tile[kTileRows * kPanelCols];
  for (int64_t r0 = 0; r0 < a.rows; r0 += kTileRows) {
    GemmArgs part = a;
    part.rows = std::min<int64_t>(kTileRows, a.rows - r0);
    part.x = a.x + r0 * a.ldx;
    float* y = a.y + r0 * a.ldy + p * kPanelCols;
    if (a.accumulate) {
      for (int64_t r = 0; r < part.rows; ++r) std::copy_n(y + r * a.ldy, cols, tile + r * kPanelCols);
    }
    OnePanel<Loader>(part, p, tile, kPanelCols);
    for (int64_t r = 0; r < part.rows; ++r) std::copy_n(tile + r * kPanelCols, cols, y + r * a.ldy);
  }
}

template <typename Loader>
void GemmTyped(const GemmArgs& a) {
  const int64_t full_end = std::min(a.last_panel, a.n / kPanelCols);
  int64_t p = a.first_panel;
  if constexpr (kTileBlocks == 2) {
    if (a.rows == 1) p = FewRows<Loader, 1>(a, p, full_end);
    if (a.rows == 2) p = FewRows<Loader, 2>(a, p, full_end);
    if (a.rows == 3) p = FewRows<Loader, 3>(a, p, full_end);
  }
  if (kPairs && a.rows > kTileRows) {
    for (; p + 2 <= full_end; p += 2) PanelPair<Loader>(a, p);
  }
  for (; p < full_end; ++p) OnePanel<Loader>(a, p, a.y + p * kPanelCols, a.ldy);
  if (p < a.last_panel) RaggedPanel<Loader>(a, p);
}

void Gemm(const GemmArgs& args) {
  switch (args.dtype) {
    case DType::kF32: return GemmTyped<LoadF32Panel>(args);
    case DType::kBF16: return GemmTyped<LoadBf16Panel>(args);
    default: return GemmTyped<LoadF16Panel>(args);
  }
}

// ---- int8 ----

#if HWY_TARGET == HWY_AVX3_DL
constexpr bool kVnni = true;
HWY_INLINE I32x16 DotQuads(const uint8_t* x, I32x16 weights, I32x16 sum) {
  int32_t quad;
  std::memcpy(&quad, x, sizeof quad);
  // Highway's target attribute for this level does not name VNNI (its CPU detection does), so the intrinsic is out of
  // reach.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.part[0].raw) : "v"(_mm512_set1_epi32(quad)), "v"(weights.part[0].raw));
  return sum;
}
constexpr int64_t kQuadBytes = 4;
#else
constexpr bool kVnni = false;
constexpr int64_t kQuadBytes = 8;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
// Sums of the products of 16-bit pairs.
HWY_INLINE hn::Vec<IntTag> MaddPairs(hn::Vec<hn::RepartitionToNarrow<IntTag>> a,
                                     hn::Vec<hn::RepartitionToNarrow<IntTag>> b) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<IntTag>{_mm512_madd_epi16(a.raw, b.raw)};
#else
  return hn::Vec<IntTag>{_mm256_madd_epi16(a.raw, b.raw)};
#endif
}
// x holds (x0, x2) and (x1, x3) as 16-bit pairs; weights have four signed bytes per lane.
HWY_INLINE I32x16 DotQuads(const uint8_t* x, I32x16 weights, I32x16 sum) {
  int32_t even_pair, odd_pair;
  std::memcpy(&even_pair, x, sizeof even_pair);
  std::memcpy(&odd_pair, x + 4, sizeof odd_pair);
  const hn::RepartitionToNarrow<IntTag> d16;
  BAM_EACH_PART {
    const auto bytes = hn::BitCast(d16, weights.part[p]);
    const auto even =
        MaddPairs(hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)), hn::BitCast(d16, hn::Set(IntTag(), even_pair)));
    const auto odd = MaddPairs(hn::ShiftRight<8>(bytes), hn::BitCast(d16, hn::Set(IntTag(), odd_pair)));
    sum.part[p] = hn::Add(sum.part[p], hn::Add(even, odd));
  }
  return sum;
}
#else
HWY_INLINE I32x16 DotQuads(const uint8_t* x, I32x16 weights, I32x16 sum) {
  int16_t pairs[4];  // x0, x2, x1, x3
  std::memcpy(pairs, x, sizeof pairs);
  HWY_ALIGN int32_t lanes[16], total[16];
  BAM_EACH_PART {
    hn::StoreU(weights.part[p], IntTag(), lanes + p * kLanes);
    hn::StoreU(sum.part[p], IntTag(), total + p * kLanes);
  }
  const int8_t* bytes = reinterpret_cast<const int8_t*>(lanes);
  for (int lane = 0; lane < 16; ++lane) {
    total[lane] += bytes[4 * lane] * pairs[0] + bytes[4 * lane + 1] * pairs[2] + bytes[4 * lane + 2] * pairs[1] +
                   bytes[4 * lane + 3] * pairs[3];
  }
  BAM_EACH_PART sum.part[p] = hn::LoadU(IntTag(), total + p * kLanes);
  return sum;
}
#endif
#endif

HWY_INLINE I32x16 LoadInt16(const int8_t* from) {
  I32x16 r;
  BAM_EACH_PART r.part[p] = hn::LoadU(IntTag(), reinterpret_cast<const int32_t*>(from) + p * kLanes);
  return r;
}

// Scales the exact sums of sixteen columns of one row.
HWY_INLINE void StoreScaled(const Int8GemmArgs& a, I32x16 sum, int64_t row, int64_t col) {
  F32x16 result;
  BAM_EACH_PART {
    auto exact = sum.part[p];
    if (kVnni) {  // x was stored with an offset of 128
      const auto w_sum = hn::LoadU(IntTag(), a.w_sum + col + p * kLanes);
      exact = hn::Sub(exact, hn::ShiftLeft<7>(w_sum));
    }
    result.part[p] = hn::ConvertTo(FloatTag(), exact);
  }
  result = Mul(result, Mul(Set16(a.x_scale[row]), Load16(a.w_scale + col)));
  float* y = a.y + row * a.ldy + col;
  if (col + 16 <= a.n) {
    Store16(a.accumulate ? Add(result, Load16(y)) : result, y);
    return;
  }
  HWY_ALIGN float lanes[16];
  Store16(result, lanes);
  for (int64_t c = 0; c < a.n - col; ++c) y[c] = a.accumulate ? lanes[c] + y[c] : lanes[c];
}

// kRows rows x kPanels panels; on narrow register files one half of a panel at a time.
template <int kRows, int kPanels>
HWY_NOINLINE void Int8Tile(const Int8GemmArgs& a, int64_t panel_index, int64_t row) {
  const int64_t quads = (a.k + 3) / 4, row_bytes = int8_row_bytes(a.k);
  const int64_t panel_bytes = quads * kPanelCols * 4;
  const int8_t* panel = a.panels + panel_index * panel_bytes;
  const uint8_t* x = a.x + row * row_bytes;
  constexpr int kGroups = (kRows + 2) / 3;
  constexpr int kBlocks = kPanels * kTileBlocks;
  const uint8_t* group[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) group[g] = x + 3 * g * row_bytes;
  for (int first = 0; first < 2; first += kTileBlocks) {
    I32x16 acc[kRows][kBlocks];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) {
        BAM_EACH_PART acc[r][b].part[p] = hn::Zero(IntTag());
      }
    }
    for (int64_t i = 0; i < quads; ++i) {
      I32x16 w[kBlocks];
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) {
        const int block = first + b % kTileBlocks;
        w[b] = LoadInt16(panel + (b / kTileBlocks) * panel_bytes + i * kPanelCols * 4 + block * 64);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int b = 0; b < kBlocks; ++b) {
          acc[r][b] = DotQuads(group[r / 3] + (r % 3) * row_bytes + i * kQuadBytes, w[b], acc[r][b]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int b = 0; b < kBlocks; ++b) {
        const int64_t col = (panel_index + b / kTileBlocks) * kPanelCols + (first + b % kTileBlocks) * 16;
        StoreScaled(a, acc[r][b], row + r, col);
      }
    }
  }
}

template <int kPanels, int kRows>
HWY_INLINE void Int8AnyTile(int64_t rows, const Int8GemmArgs& a, int64_t panel_index, int64_t row) {
  if (rows == kRows) return Int8Tile<kRows, kPanels>(a, panel_index, row);
  if constexpr (kRows > 1) Int8AnyTile<kPanels, kRows - 1>(rows, a, panel_index, row);
}

template <int kPanels, int kMost>
void Int8Panels(const Int8GemmArgs& a, int64_t p) {
  for (int64_t r = 0; r < a.rows;) {
    const int64_t height = TileHeight<kMost>(a.rows, r);
    Int8AnyTile<kPanels, kMost>(height, a, p, r);
    r += height;
  }
}

void GemmInt8(const Int8GemmArgs& a) {
  int64_t p = a.first_panel;
  if constexpr (kPairs) {
    // Also one to three rows: twice the streams hide more of the memory's latency.
    if (a.rows > kTileRows || a.rows <= 3) {
      for (; p + 2 <= a.last_panel; p += 2) Int8Panels<2, kPairRows>(a, p);
    }
  }
  for (; p < a.last_panel; ++p) Int8Panels<1, kTileRows>(a, p);
}

float QuantizeRow(const float* x, int64_t k, uint8_t* out) {
  float max_abs = 0;
  F32x16 largest = Zero16();
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    F32x16 v = Load16(x + i);
    BAM_EACH_PART v.part[p] = hn::Abs(v.part[p]);
    largest = Max(largest, v);
  }
  max_abs = ReduceMax16(largest);
  for (; i < k; ++i) max_abs = std::max(max_abs, std::fabs(x[i]));
  const float inverse = max_abs > 0 ? 127.0f / max_abs : 0.0f;
  const auto quantize = [&](int64_t at) { return at < k ? static_cast<int>(std::lrintf(x[at] * inverse)) : 0; };
  const int64_t quads = (k + 3) / 4;
  if (kVnni) {
    int64_t at = 0;
    for (; at + 16 <= k; at += 16) {
      const F32x16 v = Mul(Load16(x + at), Set16(inverse));
      HWY_ALIGN int32_t values[16];
      BAM_EACH_PART hn::Store(hn::NearestInt(v.part[p]), IntTag(), values + p * kLanes);
      for (int lane = 0; lane < 16; ++lane) out[at + lane] = static_cast<uint8_t>(values[lane] + 128);
    }
    for (; at < quads * 4; ++at) out[at] = static_cast<uint8_t>(quantize(at) + 128);
  } else {
    for (int64_t q = 0; q < quads; ++q) {
      const int16_t pairs[4] = {static_cast<int16_t>(quantize(4 * q)), static_cast<int16_t>(quantize(4 * q + 2)),
                                static_cast<int16_t>(quantize(4 * q + 1)), static_cast<int16_t>(quantize(4 * q + 3))};
      std::memcpy(out + q * 8, pairs, sizeof pairs);
    }
  }
  return max_abs / 127.0f;
}

GemmKernels GemmTable() { return {Gemm, GemmInt8, QuantizeRow}; }

}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bam::cpu {
HWY_EXPORT(GemmTable);
GemmKernels gemm_kernels() { return HWY_DYNAMIC_DISPATCH(GemmTable)(); }
}  // namespace bam::cpu
#endif
