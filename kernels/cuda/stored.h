// Numbers as KV pages hold them. fp8 (e4m3, kernels/dtype.h) is converted by instruction from sm_89 on, by arithmetic
// before. Both give the same bits; tests/cuda_emu/fp8_test.cpp goes through all of them.
#pragma once

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/numeric.h"
#include "kernels/cuda/ptx.h"

namespace bam::cuda {

namespace fp8_arithmetic {

// Round to nearest even, saturate at 448; not for NaN.
__device__ __forceinline__ uint8_t encode(float value) {
  const uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
  if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9, which is the last bit of 2^14
    return static_cast<uint8_t>(sign | (__float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u));
  }
  return static_cast<uint8_t>(sign | (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - 0x3c000000u) >> 20);
}

__device__ __forceinline__ float decode(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return __uint_as_float(0x7fffffffu);
  // Read as a float16 the number is 2^8 too small, subnormals included.
  return half_bits_to_float(static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7)) * 256.0f;
}

}  // namespace fp8_arithmetic

// NaN becomes 0x7f: it must show in the result, not vanish in a page.
__device__ __forceinline__ uint8_t float_to_fp8(float value) {
  if (value != value) return 0x7f;
#if BAM_DEVICE_ARCH >= 890
  return static_cast<uint8_t>(cvt_e4m3x2(value, 0.0f));
#else
  return fp8_arithmetic::encode(value);
#endif
}

__device__ __forceinline__ float2 fp8x2_to_float2(uint16_t codes) {
#if BAM_DEVICE_ARCH >= 890
  const uint32_t halves = cvt_f16x2_e4m3x2(codes);
  return {half_bits_to_float(static_cast<uint16_t>(halves)), half_bits_to_float(static_cast<uint16_t>(halves >> 16))};
#else
  return {fp8_arithmetic::decode(static_cast<uint8_t>(codes)),
          fp8_arithmetic::decode(static_cast<uint8_t>(codes >> 8))};
#endif
}

__device__ __forceinline__ float fp8_to_float(uint8_t code) {
#if BAM_DEVICE_ARCH >= 890
  return half_bits_to_float(static_cast<uint16_t>(cvt_f16x2_e4m3x2(code)));
#else
  return fp8_arithmetic::decode(code);
#endif
}

// Four codes of 8 bits, the first in the lowest byte, as four halves, exact: the first two in x.
template <bool kFp8>
__device__ __forceinline__ uint2 widen4(uint32_t codes) {
  if constexpr (!kFp8) {
    // Read as unsigned they are 128 too large; under the exponent of 1024 a byte is its own mantissa.
    const uint32_t biased = codes ^ 0x80808080u;
    const __half2 too_much = halves_of(0x64806480u);  // 1152
    return {bits_of(__hsub2(halves_of(__byte_perm(biased, 0x64646464u, 0x4140)), too_much)),
            bits_of(__hsub2(halves_of(__byte_perm(biased, 0x64646464u, 0x4342)), too_much))};
  } else {
#if BAM_DEVICE_ARCH >= 890
    return {cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes)), cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes >> 16))};
#else
    // The magnitude one bit lower in the upper byte of a half is the number times 2^-8. NaN (all ones) carries into the
    // highest bit and so becomes a NaN of float16.
    const uint32_t magnitude = codes & 0x7f7f7f7fu, nan = (magnitude + 0x01010101u) & 0x80808080u;
    const uint32_t marked = magnitude | nan;
    const __half2 scale = halves_of(0x5c005c00u);  // 256
    const uint32_t low = __byte_perm(marked, 0, 0x1404) >> 1 | (__byte_perm(codes, 0, 0x1404) & 0x80008000u);
    const uint32_t high = __byte_perm(marked, 0, 0x3424) >> 1 | (__byte_perm(codes, 0, 0x3424) & 0x80008000u);
    return {bits_of(__hmul2(halves_of(low), scale)), bits_of(__hmul2(halves_of(high), scale))};
#endif
  }
}

// Element `index` of a tile's K or V array; `scale` points to the scales of its kind.
__device__ __forceinline__ float load_stored(DType dtype, const unsigned char* array, const uint16_t* scale, int slot,
                                             int index) {
  switch (dtype) {
    case DType::kF32: return reinterpret_cast<const float*>(array)[index];
    case DType::kF16: return half_bits_to_float(reinterpret_cast<const uint16_t*>(array)[index]);
    case DType::kBF16: return to_float(__ushort_as_bfloat16(reinterpret_cast<const uint16_t*>(array)[index]));
    case DType::kI8:
      return half_bits_to_float(scale[slot]) * static_cast<float>(reinterpret_cast<const int8_t*>(array)[index]);
    case DType::kFp8: return half_bits_to_float(scale[slot]) * fp8_to_float(array[index]);
    case DType::kI4: {
      const int byte = array[index / 16 * 8 + index % 8];
      const int code = index % 16 < 8 ? byte & 15 : byte >> 4;
      return fmaf(half_bits_to_float(scale[slot]), static_cast<float>(code),
                  half_bits_to_float(scale[kTileKeys + slot]));
    }
  }
  return 0;
}

}  // namespace bam::cuda
