// What kernels/cuda/launch.h and ptx.h call when BAM_CUDA_EMU is defined. Code under test includes nothing else of the
// emulator; tests configure it through tests/cuda_emu/emu/config.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace cuda_emu {

using Where = std::source_location;

// The shared memory of the running block. `key` tells one declaration from another.
void* static_shared(const void* key, size_t bytes, size_t alignment);
void* dynamic_shared();

void mma_m16n8k16(bool bf16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  Where where = Where::current());
void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where = Where::current());
// out: [matrices] registers.
void ldmatrix(int matrices, bool transposed, uint32_t* out, const void* row, Where where = Where::current());
void cp_async(void* shared, const void* global, int bytes, int source_bytes);
void cp_async_commit();
void cp_async_wait(int pending);
float exp2_flush(float x);
uint16_t cvt_e4m3x2(float low, float high);
uint32_t cvt_f16x2_e4m3x2(uint16_t codes);

// Whether the emulated machine has the library, see Config::cublas.
bool has_cublas();

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};
// Queues the launch on the stream; `body` is one thread's call of the kernel, `parameters` its arguments as a device
// would get them.
cudaError_t enqueue_launch(const void* kernel, const LaunchShape& shape, cudaStream_t stream,
                           std::vector<uint8_t> parameters, std::function<void()> body);
// Something else that runs launches instead of `body` (tests/ptx); empty: nothing.
using Executor =
    std::function<void(const std::string& kernel, const LaunchShape& shape, const std::vector<uint8_t>& parameters)>;
Executor& executor();
// A pointer argument that is not memory a device can reach is a fault.
void check_argument(const void* kernel, int index, const void* pointer);

template <typename... Params>
cudaError_t launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::type_identity_t<Params>... args) {
  const void* id = reinterpret_cast<const void*>(kernel);
  [[maybe_unused]] int index = 0;
  [[maybe_unused]] const auto check = [&](const auto& value) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(value)>>) check_argument(id, index, value);
    ++index;
  };
  (check(args), ...);
  std::vector<uint8_t> parameters;
  [[maybe_unused]] const auto append = [&](const auto& value) {
    using T = std::remove_cvref_t<decltype(value)>;
    parameters.resize((parameters.size() + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T));
    std::memcpy(parameters.data() + parameters.size() - sizeof(T), &value, sizeof(T));
  };
  (append(args), ...);
  return enqueue_launch(id, {grid, block, shared_bytes}, stream, std::move(parameters),
                        [kernel, values = std::make_tuple(args...)] { std::apply(kernel, values); });
}

}  // namespace cuda_emu
