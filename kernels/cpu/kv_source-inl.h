// The number formats of KV pages, sixteen numbers at a time. Included once per Highway target.
#if defined(BAM_KERNELS_CPU_KV_SOURCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_KV_SOURCE_INL_H_
#undef BAM_KERNELS_CPU_KV_SOURCE_INL_H_
#else
#define BAM_KERNELS_CPU_KV_SOURCE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

// Stored numbers as raw float32: quantised ones without their scale.
struct F32Source {
  static constexpr int kBytes16 = 64;
  static HWY_INLINE F32x16 Load(const std::byte* at) { return Load16(reinterpret_cast<const float*>(at)); }
};
struct F16Source {
  static constexpr int kBytes16 = 32;
  static HWY_INLINE F32x16 Load(const std::byte* at) { return LoadF16(reinterpret_cast<const uint16_t*>(at)); }
};
struct I8Source {
  static constexpr int kBytes16 = 16;
  static HWY_INLINE F32x16 Load(const std::byte* at) { return LoadI8(reinterpret_cast<const int8_t*>(at)); }
};
struct I4Source {
  static constexpr int kBytes16 = 8;
  static HWY_INLINE F32x16 Load(const std::byte* at) {
    uint64_t packed;
    std::memcpy(&packed, at, sizeof packed);
    constexpr uint64_t kMask = 0x0f0f0f0f0f0f0f0full;
#if HWY_TARGET <= HWY_AVX2
    // In registers: a load of what two narrower stores have just written would wait for them.
    const hn::Full128<uint64_t> d64;
    const auto low = hn::Set(d64, packed);
    const auto both = hn::And(hn::ConcatUpperLower(d64, hn::ShiftRight<4>(low), low), hn::Set(d64, kMask));
    const auto codes = hn::BitCast(hn::Full128<int8_t>(), both);
    F32x16 r;
#if HWY_TARGET <= HWY_AVX3
    r.part[0] = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), codes));
#else
    const hn::Full64<int8_t> half;
    r.part[0] = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LowerHalf(half, codes)));
    r.part[1] = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::UpperHalf(half, codes)));
#endif
    return r;
#else
    const uint64_t halves[2] = {packed & kMask, (packed >> 4) & kMask};
    int8_t codes[16];
    std::memcpy(codes, halves, sizeof codes);
    return LoadI8(codes);
#endif
  }
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
