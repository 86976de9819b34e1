// Linear layers with four-bit weights (kernels/int4.h) and int8 activations: few rows decode weights in registers, many
// rows decode two panels once and go on as int8 does. Sums are exact integers: every path gives the same bits.
// Included once per Highway target.
#if defined(BAM_KERNELS_CPU_GEMM_INT4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_GEMM_INT4_INL_H_
#undef BAM_KERNELS_CPU_GEMM_INT4_INL_H_
#else
#define BAM_KERNELS_CPU_GEMM_INT4_INL_H_
#endif

#include "kernels/cpu/gemm_int8-inl.h"
#include "kernels/int4.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

// Decoding: 64 codes and the factors of sixteen outputs beside them, what is loaded once, the factors of one group, four
// weights for each of sixteen outputs. Bits above a code's four may be anything. `factors` has those of an even group in
// its low nibbles, of the next one in its high ones.
#if HWY_TARGET == HWY_SCALAR
struct Bytes64 {
  uint8_t byte[64];
};
struct Int4Tables {};
HWY_INLINE Int4Tables LoadTables() { return {}; }
using GroupFactors = Bytes64;
HWY_INLINE Bytes64 LoadBytes64(const uint8_t* from) {
  Bytes64 r;
  std::memcpy(r.byte, from, sizeof r.byte);
  return r;
}
HWY_INLINE Bytes64 LoadFactors(const uint8_t* from) {
  Bytes64 r;
  for (int i = 0; i < 64; ++i) r.byte[i] = from[i / 4];
  return r;
}
HWY_INLINE Bytes64 HighNibbles(Bytes64 v) {
  for (uint8_t& byte : v.byte) byte >>= 4;
  return v;
}
HWY_INLINE GroupFactors Factors(const Int4Tables&, Bytes64 factors, bool odd) {
  return odd ? HighNibbles(factors) : factors;
}
HWY_INLINE I32x16 Decode(const Int4Tables&, const GroupFactors& g, Bytes64 codes) {
  int8_t values[64];
  for (int i = 0; i < 64; ++i) values[i] = static_cast<int8_t>(int4_value(codes.byte[i] & 15, g.byte[i] & 15));
  return LoadInt16(values);
}
#else
using ByteTag = hn::Repartition<uint8_t, IntTag>;
struct Bytes64 {
  hn::Vec<ByteTag> part[kParts];
};

