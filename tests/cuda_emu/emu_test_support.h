// Small owners for tests on the emulated device.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda_emu/emu/config.h"

namespace cuda_emu_test {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

// Device memory of `n` elements that starts poisoned, or as a copy of host values.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : size_(n) { check(cudaMalloc(&data_, n * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());  // streams do not wait for a pageable copy
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> read() const {
    check(cudaDeviceSynchronize());
    std::vector<T> values(size_);
    check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// The emulator's settings with another seed, for a scope.
class WithSeed {
 public:
  explicit WithSeed(uint64_t seed) : scope_(with(seed)) {}

 private:
  static cuda_emu::Config with(uint64_t seed) {
    cuda_emu::Config next = cuda_emu::config();
    next.seed = seed;
    return next;
  }
  cuda_emu::ScopedConfig scope_;
};

}  // namespace cuda_emu_test
