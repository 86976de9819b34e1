// The reference product behind cuBLAS and cuBLASLt.
#pragma once

#include <cublas_api.h>

#include <cstdint>

namespace cuda_emu {

// One operand: column-major, `rows` x `cols` as stored.
struct GemmMatrix {
  const void* data;
  cudaDataType_t type;
  int64_t rows, cols, ld;
  bool transposed = false;  // used as its transpose
};

struct Gemm {
  GemmMatrix a, b, c;
  void* d;
  cudaDataType_t d_type;
  int64_t d_ld;
  double alpha, beta;
};

// What the types and dimensions say; kSuccess if the product can be computed.
cublasStatus_t check_gemm(const Gemm& gemm, cublasComputeType_t compute);
// d = alpha * a * b + beta * c, summed in double (exact for int8). Queued on the stream; faults if a matrix does not
// lie in device memory.
void enqueue_gemm(const Gemm& gemm, cudaStream_t stream, bool own_workspace = true);
// alpha and beta have the type of the accumulator.
double read_scale(const void* scale, cublasComputeType_t compute);

}  // namespace cuda_emu
