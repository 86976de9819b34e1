#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace bam {

// Storage formats of weights and of the KV cache. Arithmetic is always accumulated in float32.
// kFp8 is e4m3: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; no infinities, 0x7f and 0xff are NaN.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kI4, kFp8 };

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kI8: return "int8";
    case DType::kI4: return "int4";
    case DType::kFp8: return "fp8";
  }
  return "?";
}

constexpr size_t dtype_bits(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 32;
    case DType::kF16:
    case DType::kBF16: return 16;
    case DType::kI8:
    case DType::kFp8: return 8;
    case DType::kI4: return 4;
  }
  return 0;
}

inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// Round to nearest even; overflow becomes infinity, NaN stays NaN.
inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // >= 65536
  if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns the mantissa so that the hardware rounds a subnormal half for us.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(aligned) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

inline constexpr float kLargestFp8 = 448.0f;

inline float fp8_to_f32(uint8_t code) {
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  // Read as a float16 the number is 2^8 too small, subnormals included.
  return f16_to_f32(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7)) * 256.0f;
}

// Round to nearest even; beyond 448 and infinity saturate, NaN becomes 0x7f.
inline uint8_t f32_to_fp8(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fu;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3c800000u) {
    // Adding 2^14 aligns the mantissa so that the hardware rounds to multiples of 2^-9 for us.
    const float aligned = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | (rounded - 0x3c000000u) >> 20);
}

}  // namespace bam
