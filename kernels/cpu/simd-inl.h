// Sixteen floats at a time on every instruction set: one register with AVX-512, two with AVX2, four with SSE2 or NEON.
// All kernels are written on this block and on one fixed reduction tree, so the instruction sets with fused
// multiply-add give the same bits. Included once per Highway target (no include guard in the usual sense).
#if defined(BAM_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_SIMD_INL_H_
#undef BAM_KERNELS_CPU_SIMD_INL_H_
#else
#define BAM_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bam {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
inline constexpr int kParts = 16 / kLanes;
// Registers the micro-kernels may fill with accumulators, in blocks of sixteen floats.
inline constexpr int kAccumulators = kParts == 1 ? 24 : (kParts == 2 ? 6 : 3);

struct F32x16 {
  hn::Vec<FloatTag> part[kParts];
};
struct I32x16 {
  hn::Vec<IntTag> part[kParts];
};

#define BAM_EACH_PART _Pragma("GCC unroll 16") for (int p = 0; p < kParts; ++p)

HWY_INLINE F32x16 Set16(float value) {
  F32x16 r;
  BAM_EACH_PART r.part[p] = hn::Set(FloatTag(), value);
  return r;
}
HWY_INLINE F32x16 Zero16() { return Set16(0.0f); }
HWY_INLINE F32x16 Load16(const float* from) {
  F32x16 r;
  BAM_EACH_PART r.part[p] = hn::LoadU(FloatTag(), from + p * kLanes);
  return r;
}
HWY_INLINE void Store16(F32x16 v, float* to) { BAM_EACH_PART hn::StoreU(v.part[p], FloatTag(), to + p * kLanes); }
HWY_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  BAM_EACH_PART a.part[p] = hn::Add(a.part[p], b.part[p]);
  return a;
}
HWY_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  BAM_EACH_PART a.part[p] = hn::Sub(a.part[p], b.part[p]);
  return a;
}
HWY_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  BAM_EACH_PART a.part[p] = hn::Mul(a.part[p], b.part[p]);
  return a;
}
HWY_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  BAM_EACH_PART a.part[p] = hn::Div(a.part[p], b.part[p]);
  return a;
}
HWY_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  BAM_EACH_PART a.part[p] = hn::Max(a.part[p], b.part[p]);
  return a;
}
HWY_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  BAM_EACH_PART a.part[p] = hn::Min(a.part[p], b.part[p]);
  return a;
}
HWY_INLINE F32x16 Abs(F32x16 a) {
  BAM_EACH_PART a.part[p] = hn::Abs(a.part[p]);
  return a;
}
// a * b + c, fused where the target can, or in two roundings everywhere.
template <bool kFused = true>
HWY_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  if constexpr (!kFused) return Add(Mul(a, b), c);
  BAM_EACH_PART c.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return c;
}

// Fixed tree: lanes i and i + 8, then 4, 2, 1.
HWY_INLINE float ReduceSum16(F32x16 v) {
  HWY_ALIGN float lanes[16];
  Store16(v, lanes);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
HWY_INLINE float ReduceMax16(F32x16 v) {
  HWY_ALIGN float lanes[16];
  Store16(v, lanes);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
}

// Two columns of bfloat16 share a 32-bit lane: low half = first sixteen, high half = second sixteen.
HWY_INLINE void LoadBf16Pair(const uint16_t* from, F32x16& first, F32x16& second) {
  const hn::RebindToUnsigned<FloatTag> du;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
  BAM_EACH_PART {
    const auto pair = hn::LoadU(du, words + p * kLanes);
    first.part[p] = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(pair));
    second.part[p] = hn::BitCast(FloatTag(), hn::And(pair, hn::Set(du, 0xffff0000u)));
  }
}
HWY_INLINE F32x16 LoadF16(const uint16_t* from) {
  F32x16 r;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  BAM_EACH_PART r.part[p] =
      hn::PromoteTo(FloatTag(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from) + p * kLanes));
  return r;
}
HWY_INLINE F32x16 LoadI8(const int8_t* from) {
  F32x16 r;
  const hn::Rebind<int8_t, FloatTag> db;
  BAM_EACH_PART r.part[p] = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(db, from + p * kLanes)));
  return r;
}

// exp(x) for x <= 0 as 2^n * 2^f, relative error below 3e-7 + 2e-8 |x| (8e-8 |x| without fused multiply-adds); 0 from
// -87.3 on (never a subnormal), also for minus infinity. Attention spends a fifth of its time here: every operation
// counts.
template <bool kFused = true>
HWY_INLINE F32x16 ExpNegative(F32x16 x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, found in the lowest bits
  F32x16 result;
  BAM_EACH_PART {
    const auto v = x.part[p];
    const FloatTag d;
    const auto log2e = hn::Set(d, kLog2e), magic = hn::Set(d, kMagic);
    const auto mul_add = [](auto a, auto b, auto c) HWY_ATTR {
      if constexpr (kFused) return hn::MulAdd(a, b, c);
      return hn::Add(hn::Mul(a, b), c);
    };
    const auto rounded = mul_add(v, log2e, magic);
    const auto whole = hn::Sub(rounded, magic);
    const auto f = kFused ? hn::MulSub(v, log2e, whole) : hn::Sub(hn::Mul(v, log2e), whole);
    // The polynomial of degree 5 nearest to 2^f on [-1/2, 1/2] (relative error 9e-8) that is 1 at 0.
    auto power = hn::Set(d, 0x1.5bba08p-10f);
    power = mul_add(power, f, hn::Set(d, 0x1.3cea8ap-7f));
    power = mul_add(power, f, hn::Set(d, 0x1.c6b754p-5f));
    power = mul_add(power, f, hn::Set(d, 0x1.ebf9bcp-3f));
    power = mul_add(power, f, hn::Set(d, 0x1.62e42ap-1f));
    power = mul_add(power, f, hn::Set(d, 1.0f));
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(IntTag(), rounded));
    const auto value = hn::BitCast(d, hn::Add(hn::BitCast(IntTag(), power), exponent));
    result.part[p] = hn::IfThenElseZero(hn::Gt(v, hn::Set(d, -87.3f)), value);
  }
  return result;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam
HWY_AFTER_NAMESPACE();

#endif
