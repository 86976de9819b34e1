// Products of bytes in groups of four ("quads"): rows of small integers times sixteen columns, exact sums in 32 bits.
// The columns are what KV pages hold, put side by side in groups of four. Included once per Highway target.
#if defined(BAM_KERNELS_CPU_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_QUADS_INL_H_
#undef BAM_KERNELS_CPU_QUADS_INL_H_
#else
#define BAM_KERNELS_CPU_QUADS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

// Sixteen quads of columns.
constexpr int kQuadBlockBytes = 64;

#if HWY_TARGET == HWY_AVX3_DL
// VNNI: a row's quad is four bytes, unsigned times signed. Keys of int8 pages are stored with 128 added, and sums of
// theirs start at -128 times the sum of the row's codes.
constexpr int kQuadWords = 1;
constexpr int kKeyOffset = 128;
#else
// Elsewhere a row's quad is two pairs of 16 bits, elements 0 and 2, 1 and 3.
constexpr int kQuadWords = 2;
constexpr int kKeyOffset = 0;
#endif

// A row of codes as `quads` quads: kQuadWords arrays of that many words.
HWY_INLINE void PutRow(const int32_t* codes, int quads, int32_t* words) {
  for (int i = 0; i < quads; ++i) {
    const int32_t* code = codes + 4 * i;
    if constexpr (kQuadWords == 1) {
      words[i] = (code[0] & 255) | (code[1] & 255) << 8 | (code[2] & 255) << 16 |
                 static_cast<int32_t>(static_cast<uint32_t>(code[3]) << 24);
    } else {
      words[i] = (code[0] & 65535) | static_cast<int32_t>(static_cast<uint32_t>(code[2]) << 16);
      words[quads + i] = (code[1] & 65535) | static_cast<int32_t>(static_cast<uint32_t>(code[3]) << 16);
    }
  }
}
// Sixteen quads at once, element e of each from code[e].
HWY_INLINE void PutCodes(const I32x16 (&code)[4], int32_t* words) {
  const IntTag d;
  BAM_EACH_PART {
    if constexpr (kQuadWords == 1) {
      const auto low = hn::Or(code[0].part[p], hn::ShiftLeft<8>(code[1].part[p]));
      const auto high = hn::Or(code[2].part[p], hn::ShiftLeft<8>(code[3].part[p]));
      hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), d, words + p * kLanes);
    } else {
      hn::StoreU(hn::Or(code[0].part[p], hn::ShiftLeft<16>(code[2].part[p])), d, words + p * kLanes);
      hn::StoreU(hn::Or(code[1].part[p], hn::ShiftLeft<16>(code[3].part[p])), d, words + 16 + p * kLanes);
    }
  }
}

struct RowQuad {
  hn::Vec<IntTag> word[kQuadWords];
};
HWY_INLINE RowQuad LoadQuad(const int32_t* words, int count, int quad) {
  RowQuad q;
  for (int w = 0; w < kQuadWords; ++w) q.word[w] = hn::Set(IntTag(), words[w * count + quad]);
  return q;
}
HWY_INLINE I32x16 LoadColumns(const std::byte* at) {
  I32x16 r;
  BAM_EACH_PART r.part[p] = hn::LoadU(IntTag(), reinterpret_cast<const int32_t*>(at) + p * kLanes);
  return r;
}
HWY_INLINE I32x16 SetSums(int32_t value) {
  I32x16 r;
  BAM_EACH_PART r.part[p] = hn::Set(IntTag(), value);
  return r;
}
HWY_INLINE void StoreSums(I32x16 v, int32_t* to) { BAM_EACH_PART hn::StoreU(v.part[p], IntTag(), to + p * kLanes); }
HWY_INLINE F32x16 ToFloat(I32x16 v) {
  F32x16 r;
  BAM_EACH_PART r.part[p] = hn::ConvertTo(FloatTag(), v.part[p]);
  return r;
}
HWY_INLINE I32x16 Nearest(F32x16 v) {
  I32x16 r;
  BAM_EACH_PART r.part[p] = hn::NearestInt(v.part[p]);
  return r;
}
// Towards zero, of numbers that fit. (Highway's own conversion also minds those that do not.)
HWY_INLINE I32x16 Truncated(F32x16 v) {
  I32x16 r;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  BAM_EACH_PART r.part[p] = hn::Vec<IntTag>{_mm512_cvttps_epi32(v.part[p].raw)};
#elif HWY_TARGET == HWY_AVX2
  BAM_EACH_PART r.part[p] = hn::Vec<IntTag>{_mm256_cvttps_epi32(v.part[p].raw)};
#else
  BAM_EACH_PART r.part[p] = hn::ConvertTo(IntTag(), v.part[p]);
#endif
  return r;
}