HWY_INLINE Bytes64 LoadBytes64(const uint8_t* from) {
  Bytes64 r;
  BAM_EACH_PART r.part[p] = hn::LoadU(ByteTag(), from + p * kLanes * 4);
  return r;
}
// Sixteen bytes, each one four times: the factors of sixteen outputs beside the four weights of each.
HWY_INLINE Bytes64 LoadFactors(const uint8_t* from) {
  alignas(16) constexpr uint8_t kSpread[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
  const hn::Rebind<uint8_t, IntTag> quarter;
  const hn::RebindToUnsigned<IntTag> wide;
  Bytes64 r;
  BAM_EACH_PART {
    const auto first = hn::BitCast(ByteTag(), hn::PromoteTo(wide, hn::LoadU(quarter, from + p * kLanes)));
    r.part[p] = hn::TableLookupBytes(first, hn::LoadDup128(ByteTag(), kSpread));
  }
  return r;
}
HWY_INLINE Bytes64 HighNibbles(Bytes64 v) {
  const hn::RepartitionToWide<ByteTag> words;
  BAM_EACH_PART v.part[p] = hn::BitCast(ByteTag(), hn::ShiftRight<4>(hn::BitCast(words, v.part[p])));
  return v;
}

#if HWY_TARGET == HWY_AVX3_DL
constexpr size_t kInt4Half = 8 * 16;
struct Int4Tables {
  __m512i low, high;  // by factor and code, positive factors only
  __m512i code_bits;
};
HWY_INLINE Int4Tables LoadTables() {
  alignas(64) static constexpr auto kValues = [] {
    std::array<int8_t, kInt4Half> values{};
    for (int i = 0; i < static_cast<int>(kInt4Half); ++i)
      values[static_cast<size_t>(i)] = static_cast<int8_t>(int4_value(i % 16, i / 16));
    return values;
  }();
  return {_mm512_load_si512(kValues.data()), _mm512_load_si512(kValues.data() + 64), _mm512_set1_epi8(15)};
}
struct GroupFactors {
  __m512i high_nibbles;
  __mmask64 negative;
};
HWY_INLINE GroupFactors Factors(const Int4Tables&, Bytes64 factors, bool odd) {
  const __m512i high = odd ? factors.part[0].raw : _mm512_slli_epi16(factors.part[0].raw, 4);
  return {high, _mm512_movepi8_mask(high)};
}
HWY_INLINE I32x16 Decode(const Int4Tables& t, const GroupFactors& g, Bytes64 codes) {
  // code_bits ? codes : factors
  const __m512i index = _mm512_ternarylogic_epi32(t.code_bits, codes.part[0].raw, g.high_nibbles, 0xca);
  const __m512i value = _mm512_permutex2var_epi8(t.low, index, t.high);
  I32x16 r;
  r.part[0].raw = _mm512_mask_sub_epi8(value, g.negative, _mm512_setzero_si512(), value);
  return r;
}
#else
struct Int4Tables {
  hn::Vec<ByteTag> levels, factors, code_bits;
};
HWY_INLINE Int4Tables LoadTables() {
  return {hn::LoadDup128(ByteTag(), reinterpret_cast<const uint8_t*>(kInt4Levels.data())),
          hn::LoadDup128(ByteTag(), reinterpret_cast<const uint8_t*>(kInt4Factors.data())),
          hn::Set(ByteTag(), uint8_t{15})};
}
using WordTag = hn::Repartition<int16_t, IntTag>;
struct GroupFactors {
  hn::Vec<WordTag> part[kParts];
};
HWY_INLINE GroupFactors Factors(const Int4Tables& t, Bytes64 factors, bool odd) {
  GroupFactors r;
  if (odd) factors = HighNibbles(factors);
  BAM_EACH_PART {
    const auto index = hn::And(factors.part[p], t.code_bits);
    r.part[p] = hn::ShiftRight<8>(hn::BitCast(WordTag(), hn::TableLookupBytes(t.factors, index)));
  }
  return r;
}
// int4_value(): (256 level * factor + 2^14) >> 15, for the even and the odd bytes.
HWY_INLINE I32x16 Decode(const Int4Tables& t, const GroupFactors& g, Bytes64 codes) {
  const auto high_byte = hn::Set(WordTag(), static_cast<int16_t>(0xff00));
  I32x16 r;
  BAM_EACH_PART {
    const auto level = hn::BitCast(WordTag(), hn::TableLookupBytes(t.levels, hn::And(codes.part[p], t.code_bits)));
    const auto even = hn::MulFixedPoint15(hn::ShiftLeft<8>(level), g.part[p]);
    const auto odd = hn::MulFixedPoint15(hn::And(level, high_byte), g.part[p]);
    r.part[p] = hn::BitCast(IntTag(), hn::Or(hn::AndNot(high_byte, even), hn::ShiftLeft<8>(odd)));
  }
  return r;
}
#endif
#endif

constexpr int64_t kInt4Ahead = 4;  // pairs of groups
// Rows that are worth decoding in registers for.
constexpr int kInt4Rows = kParts == 1 ? 8 : (kParts == 2 ? 4 : 2);

template <int kRows, int kPanels>
HWY_NOINLINE void Int4Tile(const Int4GemmArgs& a, int64_t panel_index) {
  const Int8GemmArgs& sums = a.sums;
  const int64_t pairs = a.sums.k / (2 * kInt4Group);
  constexpr int kBlocks = kPanels * kTileBlocks;
  constexpr int kGroups = (kRows + 2) / 3;
  const uint8_t* group[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) group[g] = sums.x + 3 * g * sums.ldx;
  const Int4Tables tables = LoadTables();
  for (int first = 0; first < 2; first += kTileBlocks) {
    const int64_t col = panel_index * kPanelCols + first * 16;
    I32x16 acc[kRows][kBlocks];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      acc[0][b] = FirstSum(sums, col + 16 * b);
#pragma GCC unroll 16
      for (int r = 1; r < kRows; ++r) acc[r][b] = acc[0][b];
    }
    const uint8_t* codes = a.codes + panel_index * pairs * kInt4PairBytes + first * 64;
    const uint8_t* factors = a.factors + panel_index * pairs * kPanelCols + first * 16;
    for (int64_t i = 0; i < pairs; ++i, codes += kInt4PairBytes, factors += kPanelCols) {
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        GroupFactors of[kBlocks];
#pragma GCC unroll 16
        for (int b = 0; b < kBlocks; ++b) {
          of[b] = Factors(tables, LoadFactors(factors + (b / kTileBlocks) * pairs * kPanelCols + b % kTileBlocks * 16),
                          odd != 0);
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          Bytes64 both[kBlocks];
#pragma GCC unroll 16
          for (int b = 0; b < kBlocks; ++b) {
            const uint8_t* at = codes + (b / kTileBlocks) * pairs * kInt4PairBytes + (2 * odd + half) * kPanelCols * 4 +
                                b % kTileBlocks * 64;
            both[b] = LoadBytes64(at);
            __builtin_prefetch(at + kInt4Ahead * kInt4PairBytes);
          }
#pragma GCC unroll 2
          for (int high = 0; high < 2; ++high) {
            const int64_t quad = 8 * i + 4 * odd + 2 * half + high;
#pragma GCC unroll 16
            for (int b = 0; b < kBlocks; ++b) {
              const I32x16 w = Decode(tables, of[b], high != 0 ? HighNibbles(both[b]) : both[b]);
#pragma GCC unroll 16
              for (int r = 0; r < kRows; ++r) {
                acc[r][b] = DotQuads(group[r / 3] + (r % 3) * sums.ldx + quad * kQuadBytes, w, acc[r][b]);
              }
            }
          }
        }
      }
#pragma GCC unroll 16
      for (int q = 0; q < kPanels; ++q) {
        __builtin_prefetch(factors + q * pairs * kPanelCols + kInt4Ahead * kPanelCols);
      }
    }
    StoreSums<kRows, kBlocks>(sums, acc, 0, col);
  }
}

