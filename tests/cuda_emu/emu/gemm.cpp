#include "tests/cuda_emu/emu/gemm.h"

#include <half_bits.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/runtime.h"

namespace cuda_emu {

namespace {

size_t type_bytes(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
    case CUDA_R_32I: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_8I: return 1;
    default: return 8;
  }
}

double load(const void* data, cudaDataType_t type, int64_t index) {
  const auto read = [&]<typename T>(T) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  switch (type) {
    case CUDA_R_32F: return read(float{});
    case CUDA_R_64F: return read(double{});
    case CUDA_R_16F: return half_to_float(read(uint16_t{}));
    case CUDA_R_16BF: return bfloat16_to_float(read(uint16_t{}));
    case CUDA_R_8I: return read(int8_t{});
    case CUDA_R_32I: return read(int32_t{});
  }
  return NAN;
}

void store(void* data, cudaDataType_t type, int64_t index, double value) {
  const auto write = [&]<typename T>(T typed) {
    std::memcpy(static_cast<std::byte*>(data) + index * static_cast<int64_t>(sizeof(T)), &typed, sizeof(T));
  };
  switch (type) {
    case CUDA_R_32F: return write(static_cast<float>(value));
    case CUDA_R_64F: return write(value);
    case CUDA_R_16F: return write(float_to_half(round_to_odd(value)));
    case CUDA_R_16BF: return write(float_to_bfloat16(round_to_odd(value)));
    case CUDA_R_8I: return write(static_cast<int8_t>(std::fmin(std::fmax(std::nearbyint(value), -128.0), 127.0)));
    case CUDA_R_32I: return write(static_cast<int32_t>(static_cast<int64_t>(value)));
  }
}

void require_device(const void* data, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld, const char* name) {
  if (rows == 0 || cols == 0) return;
  const size_t bytes = static_cast<size_t>((cols - 1) * ld + rows) * type_bytes(type);
  if (!is_device_reachable(data, bytes, current_device()))
    throw Fault(std::string("a matrix product: ") + name + " is not in device memory");
}

void run(const Gemm& g) {
  const int64_t m = g.a.transposed ? g.a.cols : g.a.rows;
  const int64_t k = g.a.transposed ? g.a.rows : g.a.cols;
  const int64_t n = g.b.transposed ? g.b.rows : g.b.cols;
  const auto index = [](const GemmMatrix& x, int64_t row, int64_t col) {
    return x.transposed ? row * x.ld + col : col * x.ld + row;
  };
  std::vector<double> column(static_cast<size_t>(k));
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t p = 0; p < k; ++p) column[static_cast<size_t>(p)] = load(g.b.data, g.b.type, index(g.b, p, j));
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += load(g.a.data, g.a.type, index(g.a, i, p)) * column[static_cast<size_t>(p)];
      // beta = 0 must not read c, which may be uninitialised.
      const double old = g.beta != 0 ? g.beta * load(g.c.data, g.c.type, j * g.c.ld + i) : 0.0;
      store(g.d, g.d_type, j * g.d_ld + i, g.alpha * sum + old);
    }
  }
}

}  // namespace

cublasStatus_t check_gemm(const Gemm& g, cublasComputeType_t compute) {
  const int64_t m = g.a.transposed ? g.a.cols : g.a.rows;
  const int64_t k = g.a.transposed ? g.a.rows : g.a.cols;
  const int64_t kb = g.b.transposed ? g.b.cols : g.b.rows;
  const int64_t n = g.b.transposed ? g.b.rows : g.b.cols;
  if (m < 0 || n < 0 || k < 0 || kb != k || g.a.ld < g.a.rows || g.b.ld < g.b.rows || g.d_ld < m || g.c.ld < m ||
      g.c.type != g.d_type) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool integer = compute == CUBLAS_COMPUTE_32I || compute == CUBLAS_COMPUTE_32I_PEDANTIC;
  if (integer) {
    // Tensor cores want every leading dimension and the depth in multiples of four bytes.
    const bool types = g.a.type == CUDA_R_8I && g.b.type == CUDA_R_8I && g.d_type == CUDA_R_32I;
    const bool fits = g.a.ld % 4 == 0 && g.b.ld % 4 == 0 && g.d_ld % 4 == 0 && k % 4 == 0;
    return types && fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto floating = [](cudaDataType_t t) { return t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF; };
  const bool types = floating(g.a.type) && g.a.type == g.b.type && (g.d_type == CUDA_R_32F || g.d_type == g.a.type);
  return types ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

void enqueue_gemm(const Gemm& g, cudaStream_t handle, bool own_workspace) {
  const std::lock_guard lock(api_mutex());
  CUstream_st* stream = resolve(handle);
  if (stream == nullptr) throw Fault("a matrix product on a stream that does not exist");
  if (stream->capture != nullptr && !own_workspace)
    throw Fault("a matrix product is captured that would use the library's own memory");
  require_device(g.a.data, g.a.type, g.a.rows, g.a.cols, g.a.ld, "a");
  require_device(g.b.data, g.b.type, g.b.rows, g.b.cols, g.b.ld, "b");
  require_device(g.d, g.d_type, g.c.rows, g.c.cols, g.d_ld, "the result");
  if (g.beta != 0) require_device(g.c.data, g.c.type, g.c.rows, g.c.cols, g.c.ld, "c");
  ++statistics().gemms;
  enqueue(stream, {WorkKind::kKernel, [g] { run(g); }, nullptr});
}

double read_scale(const void* scale, cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC: return load(scale, CUDA_R_32I, 0);
    case CUBLAS_COMPUTE_16F: return load(scale, CUDA_R_16F, 0);
    default: return load(scale, CUDA_R_32F, 0);
  }
}

}  // namespace cuda_emu
