// Built-in variables and functions of device code.
#pragma once

#include <vector_types.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <source_location>
#include <type_traits>

// Set by the scheduler whenever another thread of the block goes on.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

namespace cuda_emu {

using Where = std::source_location;

// Exchanges up to 16 bytes between the lanes of `mask`: lane l gets the value of lane source(l), a poisoned one if that
// lane takes no part.
enum class Shuffle { kIndex, kUp, kDown, kXor };
void shuffle(Shuffle kind, uint32_t mask, void* value, size_t bytes, int argument, int width, Where where);
enum class Reduce { kBallot, kAny, kAll, kAdd, kMin, kMax, kAnd, kOr, kXor, kMinSigned, kMaxSigned };
uint32_t warp_reduce(Reduce kind, uint32_t mask, uint32_t value, Where where);
uint32_t match_any(uint32_t mask, const void* value, size_t bytes, Where where);
enum class BlockReduce { kNone, kOr, kAnd, kCount };
int block_barrier(BlockReduce kind, int predicate, Where where);
void warp_barrier(uint32_t mask, Where where);
[[noreturn]] void trap(Where where);

template <typename T>
T shuffle_value(Shuffle kind, uint32_t mask, T value, int argument, int width, Where where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  shuffle(kind, mask, &value, sizeof(T), argument, width, where);
  return value;
}

template <typename T, typename F>
T atomic_update(T* address, F&& next) {
  std::atomic_ref<T> cell(*address);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, next(old), std::memory_order_relaxed)) {
  }
  return old;
}

}  // namespace cuda_emu

// Barriers and fences.
inline void __syncthreads(cuda_emu::Where where = cuda_emu::Where::current()) {
  cuda_emu::block_barrier(cuda_emu::BlockReduce::kNone, 0, where);
}
inline int __syncthreads_or(int predicate, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::block_barrier(cuda_emu::BlockReduce::kOr, predicate, where);
}
inline int __syncthreads_and(int predicate, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::block_barrier(cuda_emu::BlockReduce::kAnd, predicate, where);
}
inline int __syncthreads_count(int predicate, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::block_barrier(cuda_emu::BlockReduce::kCount, predicate, where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, cuda_emu::Where where = cuda_emu::Where::current()) {
  cuda_emu::warp_barrier(mask, where);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
[[noreturn]] inline void __trap(cuda_emu::Where where = cuda_emu::Where::current()) { cuda_emu::trap(where); }

// Warp operations.
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::shuffle_value(cuda_emu::Shuffle::kIndex, mask, value, lane, width, where);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::shuffle_value(cuda_emu::Shuffle::kUp, mask, value, static_cast<int>(delta), width, where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::shuffle_value(cuda_emu::Shuffle::kDown, mask, value, static_cast<int>(delta), width, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::shuffle_value(cuda_emu::Shuffle::kXor, mask, value, lanes, width, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::warp_reduce(cuda_emu::Reduce::kBallot, mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, cuda_emu::Where where = cuda_emu::Where::current()) {
  return static_cast<int>(cuda_emu::warp_reduce(cuda_emu::Reduce::kAny, mask, predicate != 0, where));
}
inline int __all_sync(unsigned mask, int predicate, cuda_emu::Where where = cuda_emu::Where::current()) {
  return static_cast<int>(cuda_emu::warp_reduce(cuda_emu::Reduce::kAll, mask, predicate != 0, where));
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::match_any(mask, &value, sizeof(T), where);
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value, cuda_emu::Where where = cuda_emu::Where::current()) {
  return static_cast<T>(cuda_emu::warp_reduce(cuda_emu::Reduce::kAdd, mask, static_cast<uint32_t>(value), where));
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, cuda_emu::Where where = cuda_emu::Where::current()) {
  constexpr auto kind = std::is_signed_v<T> ? cuda_emu::Reduce::kMinSigned : cuda_emu::Reduce::kMin;
  return static_cast<T>(cuda_emu::warp_reduce(kind, mask, static_cast<uint32_t>(value), where));
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, cuda_emu::Where where = cuda_emu::Where::current()) {
  constexpr auto kind = std::is_signed_v<T> ? cuda_emu::Reduce::kMaxSigned : cuda_emu::Reduce::kMax;
  return static_cast<T>(cuda_emu::warp_reduce(kind, mask, static_cast<uint32_t>(value), where));
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::warp_reduce(cuda_emu::Reduce::kAnd, mask, value, where);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::warp_reduce(cuda_emu::Reduce::kOr, mask, value, where);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, cuda_emu::Where where = cuda_emu::Where::current()) {
  return cuda_emu::warp_reduce(cuda_emu::Reduce::kXor, mask, value, where);
}

// Atomics: return the old value.
template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T old) { return static_cast<T>(old - value); });
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return cuda_emu::atomic_update(address, [=](T old) { return std::min(old, value); });
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return cuda_emu::atomic_update(address, [=](T old) { return std::max(old, value); });
}
template <typename T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T old) { return old & value; });
}
template <typename T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T old) { return old | value; });
}
template <typename T>
T atomicXor(T* address, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T old) { return old ^ value; });
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cuda_emu::atomic_update(address, [=](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return cuda_emu::atomic_update(address, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// Loads and stores with cache hints.
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldca(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldlu(const T* address) {
  return *address;
}
template <typename T>
T __ldcv(const T* address) {
  return *address;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// Bits.
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 0xfu;
    unsigned byte = static_cast<unsigned>(both >> (8 * (pick & 7u)) & 0xffu);
    if (pick & 8u) byte = byte & 0x80u ? 0xffu : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31u) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31u));
}
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }

