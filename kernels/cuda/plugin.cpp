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

// The branch of the driver with which a runtime of that major version works (CUDA's table of minor version
// compatibility).
int oldest_driver(int runtime) { return runtime >= 13000 ? 580 : 525; }

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

void check_device(int device) {
  int count = 0;  // left untouched by some failures
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    if (driver == 0) throw Error("no NVIDIA driver is installed");
    throw Error(
        "the NVIDIA driver is too old: it supports CUDA {}, this build needs {}, which comes with driver {} and "
        "newer{}",
        version_text(driver), version_text(runtime), oldest_driver(runtime),
        runtime >= 13000 ? "; a build with CUDA 12.8 runs from driver 525 on" : "");
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) throw Error("no NVIDIA GPU was found");
  check(status, "cudaGetDeviceCount");
  if (device >= count) {
    throw Error("there is no GPU {}: the machine shows {} ({})", device, count,
                count == 1 ? "cuda:0" : fmt::format("cuda:0 to cuda:{}", count - 1));
  }
  cudaDeviceProp properties{};
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
    bam::cuda::check_device(options->device);
    return bam::cuda::make_cuda_backend(*options).release();
  } catch (const std::exception& failure) {
    std::snprintf(error, error_size, "%s", failure.what());
    return nullptr;
  }
}
