// Shared by the files that implement the runtime API.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>

#include "tests/cuda_emu/emu/stream.h"

namespace cuda_emu {

// Remembers an error for cudaGetLastError and passes it on.
cudaError_t result(cudaError_t error);
// What every call answers on this machine before it does anything: no device, an old driver.
cudaError_t machine_status();

// The device that the calling thread has chosen, and the error that it can only answer if it is broken.
int current_device();
cudaError_t device_status(int device);
// Thrown by work that breaks its device; the call that ran it answers the device's error.
struct DeviceBroken {};
// Static shared memory that a kernel declares, as the compiler would say.
size_t static_shared_bytes(const void* kernel);
// Its mangled name; empty if the program does not tell.
std::string kernel_name(const void* kernel);

// Memory that a device can reach: device memory or pinned host memory.
bool is_pinned(const void* address, size_t bytes);
bool is_device_reachable(const void* address, size_t bytes, int device);

// Locks the API, then runs `body` unless the machine has no usable device.
template <typename Body>
cudaError_t api_call(Body&& body) {
  const std::lock_guard lock(api_mutex());
  if (const cudaError_t status = machine_status(); status != cudaSuccess) return result(status);
  if (const cudaError_t status = device_status(current_device()); status != cudaSuccess) return result(status);
  try {
    return result(body());
  } catch (const DeviceBroken&) {
    return result(device_status(current_device()));
  }
}

}  // namespace cuda_emu
