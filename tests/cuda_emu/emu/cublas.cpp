// cuBLAS and cuBLASLt on top of the reference product.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_emu.h>

#include <cstring>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/gemm.h"
#include "tests/cuda_emu/emu/runtime.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  bool own_workspace = false;
  int device = cuda_emu::current_device();
};
struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cublasOperation_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, cols, ld;
};
struct cublasLtMatmulPreferenceOpaque_t {};

namespace {

cublasStatus_t ready() {
  return cuda_emu::machine_status() == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cuda_emu::GemmMatrix as_matrix(const void* data, cublasLtMatrixLayout_t layout, cublasOperation_t operation) {
  return {data, layout->type, layout->rows, layout->cols, layout->ld, operation != CUBLAS_OP_N};
}

cuda_emu::Gemm as_gemm(cublasLtMatmulDesc_t desc, const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                       cublasLtMatrixLayout_t b_layout, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                       cublasLtMatrixLayout_t d_layout) {
  return {as_matrix(a, a_layout, desc->transa),
          as_matrix(b, b_layout, desc->transb),
          as_matrix(c, c_layout, CUBLAS_OP_N),
          d,
          d_layout->type,
          d_layout->ld,
          1,
          0};
}

template <typename T, typename... Args>
cublasStatus_t create(T** object, Args... args) {
  if (ready() != CUBLAS_STATUS_SUCCESS) return ready();
  *object = new T{args...};
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

bool cuda_emu::has_cublas() { return config().cublas; }

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasCreate(cublasHandle_t* handle) { return create(handle); }
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (handle->device != cuda_emu::current_device()) {
    throw cuda_emu::Fault("cublasDestroy on another device than cublasCreate");
  }
  return destroy(handle);
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->own_workspace = false;  // back to the library's pool, says its manual
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
  handle->own_workspace = workspace != nullptr && bytes > 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType_t a_type, int lda, const void* b,
                            cudaDataType_t b_type, int ldb, const void* beta, void* c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (cuda_emu::device_status(handle->device) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const bool ta = transa != CUBLAS_OP_N, tb = transb != CUBLAS_OP_N;
  const cuda_emu::Gemm gemm{{a, a_type, ta ? k : m, ta ? m : k, lda, ta},
                            {b, b_type, tb ? n : k, tb ? k : n, ldb, tb},
                            {c, c_type, m, n, ldc, false},
                            c,
                            c_type,
                            ldc,
                            cuda_emu::read_scale(alpha, compute),
                            cuda_emu::read_scale(beta, compute)};
  const cublasStatus_t status = cuda_emu::check_gemm(gemm, compute);
  if (status == CUBLAS_STATUS_SUCCESS) cuda_emu::enqueue_gemm(gemm, handle->stream, handle->own_workspace);
  return status;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t) {
  return create(desc, compute);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA || attribute == CUBLASLT_MATMUL_DESC_TRANSB) {
    if (bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &desc->transa : &desc->transb, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  return create(layout, type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* returned) {
  *returned = 0;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status =
      cuda_emu::check_gemm(as_gemm(desc, nullptr, a, nullptr, b, nullptr, c, nullptr, d), desc->compute);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  cuda_emu::Gemm gemm = as_gemm(desc, a, a_layout, b, b_layout, c, c_layout, d, d_layout);
  gemm.alpha = cuda_emu::read_scale(alpha, desc->compute);
  gemm.beta = cuda_emu::read_scale(beta, desc->compute);
  const cublasStatus_t status = cuda_emu::check_gemm(gemm, desc->compute);
  if (status == CUBLAS_STATUS_SUCCESS) cuda_emu::enqueue_gemm(gemm, stream);
  return status;
}
