// Linear layers with int8 weights and int8 activations.
// Included once per Highway target.
#if defined(BAM_KERNELS_CPU_GEMM_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_GEMM_INT8_INL_H_
#undef BAM_KERNELS_CPU_GEMM_INT8_INL_H_
#else
#define BAM_KERNELS_CPU_GEMM_INT8_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

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

// Quads of k fetched ahead while weights stream from memory. Panels that many rows share come from the second-level
// cache in order, which the processor foresees by itself.
constexpr int64_t kInt8Ahead = 8;

HWY_INLINE I32x16 LoadInt16(const int8_t* from) {
  I32x16 r;
  BAM_EACH_PART r.part[p] = hn::LoadU(IntTag(), reinterpret_cast<const int32_t*>(from) + p * kLanes);
  return r;
}

HWY_INLINE void StoreInt16(I32x16 v, int8_t* to) {
  BAM_EACH_PART hn::StoreU(v.part[p], IntTag(), reinterpret_cast<int32_t*>(to) + p * kLanes);
}

// What the sums of sixteen columns start from: with VNNI, x is stored with an offset of 128.
HWY_INLINE I32x16 FirstSum(const Int8GemmArgs& a, int64_t col) {
  I32x16 r;
  BAM_EACH_PART r.part[p] = kVnni ? hn::LoadU(IntTag(), a.w_offset + col + p * kLanes) : hn::Zero(IntTag());
  return r;
}

// The exact sums of sixteen columns of one row, scaled.
HWY_INLINE F32x16 Scaled(I32x16 sum, F32x16 x_scale, F32x16 w_scale) {
  F32x16 result;
  BAM_EACH_PART result.part[p] = hn::ConvertTo(FloatTag(), sum.part[p]);
  return Mul(result, Mul(x_scale, w_scale));
}
// Columns beyond n are dropped. Out of line, or its temporary would push the caller's sums out of their registers.
HWY_NOINLINE void StoreRagged(const Int8GemmArgs& a, const float* tile, int tile_cols, int rows, int64_t row,
                              int64_t col) {
  for (int r = 0; r < rows; ++r) {
    float* y = a.y + (row + r) * a.ldy + col;
    for (int64_t c = 0; c < std::min<int64_t>(tile_cols, a.n - col); ++c) {
      y[c] = a.accumulate ? tile[r * tile_cols + c] + y[c] : tile[r * tile_cols + c];
    }
  }
}

// Scales the sums of a register tile and stores or adds them.
template <int kRows, int kBlocks>
HWY_INLINE void StoreSums(const Int8GemmArgs& a, const I32x16 (&acc)[kRows][kBlocks], int64_t row, int64_t col) {
  F32x16 w_scale[kBlocks];
#pragma GCC unroll 16
  for (int b = 0; b < kBlocks; ++b) w_scale[b] = Load16(a.w_scale + col + 16 * b);
  if (col + kBlocks * 16 <= a.n) {
    float* y = a.y + row * a.ldy + col;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 x_scale = Set16(a.x_scale[row + r]);
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) {
        const F32x16 value = Scaled(acc[r][b], x_scale, w_scale[b]);
        float* to = y + r * a.ldy + 16 * b;
        Store16(a.accumulate ? Add(value, Load16(to)) : value, to);
      }
    }
  } else {
    HWY_ALIGN float tile[kRows * kBlocks * 16];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 x_scale = Set16(a.x_scale[row + r]);
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) {
        Store16(Scaled(acc[r][b], x_scale, w_scale[b]), tile + (r * kBlocks + b) * 16);
      }
    }
    StoreRagged(a, tile, kBlocks * 16, kRows, row, col);
  }
}

// kRows rows x kPanels panels; on narrow register files one half of a panel at a time.
template <int kRows, int kPanels, int kLines>
HWY_NOINLINE void Int8Tile(const Int8GemmArgs& a, int64_t panel_index, int64_t row, Share next) {
  const int64_t quads = (a.k + 3) / 4;
  const int64_t panel_bytes = quads * kPanelCols * 4;
  const int8_t* panel = a.panels + panel_index * panel_bytes;
  const uint8_t* x = a.x + row * a.ldx;
  constexpr int kGroups = (kRows + 2) / 3;
  constexpr int kBlocks = kPanels * kTileBlocks;
  constexpr bool kStreams = kPanels == 1 || kRows <= 3;  // see GemmInt8()
  const uint8_t* group[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) group[g] = x + 3 * g * a.ldx;
  PrefetchTile<kRows, kPanels>(a.y + row * a.ldy + panel_index * kPanelCols, a.ldy);
  for (int first = 0; first < 2; first += kTileBlocks) {
    // Columns of a tile are consecutive: panels side by side, or one half panel.
    const int64_t col = panel_index * kPanelCols + first * 16;
    I32x16 acc[kRows][kBlocks];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      acc[0][b] = FirstSum(a, col + 16 * b);
#pragma GCC unroll 16
      for (int r = 1; r < kRows; ++r) acc[r][b] = acc[0][b];
    }
    for (int64_t i = 0; i < quads; ++i) {
      I32x16 w[kBlocks];
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) {
        const int block = first + b % kTileBlocks;
        const int8_t* at = panel + (b / kTileBlocks) * panel_bytes + i * kPanelCols * 4 + block * 64;
        w[b] = LoadInt16(at);
        if constexpr (kStreams) __builtin_prefetch(at + kInt8Ahead * kPanelCols * 4);
      }
      if constexpr (kPanels == 2) next.template Fetch<kLines>();
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int b = 0; b < kBlocks; ++b) {
          acc[r][b] = DotQuads(group[r / 3] + (r % 3) * a.ldx + i * kQuadBytes, w[b], acc[r][b]);
        }
      }
    }
    StoreSums<kRows, kBlocks>(a, acc, row, col);
  }
}

