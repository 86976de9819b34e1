// Shared by the files that implement the runtime API.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "tests/cuda_emu/emu/stream.h"

namespace cuda_emu {

// Remembers an error for cudaGetLastError and passes it on.
cudaError_t result(cudaError_t error);
// What every call answers on this machine before it does anything: no device, an old driver.
cudaError_t machine_status();

// Memory that a device can reach: device memory or pinned host memory.
bool is_pinned(const void* address, size_t bytes);
bool is_device_reachable(const void* address, size_t bytes);

// Locks the API, then runs `body` unless the machine has no usable device.
template <typename Body>
cudaError_t api_call(Body&& body) {
  const std::lock_guard lock(api_mutex());
  if (const cudaError_t status = machine_status(); status != cudaSuccess) return result(status);
  return result(body());
}

}  // namespace cuda_emu
