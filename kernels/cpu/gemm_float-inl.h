// Linear layers with f32, bf16 and f16 weights.
// Included once per Highway target.
#if defined(BAM_KERNELS_CPU_GEMM_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_GEMM_FLOAT_INL_H_
#undef BAM_KERNELS_CPU_GEMM_FLOAT_INL_H_
#else
#define BAM_KERNELS_CPU_GEMM_FLOAT_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/next_panels.h"
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
// Rows of k fetched ahead: from the second-level cache for a panel that many row tiles share, from memory for one that
// streams by.
constexpr int kPairAhead = 8;
constexpr int kStreamAhead = 32;

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

// Fetches the panel row `ahead` rows of k further on.
template <typename Element>
HWY_INLINE void PrefetchPanelRow(const Element* at, int64_t ahead) {
  const char* line = reinterpret_cast<const char*>(at + ahead * kPanelCols);
#pragma GCC unroll 2
  for (int64_t b = 0; b < kPanelCols * int64_t{sizeof(Element)}; b += kLineBytes) __builtin_prefetch(line + b);
}

// Fetches the lines of y that a register tile will write.
template <int kRows, int kPanels>
HWY_INLINE void PrefetchTile(const float* y, int64_t ldy) {
#pragma GCC unroll 1
  for (int r = 0; r < kRows; ++r, y += ldy) {  // a loop: so many addresses at once would fill the registers
#pragma GCC unroll 16
    for (int c = 0; c < kPanels * kPanelCols; c += 16) __builtin_prefetch(y + c, 1);
  }
}

// One register tile: kRows rows x (kPanels panels of 32 columns), k from begin to begin + depth.
// Row pointers are x, x + ldx, x + 2 ldx per group of three to keep address registers few.
template <typename Loader, int kRows, int kPanels, int kAhead = 0, int kLines = 1>
HWY_INLINE void TileFma(const float* HWY_RESTRICT x, int64_t ldx, int64_t depth,
                        const typename Loader::Element* const* panels, float* HWY_RESTRICT y, int64_t ldy,
                        bool accumulate, Share next = {}) {
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
      if constexpr (kAhead > 0) PrefetchPanelRow(panels[q] + i * kPanelCols, kAhead);
    }
    if constexpr (kPanels == 2) next.template Fetch<kLines>();
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
    TileFma<Loader, kRows, 1, kStreamAhead>(x, ldx, depth, &panel, y, ldy, accumulate);
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

// Two neighbouring float panels.
template <int kRows, int kLines>
HWY_NOINLINE void PairTile(const float* x, int64_t ldx, int64_t depth, const float* const* panels, float* y,
                           int64_t ldy, bool accumulate, Share next) {
  PrefetchTile<kRows, 2>(accumulate ? y + kRows * ldy : y, ldy);  // y itself is about to be read
  TileFma<LoadF32Panel, kRows, 2, kPairAhead, kLines>(x, ldx, depth, panels, y, ldy, accumulate, next);
}
template <int kRows = kPairRows>
HWY_INLINE void AnyPairTile(int64_t rows, const float* x, int64_t ldx, int64_t depth, const float* const* panels,
                            float* y, int64_t ldy, bool accumulate, Share next) {
  if (rows == kRows) {
    // Few tiles have to fetch more than a line per row of k.
    if (next.step > kLineBytes) return PairTile<kRows, 2>(x, ldx, depth, panels, y, ldy, accumulate, next);
    return PairTile<kRows, 1>(x, ldx, depth, panels, y, ldy, accumulate, next);
  }
  if constexpr (kRows > 1) AnyPairTile<kRows - 1>(rows, x, ldx, depth, panels, y, ldy, accumulate, next);
}

template <typename Loader>
HWY_INLINE const typename Loader::Element* PanelAt(const GemmArgs& a, int64_t p, int64_t k0) {
  return static_cast<const typename Loader::Element*>(a.panels) + (p * a.k + k0) * kPanelCols;
}

// Panels p and p + 1 over [k0, k0 + depth) as floats.
template <typename Loader>
HWY_INLINE void PairSlice(const GemmArgs& a, int64_t p, int64_t k0, int64_t depth, const float** panels) {
  using Element = typename Loader::Element;
  for (int q = 0; q < 2; ++q) {
    const Element* slice = PanelAt<Loader>(a, p + q, k0);
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
}

// Panels p and p + 1 in slices of k that stay in the second-level cache while all rows pass: long slices, because the
// start and end of a register tile cost more than reading weights from there. 16-bit weights are converted once per
// slice.
template <typename Loader>
void PanelPair(const GemmArgs& a, int64_t p, int64_t next_pair) {
  float* y = a.y + p * kPanelCols;
  const int64_t slices = (a.k + kSliceDepth - 1) / kSliceDepth;
  const int64_t most = (a.k + slices - 1) / slices;
  const int64_t tiles = (a.rows + kPairRows - 1) / kPairRows;
  for (int64_t k0 = 0; k0 < a.k; k0 += most) {
    const int64_t depth = std::min(most, a.k - k0);
    const float* panels[2];
    PairSlice<Loader>(a, p, k0, depth, panels);
    const bool last = k0 + most >= a.k;
    const int64_t next_p = last ? next_pair : p, next_k = last ? 0 : k0 + most;
    const int64_t next_bytes = std::min(most, a.k - next_k) * kPanelCols * int64_t{sizeof(typename Loader::Element)};
    const NextPanels next = next_p < 0 ? NextPanels(panels[0])
                                       : NextPanels(PanelAt<Loader>(a, next_p, next_k),
                                                    PanelAt<Loader>(a, next_p + 1, next_k), next_bytes, tiles, depth);
    int64_t tile = 0;
    for (int64_t r = 0; r < a.rows; ++tile) {
      const int64_t height = TileHeight<kPairRows>(a.rows, r);
      AnyPairTile(height, a.x + r * a.ldx + k0, a.ldx, depth, panels, y + r * a.ldy, a.ldy, a.accumulate || k0 > 0,
                  next.Tile(tile));
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
    for (; p + 2 <= full_end; p += 2) {
      const int64_t next = p + 2 < a.last_panel ? p + 2 : a.next_panel;
      PanelPair<Loader>(a, p, next + 2 <= a.n / kPanelCols ? next : -1);
    }
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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