template <int kPanels, int kRows>
HWY_INLINE void Int4AnyTile(const Int4GemmArgs& a, int64_t panel_index) {
  if (a.sums.rows == kRows) return Int4Tile<kRows, kPanels>(a, panel_index);
  if constexpr (kRows > 1) Int4AnyTile<kPanels, kRows - 1>(a, panel_index);
}

// A panel as int8 has it.
HWY_NOINLINE void DecodePanel(const uint8_t* codes, const uint8_t* factors, int64_t pairs, int8_t* out) {
  const Int4Tables tables = LoadTables();
  for (int64_t i = 0; i < 2 * pairs; ++i) {
#pragma GCC unroll 2
    for (int block = 0; block < 2; ++block) {
      const GroupFactors of = Factors(tables, LoadFactors(factors + i / 2 * kPanelCols + block * 16), i % 2 != 0);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Bytes64 both = LoadBytes64(codes + (2 * i + half) * kPanelCols * 4 + block * 64);
        int8_t* to = out + (4 * i + 2 * half) * kPanelCols * 4 + block * 64;
        StoreInt16(Decode(tables, of, both), to);
        StoreInt16(Decode(tables, of, HighNibbles(both)), to + kPanelCols * 4);
      }
    }
  }
}

// kPanels panels from p on, decoded first.
template <int kPanels, int kMost>
void Int4Panels(const Int4GemmArgs& a, int64_t p, int64_t next_pair) {
  const int64_t pairs = a.sums.k / (2 * kInt4Group), quads = a.sums.k / 4;
  const int64_t panel_bytes = pairs * kInt4PairBytes;
  for (int q = 0; q < kPanels; ++q) {
    DecodePanel(a.codes + (p + q) * panel_bytes, a.factors + (p + q) * pairs * kPanelCols, pairs,
                a.decoded + q * quads * kPanelCols * 4);
  }
  Int8GemmArgs part = a.sums;  // the same with panel p as its first
  part.panels = a.decoded;
  part.n -= p * kPanelCols;
  part.y += p * kPanelCols;
  part.w_scale += p * kPanelCols;
  part.w_offset += p * kPanelCols;
  const uint8_t* at = a.codes + (next_pair < 0 ? p : next_pair) * panel_bytes;
  Int8Panels<kPanels, kMost>(
      part, 0,
      next_pair < 0 ? NextPanels(at)
                    : NextPanels(at, at + panel_bytes, panel_bytes, (a.sums.rows + kMost - 1) / kMost, quads));
}

void GemmInt4(const Int4GemmArgs& a) {
  const Int8GemmArgs& sums = a.sums;
  int64_t p = sums.first_panel;
  if (sums.rows <= kInt4Rows) {
    if constexpr (kPairs) {
      if (sums.rows <= 3) {
        for (; p + 2 <= sums.last_panel; p += 2) Int4AnyTile<2, 3>(a, p);
      }
    }
    for (; p < sums.last_panel; ++p) Int4AnyTile<1, kInt4Rows>(a, p);
    return;
  }
  if constexpr (kPairs) {
    for (; p + 2 <= sums.last_panel; p += 2) {
      const int64_t next = p + 2 < sums.last_panel ? p + 2 : sums.next_panel;
      Int4Panels<2, kPairRows>(a, p, next + 2 <= (sums.n + kPanelCols - 1) / kPanelCols ? next : -1);
    }
  }
  for (; p < sums.last_panel; ++p) Int4Panels<1, kTileRows>(a, p, -1);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
