// Half precision: every operation rounds once, to nearest even, as the hardware does.
#pragma once

#include <cuda_runtime.h>
#include <half_bits.h>

struct __half_raw {
  unsigned short x;
};

struct alignas(2) __half {
  unsigned short bits;

  __half() = default;
  __half(float value) : bits(cuda_emu::float_to_half(value)) {}
  __half(double value) : bits(cuda_emu::float_to_half(cuda_emu::round_to_odd(value))) {}
  __half(int value) : __half(static_cast<double>(value)) {}
  __half(const __half_raw& raw) : bits(raw.x) {}
  operator float() const { return cuda_emu::half_to_float(bits); }
  operator __half_raw() const { return {bits}; }
};

struct alignas(4) __half2 {
  __half x, y;

  __half2() = default;
  __half2(const __half& low, const __half& high) : x(low), y(high) {}
};

using half = __half;
using half2 = __half2;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __double2half(double d) { return __half(d); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline short __half_as_short(__half h) { return static_cast<short>(h.bits); }
inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline __half __short_as_half(short bits) { return __half(__half_raw{static_cast<unsigned short>(bits)}); }
inline __half __int2half_rn(int i) { return __half(i); }
inline __half2 __halves2half2(__half low, __half high) { return {low, high}; }
inline __half2 __half2half2(__half h) { return {h, h}; }
inline __half2 make_half2(__half low, __half high) { return {low, high}; }
inline __half2 __floats2half2_rn(float low, float high) { return {__half(low), __half(high)}; }
inline __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
inline __half2 __float2half2_rn(float f) { return {__half(f), __half(f)}; }
inline float2 __half22float2(__half2 h) { return {h.x, h.y}; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }

// A sum or product of two halves is exact in double, and rounding that to half rounds once.
inline __half __hadd(__half a, __half b) { return __half(static_cast<double>(a) + static_cast<double>(b)); }
inline __half __hsub(__half a, __half b) { return __half(static_cast<double>(a) - static_cast<double>(b)); }
inline __half __hmul(__half a, __half b) { return __half(static_cast<double>(a) * static_cast<double>(b)); }
inline __half __hdiv(__half a, __half b) { return __half(static_cast<double>(a) / static_cast<double>(b)); }
inline __half __hfma(__half a, __half b, __half c) {
  return __half(cuda_emu::exact_fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c)));
}
inline __half __hneg(__half a) { return __ushort_as_half(static_cast<unsigned short>(a.bits ^ 0x8000u)); }
inline __half __habs(__half a) { return __ushort_as_half(static_cast<unsigned short>(a.bits & 0x7fffu)); }
inline __half __hmax(__half a, __half b) { return __half(std::fmax(static_cast<float>(a), static_cast<float>(b))); }
inline __half __hmin(__half a, __half b) { return __half(std::fmin(static_cast<float>(a), static_cast<float>(b))); }
inline bool __hisnan(__half a) { return std::isnan(static_cast<float>(a)); }
inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
inline __half operator+(__half a, __half b) { return __hadd(a, b); }
inline __half operator-(__half a, __half b) { return __hsub(a, b); }
inline __half operator*(__half a, __half b) { return __hmul(a, b); }