template <int kPanels, int kRows>
HWY_INLINE void Int8AnyTile(int64_t rows, const Int8GemmArgs& a, int64_t panel_index, int64_t row, Share next) {
  if (rows == kRows) {
    if (kPanels == 2 && next.step > kLineBytes) return Int8Tile<kRows, kPanels, 2>(a, panel_index, row, next);
    return Int8Tile<kRows, kPanels, 1>(a, panel_index, row, next);
  }
  if constexpr (kRows > 1) Int8AnyTile<kPanels, kRows - 1>(rows, a, panel_index, row, next);
}

// All rows against kPanels panels.
template <int kPanels, int kMost>
void Int8Panels(const Int8GemmArgs& a, int64_t p, const NextPanels& next) {
  int64_t tile = 0;
  for (int64_t r = 0; r < a.rows; ++tile) {
    const int64_t height = TileHeight<kMost>(a.rows, r);
    Int8AnyTile<kPanels, kMost>(height, a, p, r, next.Tile(tile));
    r += height;
  }
}

// The panels from `pair` on come next; -1: none, and `p` again does no harm.
template <int kMost>
NextPanels Int8Next(const Int8GemmArgs& a, int64_t p, int64_t pair) {
  const int64_t quads = (a.k + 3) / 4, panel_bytes = quads * kPanelCols * 4;
  const int8_t* at = a.panels + (pair < 0 ? p : pair) * panel_bytes;
  if (pair < 0) return NextPanels(at);
  return NextPanels(at, at + panel_bytes, panel_bytes, (a.rows + kMost - 1) / kMost, quads);
}

void GemmInt8(const Int8GemmArgs& a) {
  int64_t p = a.first_panel;
  if constexpr (kPairs) {
    // Also one to three rows: twice the streams hide more of the memory's latency.
    if (a.rows > kTileRows || a.rows <= 3) {
      for (; p + 2 <= a.last_panel; p += 2) {
        const int64_t next = p + 2 < a.last_panel ? p + 2 : a.next_panel;
        const bool fetch = a.rows > kTileRows && next + 2 <= (a.n + kPanelCols - 1) / kPanelCols;
        Int8Panels<2, kPairRows>(a, p, Int8Next<kPairRows>(a, p, fetch ? next : -1));
      }
    }
  }
  for (; p < a.last_panel; ++p) Int8Panels<1, kTileRows>(a, p, Int8Next<kTileRows>(a, p, -1));
}

float QuantizeRow(const float* x, int64_t k, uint8_t* out) {
  const int64_t whole = k / 16 * 16;
  constexpr int kChains = 4;  // or each maximum would wait for the one before
  F32x16 largest[kChains] = {Zero16(), Zero16(), Zero16(), Zero16()};
  int64_t done = 0;
  for (; done + 16 * kChains <= whole; done += 16 * kChains) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) largest[c] = Max(largest[c], Abs(Load16(x + done + 16 * c)));
  }
  for (; done < whole; done += 16) largest[0] = Max(largest[0], Abs(Load16(x + done)));
  float max_abs = ReduceMax16(Max(Max(largest[0], largest[1]), Max(largest[2], largest[3])));
  for (int64_t i = whole; i < k; ++i) max_abs = std::max(max_abs, std::fabs(x[i]));
  const float inverse = max_abs > 0 ? 127.0f / max_abs : 0.0f;
  const F32x16 scale = Set16(inverse);
  HWY_ALIGN int16_t block[16];
  for (int64_t at = 0; at < (k + 3) / 4 * 4; at += 16) {
    const int count = static_cast<int>(std::min<int64_t>(16, (k + 3) / 4 * 4 - at));
    if (at < whole) {
      const F32x16 v = Mul(Load16(x + at), scale);
      if (kVnni) {
        const hn::Rebind<int8_t, FloatTag> d8;
        BAM_EACH_PART {
          const auto bytes = hn::DemoteTo(d8, hn::NearestInt(v.part[p]));
          hn::StoreU(hn::Xor(bytes, hn::Set(d8, int8_t{-128})), d8, reinterpret_cast<int8_t*>(out + at) + p * kLanes);
        }
        continue;
      }
      const hn::Rebind<int16_t, FloatTag> d16;
      BAM_EACH_PART hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(v.part[p])), d16, block + p * kLanes);
    } else {
      for (int i = 0; i < count; ++i) {
        block[i] = at + i < k ? static_cast<int16_t>(std::lrintf(x[at + i] * inverse)) : int16_t{0};
      }
    }
    if (kVnni) {
      for (int i = 0; i < count; ++i) out[at + i] = static_cast<uint8_t>(block[i] + 128);
    } else {
      for (int i = 0; i < count; i += 4) {
        const int16_t pairs[4] = {block[i], block[i + 2], block[i + 1], block[i + 3]};
        std::memcpy(out + 2 * (at + i), pairs, sizeof pairs);
      }
    }
  }
  return max_abs / 127.0f;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
