// What tests of the CUDA backend on the emulated device share: operands in and out of device memory, and what rounding
// to their formats does to a number.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_emu/emu_test_support.h"
#include "tests/reference/model_harness.h"

namespace bam::cuda_test {

inline std::unique_ptr<Backend> make_cuda(DType operand = DType::kF16) {
  return std::make_unique<cuda::CudaBackend>(BackendOptions{.operands = std::string(dtype_name(operand))});
}

inline float rounded(float value, DType dtype) {
  switch (dtype) {
    case DType::kF16: return f16_to_f32(f32_to_f16(value));
    case DType::kBF16: return bf16_to_f32(f32_to_bf16(value));
    default: return value;
  }
}
inline std::vector<float> rounded(std::vector<float> values, DType dtype) {
  for (float& value : values) value = rounded(value, dtype);
  return values;
}

inline std::vector<float> random_floats(size_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// `values` in device memory in format `dtype`.
inline std::unique_ptr<DeviceBuffer> to_device(Backend& backend, const std::vector<float>& values, DType dtype) {
  auto buffer = backend.allocate(std::max<size_t>(values.size(), 1) * dtype_bits(dtype) / 8);
  std::vector<std::byte> bytes(values.size() * dtype_bits(dtype) / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t half = dtype == DType::kBF16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  cuda_emu_test::check(cudaMemcpy(buffer->data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  cuda_emu_test::check(cudaStreamSynchronize(nullptr));
  return buffer;
}

inline std::vector<float> operands(Backend& backend, DeviceBuffer& buffer, size_t count) {
  std::vector<float> values(count);
  backend.read_operands(backend.operand_rows(buffer, 1, static_cast<int64_t>(count)), values);
  return values;
}
inline std::vector<float> floats(Backend& backend, DeviceBuffer& buffer, size_t count) {
  std::vector<float> values(count);
  backend.read_floats(backend.float_rows(buffer, 1, static_cast<int64_t>(count)), values);
  return values;
}

inline HostMatrix host_matrix(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, rows, cols};
}

// Largest difference, NaN if anything is.
inline double worst(const std::vector<float>& a, const std::vector<double>& b) {
  return reference::difference(a, b).largest;
}

// Half a unit in the last place of a number of magnitude 1.
inline double unit(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    default: return 0x1p-24;
  }
}

}  // namespace bam::cuda_test
