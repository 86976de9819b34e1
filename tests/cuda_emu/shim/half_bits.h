// Bits of 16-bit floats. Written apart from kernels/dtype.h on purpose: tests compare the two.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace cuda_emu {

inline float half_to_float(uint16_t bits) {
  const uint32_t magnitude = uint32_t{bits & 0x7fffu} << 13;
  // Read with float's exponent bias the value is 2^112 too small; infinities and NaNs get their exponent set
  // afterwards.
  uint32_t result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  if ((bits & 0x7c00u) == 0x7c00u) result |= 0x7f800000u;
  return std::bit_cast<float>(result | uint32_t{bits & 0x8000u} << 16);
}

inline uint16_t float_to_half(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000u;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7fffu;                                    // the hardware's canonical NaN
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00u);  // halfway to 2^16 rounds up
  // `anchor` is so large that its last bit weighs what the result's last bit weighs: the addition does the rounding.
  const uint32_t exponent = std::bit_cast<uint32_t>(magnitude) >> 23;
  const uint32_t effective = exponent < 113 ? 113 : exponent;  // below 2^-14 the spacing no longer shrinks
  const uint32_t anchor = (effective + 13) << 23;
  const uint32_t steps = std::bit_cast<uint32_t>(magnitude + std::bit_cast<float>(anchor)) - anchor;
  return static_cast<uint16_t>(sign | (((effective - 113) << 10) + steps));
}

inline float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fffu;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t low = bits & 0xffffu;
  const uint32_t high = bits >> 16;
  const bool up = low > 0x8000u || (low == 0x8000u && (high & 1u));
  return static_cast<uint16_t>(high + up);
}

// Double to float, with the last bit set if anything was lost: rounding the result again to fewer bits rounds once.
inline float round_to_odd(double value) {
  float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  if (std::isinf(nearest)) return std::nextafter(nearest, 0.0f);
  // Towards zero, then odd.
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) nearest = std::nextafter(nearest, 0.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) | 1u);
}

// a * b + c where a * b is exact in double; the sum is rounded to odd so that one more rounding is the only one.
inline double exact_fma(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (c - back);
  if (error == 0.0) return sum;
  if ((error > 0.0) == (sum > 0.0)) return std::bit_cast<double>(std::bit_cast<uint64_t>(sum) | 1u);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(std::nextafter(sum, 0.0)) | 1u);
}

}  // namespace cuda_emu
