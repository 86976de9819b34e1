// Configuration, errors and device queries.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/runtime.h"

namespace cuda_emu {

namespace {

Config config_from_environment() {
  Config c;
  const auto number = [](const char* name, auto& value) {
    if (const char* text = std::getenv(name))
      value = static_cast<std::remove_reference_t<decltype(value)>>(std::strtoull(text, nullptr, 10));
  };
  const auto text = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value != nullptr ? value : "");
  };
  number("BAM_CUDA_EMU_SEED", c.seed);
  number("BAM_CUDA_EMU_DEVICES", c.device_count);
  number("BAM_CUDA_EMU_CC", c.compute_capability);
  number("BAM_CUDA_EMU_BREAK", c.break_at_launch);
  size_t mebibytes = c.memory_bytes >> 20;
  number("BAM_CUDA_EMU_MEMORY", mebibytes);
  c.memory_bytes = mebibytes << 20;
  c.cublas = text("BAM_CUDA_EMU_CUBLAS") != "no";
  c.driver_too_old = text("BAM_CUDA_EMU_DRIVER") == "old";
  if (text("BAM_CUDA_EMU_STREAMS") == "eager") c.streams = StreamMode::kEager;
  if (text("BAM_CUDA_EMU_STREAMS") == "random") c.streams = StreamMode::kRandom;
  return c;
}

cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = 0;

std::map<int, cudaError_t>& broken_devices() {
  static std::map<int, cudaError_t> broken;
  return broken;
}

}  // namespace

Config& config() {
  static Config current = config_from_environment();
  return current;
}

Statistics& statistics() {
  static Statistics current;
  return current;
}

size_t Config::shared_per_multiprocessor() const {
  switch (compute_capability) {
    case 75: return 64 << 10;
    case 80:
    case 87: return 164 << 10;
    case 90:
    case 100:
    case 103: return 228 << 10;
    default: return 100 << 10;
  }
}

size_t Config::shared_per_block_optin() const {
  return compute_capability < 80 ? shared_per_multiprocessor() : shared_per_multiprocessor() - 1024;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t machine_status() {
  if (config().driver_too_old) return cudaErrorInsufficientDriver;
  return config().device_count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

int current_device() { return chosen_device; }

cudaError_t device_status(int device) {
  const auto broken = broken_devices().find(device);
  return broken == broken_devices().end() ? cudaSuccess : broken->second;
}

void break_device(int device, cudaError_t error) { broken_devices()[device] = error; }
void repair_devices() { broken_devices().clear(); }

}  // namespace cuda_emu

using cuda_emu::api_call;
using cuda_emu::config;

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText& find_error(cudaError_t error) {
  for (const ErrorText& one : kErrors) {
    if (one.error == error) return one;
  }
  return kErrors[std::size(kErrors) - 1];
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return find_error(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return find_error(error).text; }

cudaError_t cudaPeekAtLastError() { return cuda_emu::last_error; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_emu::last_error;
  cuda_emu::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = config().driver_too_old ? 11040 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return api_call([&] {
    *count = config().device_count;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t status = cuda_emu::machine_status(); status != cudaSuccess) return cuda_emu::result(status);
  if (device < 0 || device >= config().device_count) return cuda_emu::result(cudaErrorInvalidDevice);
  cuda_emu::chosen_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = cuda_emu::current_device();
  return cuda_emu::result(cuda_emu::machine_status());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api_call([&] {
    if (device < 0 || device >= config().device_count) return cudaErrorInvalidDevice;
    cudaDeviceProp p{};
    std::snprintf(p.name, sizeof p.name, "Emulated sm_%d", config().compute_capability);
    p.pciBusID = device;
    p.totalGlobalMem = config().memory_bytes;
    p.sharedMemPerBlock = 48 << 10;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 0x7fffffff;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.totalConstMem = 64 << 10;
    p.major = config().compute_capability / 10;
    p.minor = config().compute_capability % 10;
    p.multiProcessorCount = config().multiprocessors;
    p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.managedMemory = 1;
    p.asyncEngineCount = 2;
    p.memoryBusWidth = 5120;
    p.l2CacheSize = 40 << 20;
    p.maxThreadsPerMultiProcessor = config().compute_capability >= 86 && config().compute_capability < 90 ? 1536 : 2048;
    p.maxBlocksPerMultiProcessor = 32;
    p.sharedMemPerMultiprocessor = config().shared_per_multiprocessor();
    p.sharedMemPerBlockOptin = config().shared_per_block_optin();
    p.reservedSharedMemPerBlock = 1024;
    *properties = p;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p{};
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate: *value = 1410000; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMemoryClockRate: *value = 1215000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    default: return cuda_emu::result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return api_call([&] {
    *total = config().memory_bytes;
    *free = *total - std::min(*total, cuda_emu::device_memory().used_bytes(cuda_emu::current_device()));
    return cudaSuccess;
  });
}
