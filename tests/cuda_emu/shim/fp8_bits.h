// Bits of e4m3 numbers, as the PTX manual describes cvt. Written apart from kernels/ on purpose: tests compare the two.
#pragma once

#include <half_bits.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cuda_emu {

// cvt.rn.satfinite.e4m3
inline uint8_t float_to_e4m3(float value) {
  if (std::isnan(value)) return 0x7fu;
  const double magnitude = std::min(std::fabs(static_cast<double>(value)), 448.0);
  const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
  const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return static_cast<uint8_t>((std::signbit(value) ? 0x80 : 0) + (exponent + 6) * 8 + eighths);
}

inline double e4m3_to_double(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude = exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

}  // namespace cuda_emu