// Integers.
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(uint64_t{x} * y >> 32); }
inline int __mulhi(int x, int y) { return static_cast<int>(int64_t{x} * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __dp4a(int a, int b, int c) {
  const auto x = std::bit_cast<char4>(a), y = std::bit_cast<char4>(b);
  return c + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
inline int min(int a, int b) { return std::min(a, b); }
inline int max(int a, int b) { return std::max(a, b); }
inline unsigned min(unsigned a, unsigned b) { return std::min(a, b); }
inline unsigned max(unsigned a, unsigned b) { return std::max(a, b); }
inline long min(long a, long b) { return std::min(a, b); }
inline long max(long a, long b) { return std::max(a, b); }
inline unsigned long min(unsigned long a, unsigned long b) { return std::min(a, b); }
inline unsigned long max(unsigned long a, unsigned long b) { return std::max(a, b); }
inline long long min(long long a, long long b) { return std::min(a, b); }
inline long long max(long long a, long long b) { return std::max(a, b); }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return std::min(a, b); }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return std::max(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

// Floats. The fast variants are computed accurately: tests must not depend on their last bits.
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float sinpif(float x) { return static_cast<float>(std::sin(std::numbers::pi * static_cast<double>(x))); }
inline float cospif(float x) { return static_cast<float>(std::cos(std::numbers::pi * static_cast<double>(x))); }
inline float __saturatef(float x) { return x > 0.0f ? std::min(x, 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

// Conversions saturate as the hardware's do; NaN becomes 0.
namespace cuda_emu {
template <typename To>
To saturating_cast(double rounded) {
  if (std::isnan(rounded)) return 0;
  constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
  constexpr double high = static_cast<double>(std::numeric_limits<To>::max());
  if (rounded <= low) return std::numeric_limits<To>::min();
  if (rounded >= high) return std::numeric_limits<To>::max();
  return static_cast<To>(rounded);
}
}  // namespace cuda_emu
inline int __float2int_rn(float x) { return cuda_emu::saturating_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return cuda_emu::saturating_cast<int>(std::trunc(x)); }
inline int __float2int_rd(float x) { return cuda_emu::saturating_cast<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return cuda_emu::saturating_cast<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return cuda_emu::saturating_cast<unsigned>(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return cuda_emu::saturating_cast<unsigned>(std::trunc(x)); }
inline long long __float2ll_rn(float x) { return cuda_emu::saturating_cast<long long>(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