#if HWY_TARGET == HWY_AVX3_DL
// Highway's target attribute for this level does not name VNNI (its CPU detection does), so the intrinsic is out of
// reach.
HWY_INLINE I32x16 DotKeys(RowQuad query, I32x16 keys, I32x16 sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.part[0].raw) : "v"(keys.part[0].raw), "v"(query.word[0].raw));
  return sum;
}
HWY_INLINE I32x16 DotValues(RowQuad weights, I32x16 values, I32x16 sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.part[0].raw) : "v"(weights.word[0].raw), "v"(values.part[0].raw));
  return sum;
}
#else
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
// Per lane, the sum of the products of its two 16-bit halves.
HWY_INLINE hn::Vec<IntTag> PairProducts(hn::Vec<IntTag> a, hn::Vec<IntTag> b) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<IntTag>{_mm512_madd_epi16(a.raw, b.raw)};
#else
  return hn::Vec<IntTag>{_mm256_madd_epi16(a.raw, b.raw)};
#endif
}
HWY_INLINE I32x16 DotSigned(RowQuad row, I32x16 columns, I32x16 sum) {
  const hn::Repartition<int16_t, IntTag> d16;
  BAM_EACH_PART {
    const auto bytes = hn::BitCast(d16, columns.part[p]);
    const auto even = hn::BitCast(IntTag(), hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)));
    const auto odd = hn::BitCast(IntTag(), hn::ShiftRight<8>(bytes));
    sum.part[p] = hn::Add(sum.part[p], hn::Add(PairProducts(even, row.word[0]), PairProducts(odd, row.word[1])));
  }
  return sum;
}
#else
HWY_INLINE I32x16 DotSigned(RowQuad row, I32x16 columns, I32x16 sum) {
  const auto x0 = hn::ShiftRight<16>(hn::ShiftLeft<16>(row.word[0])), x2 = hn::ShiftRight<16>(row.word[0]);
  const auto x1 = hn::ShiftRight<16>(hn::ShiftLeft<16>(row.word[1])), x3 = hn::ShiftRight<16>(row.word[1]);
  BAM_EACH_PART {
    const auto bytes = columns.part[p];
    const auto first = hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<24>(bytes)), x0);
    const auto second = hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<16>(bytes)), x1);
    const auto third = hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<8>(bytes)), x2);
    const auto fourth = hn::Mul(hn::ShiftRight<24>(bytes), x3);
    sum.part[p] = hn::Add(sum.part[p], hn::Add(hn::Add(first, second), hn::Add(third, fourth)));
  }
  return sum;
}
#endif
HWY_INLINE I32x16 DotKeys(RowQuad query, I32x16 keys, I32x16 sum) { return DotSigned(query, keys, sum); }
HWY_INLINE I32x16 DotValues(RowQuad weights, I32x16 values, I32x16 sum) { return DotSigned(weights, values, sum); }
#endif

// ---- columns from pages: four rows of sixteen codes become sixteen quads ----

#if HWY_TARGET != HWY_SCALAR
using Codes16 = hn::Vec<hn::Full128<uint8_t>>;

struct I8Rows {
  static constexpr int kBytes = 16;
  static HWY_INLINE Codes16 Load(const std::byte* at) {
    return hn::LoadU(hn::Full128<uint8_t>(), reinterpret_cast<const uint8_t*>(at));
  }
};
struct I4Rows {
  static constexpr int kBytes = 8;
  static HWY_INLINE Codes16 Load(const std::byte* at) {
    const hn::Full128<uint64_t> d64;
    uint64_t packed;
    std::memcpy(&packed, at, sizeof packed);
    const auto low = hn::Set(d64, packed);
    const auto both = hn::ConcatUpperLower(d64, hn::ShiftRight<4>(low), low);
    return hn::BitCast(hn::Full128<uint8_t>(), hn::And(both, hn::Set(d64, 0x0f0f0f0f0f0f0f0full)));
  }
};

