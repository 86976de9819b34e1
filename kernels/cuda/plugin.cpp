// What the plugin exports (kernels/plugin.h), and the checks that come before a backend is made.
#include "kernels/plugin.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <string>

#include "base/error.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/plugin.h"

namespace bam::cuda {

namespace {

constexpr int kOldestCapability = 80;  // bfloat16 tensor cores and cp.async

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

void check_device() {
  int count = 0;  // left untouched by some failures
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    if (driver == 0) throw Error("no NVIDIA driver is installed");
    throw Error("the NVIDIA driver is too old: it supports CUDA {}, {} is needed", version_text(driver),
                version_text(runtime));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) throw Error("no NVIDIA GPU was found");
  check(status, "cudaGetDeviceCount");
  cudaDeviceProp properties{};
  int device = 0;
  BAM_CUDA(cudaGetDevice(&device));
  BAM_CUDA(cudaGetDeviceProperties(&properties, device));
  if (properties.major * 10 + properties.minor < kOldestCapability) {
    throw Error("GPU {} ({}) has compute capability {}.{}; {}.{} or newer is needed", device, properties.name,
                properties.major, properties.minor, kOldestCapability / 10, kOldestCapability % 10);
  }
}

}  // namespace bam::cuda

// Everything else of the plugin is hidden.
#define BAM_EXPORT extern "C" __attribute__((visibility("default")))

BAM_EXPORT const char* bam_plugin_abi() { return BAM_PLUGIN_ABI; }

BAM_EXPORT bam::Backend* bam_make_backend(const bam::BackendOptions* options, char* error, size_t error_size) {
  try {
    bam::cuda::check_device();
    return bam::cuda::make_cuda_backend(*options).release();
  } catch (const std::exception& failure) {
    std::snprintf(error, error_size, "%s", failure.what());
    return nullptr;
  }
}
