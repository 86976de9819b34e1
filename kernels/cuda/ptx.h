// All inline PTX of the project, one small function per instruction. Under BAM_CUDA_EMU the same functions run on the
// CPU. Fragment layouts: fragments.h and tests/cuda_emu/lane_maps_test.cpp.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace bam::cuda {

// The instructions that all 32 lanes execute together. Fragments are registers of packed 16-bit (or 8-bit) elements.
enum class MmaType { kF16, kBF16 };

// d[16x8] += a[16x16] * b[16x8]; a row-major, b column-major, float32 accumulators.
template <MmaType kType>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::mma_m16n8k16(kType == MmaType::kBF16, d, a, b);
#else
  if constexpr (kType == MmaType::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#endif
}

// The same from zero: d = a * b.
template <MmaType kType>
__device__ __forceinline__ void mma_m16n8k16_zero(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef BAM_CUDA_EMU
  d[0] = d[1] = d[2] = d[3] = 0;
  ::cuda_emu::mma_m16n8k16(kType == MmaType::kBF16, d, a, b);
#else
  if constexpr (kType == MmaType::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  }
#endif
}

__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_m16n8k16<MmaType::kF16>(d, a, b);
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_m16n8k16<MmaType::kBF16>(d, a, b);
}

// d[16x8] += a[16x32] * b[32x8] of signed bytes, exact int32 accumulators.
__device__ __forceinline__ void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::mma_m16n8k32_s8(d, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The same from zero.
__device__ __forceinline__ void mma_m16n8k32_s8_zero(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef BAM_CUDA_EMU
  d[0] = d[1] = d[2] = d[3] = 0;
  ::cuda_emu::mma_m16n8k32_s8(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};\n"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
#endif
}

// An address in shared memory that constants can be added to without 64-bit arithmetic; ldmatrix takes it as well.
#ifdef BAM_CUDA_EMU
using SharedAddress = const unsigned char*;
inline SharedAddress shared_address(const void* shared) { return static_cast<SharedAddress>(shared); }
#else
using SharedAddress = uint32_t;
__device__ __forceinline__ SharedAddress shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

#ifdef BAM_CUDA_EMU
using SharedRow = const void*;
#else
using SharedRow = SharedAddress;
#endif
// ldmatrix: lane l gives the address of a row of 8 16-bit elements in shared memory (16-byte aligned): lanes 0-7 the
// rows of matrix 0, lanes 8-15 of matrix 1, and so on; lanes beyond the last matrix may pass anything.
__device__ __forceinline__ void ldmatrix_x1(uint32_t& r, const void* row) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::ldmatrix(1, false, &r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];\n"
               : "=r"(r)
               : "r"(shared_address(row))
               : "memory");
#endif
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], SharedRow row) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::ldmatrix(2, false, r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
#endif
}
#ifndef BAM_CUDA_EMU
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) { ldmatrix_x2(r, shared_address(row)); }
#endif

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedRow row) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::ldmatrix(4, false, r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
#endif
}
#ifndef BAM_CUDA_EMU
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) { ldmatrix_x4(r, shared_address(row)); }
#endif

// The same with every 8x8 matrix transposed on its way.
__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t& r, const void* row) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::ldmatrix(1, true, &r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];\n"
               : "=r"(r)
               : "r"(shared_address(row))
               : "memory");
#endif
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], SharedRow row) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::ldmatrix(2, true, r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
#endif
}
#ifndef BAM_CUDA_EMU
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  ldmatrix_x2_trans(r, shared_address(row));
}
#endif

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], SharedRow row) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::ldmatrix(4, true, r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
#endif
}
#ifndef BAM_CUDA_EMU
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4_trans(r, shared_address(row));
}
#endif

// Starts copying kBytes (4, 8 or 16; both addresses aligned to it) from device to shared memory; the first
// `source_bytes` are read, the rest of the destination becomes zero. The data belong to the next commit.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, int source_bytes = kBytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#ifdef BAM_CUDA_EMU
  ::cuda_emu::cp_async(shared, global, kBytes, source_bytes);
#else
  if constexpr (kBytes == 16) {  // past L1: nothing of a 16-byte copy is read twice by this multiprocessor
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
                 "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared_address(shared)), "l"(global),
                 "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
#endif
}

// 16 whole bytes to an address of shared memory.
__device__ __forceinline__ void cp_async_16(SharedAddress shared, const void* global) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::cp_async(const_cast<unsigned char*>(shared), global, 16, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared), "l"(global) : "memory");
#endif
}
// 16 bytes, of which the first `source_bytes` are read and the rest are zero.
__device__ __forceinline__ void cp_async_16(SharedAddress shared, const void* global, int source_bytes) {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::cp_async(const_cast<unsigned char*>(shared), global, 16, source_bytes);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
#endif
}

// Closes the calling thread's current group of copies (possibly an empty one).
__device__ __forceinline__ void cp_async_commit() {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most kPending of the calling thread's groups are under way. Other threads see the data after a
// barrier.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
#ifdef BAM_CUDA_EMU
  ::cuda_emu::cp_async_wait(kPending);
#else
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
#endif
}

// Two float32 to e4m3 (sm_89 and later): to nearest even, saturating at 448. `low` goes to the low byte.
__device__ __forceinline__ uint16_t cvt_e4m3x2(float low, float high) {
#ifdef BAM_CUDA_EMU
  return ::cuda_emu::cvt_e4m3x2(low, high);
#elif BAM_DEVICE_ARCH >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;\n" : "=h"(codes) : "f"(low), "f"(high));
  return codes;
#else
  return 0;
#endif
}

// Two e4m3 to float16 (sm_89 and later), exact; the low byte becomes the low half.
__device__ __forceinline__ uint32_t cvt_f16x2_e4m3x2(uint16_t codes) {
#ifdef BAM_CUDA_EMU
  return ::cuda_emu::cvt_f16x2_e4m3x2(codes);
#elif BAM_DEVICE_ARCH >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(halves) : "h"(codes));
  return halves;
#else
  return 0;
#endif
}

// 2^x with the special function unit: relative error below 2^-22, 0 for very negative x, subnormal results become 0.
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef BAM_CUDA_EMU
  return ::cuda_emu::exp2_flush(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace bam::cuda
