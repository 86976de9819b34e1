// How kernels of this folder are written so that nvcc and the CPU emulation (tests/cuda_emu) compile the same source.
//
// - Launch with bam::cuda::launch(kernel, grid, block, shared_bytes, stream, args...); never with <<<>>>. It returns
// the
//   launch's cudaError_t. Arguments are converted to the kernel's parameter types, which must be trivially copyable.
// - A kernel that wants more than 48 KiB of dynamic shared memory is announced once with
//   bam::cuda::allow_shared(kernel, bytes) per device.
// - Static shared memory: BAM_SHARED(float, tile, [16][17]); a scalar: BAM_SHARED(int, count). Dynamic shared memory:
//   BAM_DYNAMIC_SHARED(unsigned char, base), aligned to 128 bytes. A bare __shared__ does not compile in the emulation.
// - All inline PTX is in ptx.h. Everything else is ordinary CUDA: threadIdx, blockIdx, blockDim, gridDim, __syncthreads
//   (also _or, _and, _count), __syncwarp, __shfl*_sync, __ballot_sync, __any_sync, __all_sync, __activemask is absent
//   on purpose, __match_any_sync, __reduce_{add,min,max,and,or,xor}_sync, atomics, __ldg/__ldcs/__ldcg/__stcs, the
//   integer and float intrinsics of tests/cuda_emu/shim/device_functions.h, half and bfloat16 of cuda_fp16.h and
//   cuda_bf16.h.
// - Blocks have a multiple of 32 threads when they use warp operations, and masks name living lanes only.
// - Write kPoison-safe code: shared and device memory start as 0xff bytes (NaN) in the emulation. cp.async data are
// there
//   after cp_async_wait, not before.
// - Host code: cudaMemcpyAsync from pinned memory reads the source when the stream gets there; the emulation runs a
//   stream's work only when something waits for it. Device memory must not be touched by the host.
// - BAM_DEVICE_ARCH is __CUDA_ARCH__ inside device code, 800 or what the emulation pretends at most, 0 in host passes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#ifdef BAM_CUDA_EMU

#include <cuda_emu.h>

#define BAM_DEVICE_ARCH 800

#define BAM_SHARED(type, name, ...)                                                                         \
  using name##_shared_type_ = type __VA_ARGS__;                                                             \
  alignas(name##_shared_type_) static unsigned char name##_shared_key_[sizeof(name##_shared_type_)];        \
  static_assert(std::is_trivially_default_constructible_v<std::remove_all_extents_t<name##_shared_type_>>); \
  name##_shared_type_& name = *static_cast<name##_shared_type_*>(                                           \
      ::cuda_emu::static_shared(name##_shared_key_, sizeof(name##_shared_type_), alignof(name##_shared_type_)))

#define BAM_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::cuda_emu::dynamic_shared())

#else

#ifdef __CUDA_ARCH__
#define BAM_DEVICE_ARCH __CUDA_ARCH__
#else
#define BAM_DEVICE_ARCH 0
#endif

#define BAM_SHARED(type, name, ...) __shared__ type name __VA_ARGS__

#define BAM_DYNAMIC_SHARED(type, name)                                  \
  extern __shared__ __align__(128) unsigned char bam_dynamic_shared_[]; \
  type* const name = reinterpret_cast<type*>(bam_dynamic_shared_)

#endif

namespace bam::cuda {

inline constexpr size_t kDefaultSharedBytes = 48 * 1024;

// Lets `kernel` be launched with up to `bytes` of dynamic shared memory on the current device, or with more if that was
// allowed before. Static shared memory counts, too: both together must fit what a block may have.
template <typename... Params>
[[nodiscard]] cudaError_t allow_shared(void (*kernel)(Params...), size_t bytes) {
  cudaFuncAttributes attributes{};
  if (const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
      status != cudaSuccess || static_cast<int>(bytes) <= attributes.maxDynamicSharedSizeBytes) {
    return status;
  }
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

template <typename... Params, typename... Args>
[[nodiscard]] cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                                 cudaStream_t stream, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "the kernel takes another number of arguments");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "kernel parameters are copied as bytes");
#ifdef BAM_CUDA_EMU
  return ::cuda_emu::launch_kernel(kernel, grid, block, shared_bytes, stream, static_cast<Params>(args)...);
#else
  return [&](Params... values) {
    void* pointers[] = {static_cast<void*>(&values)..., nullptr};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream);
  }(static_cast<Params>(std::forward<Args>(args))...);
#endif
}

}  // namespace bam::cuda
