// Conversions and reductions that every kernel of this folder shares.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/launch.h"

namespace bam::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLargestHalf = 65504.0f;

__device__ __forceinline__ float minus_infinity() { return -__builtin_huge_valf(); }
// The maximum of a softmax state that has seen nothing: finite, so that differences of maxima are never NaN.
inline constexpr float kNothingSeen = -3.402823466e38f;

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
struct Convert;
template <>
struct Convert<float> {
  static __device__ __forceinline__ float from(float value) { return value; }
};
template <>
struct Convert<__half> {
  // An activation beyond the range of float16 saturates: one extreme value must not turn a row into NaN. NaN stays.
  static __device__ __forceinline__ __half from(float value) {
    const float limited = value > kLargestHalf ? kLargestHalf : (value < -kLargestHalf ? -kLargestHalf : value);
    return __float2half_rn(limited);
  }
};
template <>
struct Convert<__nv_bfloat16> {
  static __device__ __forceinline__ __nv_bfloat16 from(float value) { return __float2bfloat16_rn(value); }
};

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  return Convert<T>::from(value);
}

// The larger one, NaN if either is: what is broken must stay visible.
__device__ __forceinline__ float max_or_nan(float a, float b) { return a != a || a > b ? a : b; }

__device__ __forceinline__ float half_bits_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ uint16_t float_to_half_bits(float value) { return __half_as_ushort(__float2half_rn(value)); }

// Two halves as the register that holds them.
__device__ __forceinline__ uint32_t bits_of(__half2 pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ __forceinline__ __half2 halves_of(uint32_t bits) {
  __half2 pair;
  memcpy(&pair, &bits, sizeof pair);
  return pair;
}

// A number as the sum of two floats, of which the second is below the rounding of the first: 48 bits.
struct FloatPair {
  float high, low;
};
inline FloatPair float_pair(double value) {
  const auto high = static_cast<float>(value);
  return {high, static_cast<float>(value - static_cast<double>(high))};
}

// Two neighbours of a fragment in one register, the first in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack2(float first, float second);
template <>
__device__ __forceinline__ uint32_t pack2<__half>(float first, float second) {
  return bits_of(__floats2half2_rn(first, second));
}
template <>
__device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// Host files include this header, too, and their compiler knows no warps and no intrinsics.
#if defined(__CUDACC__) || defined(BAM_CUDA_EMU)

__device__ __forceinline__ FloatPair product(float x, FloatPair y) {
  const float high = x * y.high;
  return {high, fmaf(x, y.low, fmaf(x, y.high, -high))};
}
__device__ __forceinline__ FloatPair product(FloatPair x, FloatPair y) {
  const FloatPair main = product(x.high, y);
  return {main.high, fmaf(x.low, y.high, main.low)};
}
// The rounding of a sum of floats is a float itself.
__device__ __forceinline__ FloatPair sum(FloatPair x, FloatPair y) {
  const float high = x.high + y.high, of_y = high - x.high;
  const float low = (x.high - (high - of_y)) + (y.high - of_y) + (x.low + y.low);
  const float total = high + low;
  return {total, low - (total - high)};
}
__device__ __forceinline__ FloatPair negative(FloatPair x) { return {-x.high, -x.low}; }

// factor * units rounded to 53 bits as a product of doubles is, then to an integer. The factor is the bits of a double of
// 0 to 1, units are below 2^53.
__device__ __forceinline__ unsigned long long share_of(unsigned long long factor, unsigned long long units, bool up) {
  const auto exponent = static_cast<int>(factor >> 52);
  if (exponent == 0) return 0;  // 0: neither a uniform number nor a float is a subnormal double
  const unsigned long long mantissa = (factor & ((1ull << 52) - 1)) | 1ull << 52;
  const unsigned long long high = __umul64hi(mantissa, units), low = mantissa * units;
  const int bits = high != 0 ? 128 - __clzll(static_cast<long long>(high)) : 64 - __clzll(static_cast<long long>(low));
  const int dropped = bits > 53 ? bits - 53 : 0;  // at most 53
  unsigned long long kept = low;
  if (dropped > 0) {
    kept = high << (64 - dropped) | low >> dropped;
    const unsigned long long rest = low & ((1ull << dropped) - 1), half = 1ull << (dropped - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  }
  const int shift = 1075 - exponent - dropped;  // not negative: the product is at most `units`
  if (shift > 63) return up && kept != 0 ? 1 : 0;
  const unsigned long long whole = kept >> shift;
  return whole + (up && whole << shift != kept ? 1 : 0);
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

#endif

}  // namespace bam::cuda