#if HWY_TARGET == HWY_AVX3_DL
// Straight from a page, four shuffles at most: few rows do without a copy. `flip` goes to every byte by exclusive or: 0x80
// adds 128 to a signed one.
HWY_INLINE I32x16 Columns(__m512i rows, int flip) {
  alignas(64) static constexpr uint8_t kOrder[64] = {0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51,
                                                     4,  20, 36, 52, 5,  21, 37, 53, 6,  22, 38, 54, 7,  23, 39, 55,
                                                     8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
                                                     12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
  const __m512i columns = _mm512_permutexvar_epi8(_mm512_load_si512(kOrder), rows);
  return {{{flip == 0 ? columns : _mm512_xor_si512(columns, _mm512_set1_epi8(static_cast<char>(flip)))}}};
}
HWY_INLINE I32x16 Columns(Codes16 a, Codes16 b, Codes16 c, Codes16 d, int flip) {
  __m512i rows = _mm512_inserti32x4(_mm512_castsi128_si512(a.raw), b.raw, 1);
  rows = _mm512_inserti32x4(_mm512_inserti32x4(rows, c.raw, 2), d.raw, 3);
  return Columns(rows, flip);
}
// Of four rows side by side.
template <typename Rows>
HWY_INLINE I32x16 ColumnsAt(const std::byte* at, int flip) {
  if constexpr (Rows::kBytes == 16) return Columns(_mm512_loadu_si512(at), flip);
  return Columns(Rows::Load(at), Rows::Load(at + Rows::kBytes), Rows::Load(at + 2 * Rows::kBytes),
                 Rows::Load(at + 3 * Rows::kBytes), flip);
}
HWY_INLINE void StoreColumns(Codes16 a, Codes16 b, Codes16 c, Codes16 d, int flip, std::byte* to) {
  _mm512_storeu_si512(to, Columns(a, b, c, d, flip).part[0].raw);
}
template <typename Rows>
HWY_INLINE void StoreColumnsAt(const std::byte* at, int flip, std::byte* to) {
  _mm512_storeu_si512(to, ColumnsAt<Rows>(at, flip).part[0].raw);
}
#else
HWY_INLINE void StoreColumns(Codes16 a, Codes16 b, Codes16 c, Codes16 d, int flip, std::byte* to) {
  const hn::Full128<uint8_t> d8;
  const hn::Full128<uint16_t> d16;
  uint8_t* at = reinterpret_cast<uint8_t*>(to);
  const auto put = [&](auto ab, auto cd, uint8_t* place) HWY_ATTR {
    const auto x = hn::BitCast(d16, ab), y = hn::BitCast(d16, cd);
    const auto mask = hn::Set(d8, static_cast<uint8_t>(flip));
    hn::StoreU(hn::Xor(hn::BitCast(d8, hn::InterleaveLower(d16, x, y)), mask), d8, place);
    hn::StoreU(hn::Xor(hn::BitCast(d8, hn::InterleaveUpper(d16, x, y)), mask), d8, place + 16);
  };
  put(hn::InterleaveLower(d8, a, b), hn::InterleaveLower(d8, c, d), at);
  put(hn::InterleaveUpper(d8, a, b), hn::InterleaveUpper(d8, c, d), at + 32);
}
#endif
#else
struct Codes16 {
  uint8_t code[16];
};
struct I8Rows {
  static constexpr int kBytes = 16;
  static Codes16 Load(const std::byte* at) {
    Codes16 r;
    std::memcpy(r.code, at, sizeof r.code);
    return r;
  }
};
struct I4Rows {
  static constexpr int kBytes = 8;
  static Codes16 Load(const std::byte* at) {
    Codes16 r;
    for (int i = 0; i < 16; ++i) r.code[i] = static_cast<uint8_t>(static_cast<int>(at[i % 8]) >> (i < 8 ? 0 : 4) & 15);
    return r;
  }
};
inline void StoreColumns(Codes16 a, Codes16 b, Codes16 c, Codes16 d, int flip, std::byte* to) {
  for (int i = 0; i < 16; ++i) {
    const int quad[4] = {a.code[i], b.code[i], c.code[i], d.code[i]};
    for (int e = 0; e < 4; ++e) to[4 * i + e] = static_cast<std::byte>(quad[e] ^ flip);
  }
}
#endif

#if HWY_TARGET != HWY_AVX3_DL
template <typename Rows>
HWY_INLINE void StoreColumnsAt(const std::byte* at, int flip, std::byte* to) {
  StoreColumns(Rows::Load(at), Rows::Load(at + Rows::kBytes), Rows::Load(at + 2 * Rows::kBytes),
               Rows::Load(at + 3 * Rows::kBytes), flip, to);
}
#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
