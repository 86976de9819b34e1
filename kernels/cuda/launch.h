// How kernels of this folder are written so that nvcc and the CPU emulation (tests/cuda_emu) compile the same source.
//
// - Launch with bam::cuda::launch(kernel, grid, block, shared_bytes, queue, args...); never with <<<>>>. It returns the
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
//   there after cp_async_wait, not before.
// - Host code: cudaMemcpyAsync from pinned memory reads the source when the stream gets there; the emulation runs a
//   stream's work only when something waits for it. Device memory must not be touched by the host.
// - BAM_DEVICE_ARCH is __CUDA_ARCH__ inside device code, 800 or what the emulation pretends at most, 0 in host passes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

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

// One launch or copy that was asked for.
struct Work {
  virtual ~Work() = default;
  [[nodiscard]] virtual cudaError_t issue(cudaStream_t stream) const = 0;
  virtual bool same(const Work& other) const = 0;
};
using Record = std::vector<std::unique_ptr<const Work>>;

// Where work goes: to a stream at once, or into a record that is issued as a whole (graph.h).
struct Queue {
  Queue(cudaStream_t to, Record* into = nullptr) : stream(to), record(into) {}  // NOLINT: a stream is a queue
  cudaStream_t stream;
  Record* record;
};

template <typename... Params>
struct KernelWork final : Work {
  void (*kernel)(Params...);
  dim3 grid, block;
  size_t shared_bytes;
  std::tuple<Params...> params;

  KernelWork(void (*kernel_)(Params...), dim3 grid_, dim3 block_, size_t shared_bytes_, Params... values)
      : kernel(kernel_), grid(grid_), block(block_), shared_bytes(shared_bytes_), params(values...) {}
  cudaError_t issue(cudaStream_t stream) const override {
    return std::apply(
        [&](Params... values) {
#ifdef BAM_CUDA_EMU
          return ::cuda_emu::launch_kernel(kernel, grid, block, shared_bytes, stream, values...);
#else
          void* pointers[] = {static_cast<void*>(&values)..., nullptr};
          return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream);
#endif
        },
        params);
  }
  bool same(const Work& other) const override {
    if (typeid(other) != typeid(KernelWork)) return false;
    const auto& that = static_cast<const KernelWork&>(other);
    const auto equal = [](dim3 a, dim3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; };
    return kernel == that.kernel && equal(grid, that.grid) && equal(block, that.block) &&
           shared_bytes == that.shared_bytes && params == that.params;
  }
};

struct CopyWork final : Work {
  void* to;
  const void* from;
  size_t bytes;
  cudaMemcpyKind kind;

  CopyWork(void* to_, const void* from_, size_t bytes_, cudaMemcpyKind kind_)
      : to(to_), from(from_), bytes(bytes_), kind(kind_) {}
  cudaError_t issue(cudaStream_t stream) const override { return cudaMemcpyAsync(to, from, bytes, kind, stream); }
  bool same(const Work& other) const override {
    if (typeid(other) != typeid(CopyWork)) return false;
    const auto& that = static_cast<const CopyWork&>(other);
    return to == that.to && from == that.from && bytes == that.bytes && kind == that.kind;
  }
};

// Parameters are compared member by member when a step is the same as an earlier one: padding may differ.
template <typename... Params, typename... Args>
[[nodiscard]] cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                                 const Queue& queue, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "the kernel takes another number of arguments");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "kernel parameters are copied as bytes");
  if (queue.record == nullptr) {
    return KernelWork<Params...>(kernel, grid, block, shared_bytes, static_cast<Params>(std::forward<Args>(args))...)
        .issue(queue.stream);
  }
  queue.record->push_back(std::make_unique<KernelWork<Params...>>(kernel, grid, block, shared_bytes,
                                                                  static_cast<Params>(std::forward<Args>(args))...));
  return cudaSuccess;
}

// cudaMemcpyAsync(), or a record of it.
[[nodiscard]] inline cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                      const Queue& queue) {
  if (queue.record == nullptr) return cudaMemcpyAsync(to, from, bytes, kind, queue.stream);
  queue.record->push_back(std::make_unique<CopyWork>(to, from, bytes, kind));
  return cudaSuccess;
}

}  // namespace bam::cuda
