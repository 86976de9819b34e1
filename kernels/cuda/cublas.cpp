#include "kernels/cuda/cublas.h"

#include "base/error.h"
#include "kernels/cuda/memory.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>

#ifdef BAM_CUDA_EMU
#include <cuda_emu.h>
#else
#include <dlfcn.h>
#endif

namespace bam::cuda {
namespace {

// Recommended by the library's manual for the largest devices. Own memory: steps are recorded as graphs, in which the
// library must not allocate.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// The C function; C++ headers overload its name.
using GemmFunction = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                        const void* alpha, const void* a, cudaDataType_t, int lda, const void* b,
                                        cudaDataType_t, int ldb, const void* beta, void* c, cudaDataType_t, int ldc,
                                        cublasComputeType_t, cublasGemmAlgo_t);

// The functions in use, found by name in the library.
struct Functions {
  decltype(&cublasCreate) create = nullptr;
  decltype(&cublasDestroy) destroy = nullptr;
  decltype(&cublasSetStream) set_stream = nullptr;
  decltype(&cublasSetWorkspace) set_workspace = nullptr;
  GemmFunction gemm = nullptr;
  decltype(&cublasGetStatusString) status_string = nullptr;
};

#ifdef BAM_CUDA_EMU

Functions open_functions() {
  if (!::cuda_emu::has_cublas()) throw Error("--cuda-gemm cublas: libcublas.so was not found");
  return {cublasCreate, cublasDestroy, cublasSetStream, cublasSetWorkspace, cublasGemmEx, cublasGetStatusString};
}

#else

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Error("--cuda-gemm cublas: the library has no function {}", name);
}

// The library stays open for the life of the process.
Functions open_functions() {
  const std::string versioned = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(versioned.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error("--cuda-gemm cublas: {} does not load: {}", versioned, reason != nullptr ? reason : "?");
  }
  Functions f;
  find(library, "cublasCreate_v2", f.create);
  find(library, "cublasDestroy_v2", f.destroy);
  find(library, "cublasSetStream_v2", f.set_stream);
  find(library, "cublasSetWorkspace_v2", f.set_workspace);
  find(library, "cublasGemmEx", f.gemm);
  find(library, "cublasGetStatusString", f.status_string);
  return f;
}

#endif

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kI8: return CUDA_R_8I;
    default: return CUDA_R_32F;
  }
}

}  // namespace

struct Cublas::Library {
  Functions functions = open_functions();
  DeviceMemory workspace{kWorkspaceBytes};
  cublasHandle_t handle = nullptr;

  void check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    // The library's status does not tell a lost device from a bad call; a call that does nothing does.
    bam::cuda::check(cudaFree(nullptr), call);
    throw Error("{}: {}", call, functions.status_string(status));
  }
  ~Library() {
    if (handle != nullptr) (void)functions.destroy(handle);
  }
};

// One product, now or when a recorded step is captured: the library's workspace is ours and the factors live here.
struct Cublas::Product final : Work {
  const Library* library;
  GemmArgs args;
  int32_t* products;
  bool tf32;

  Product(const Library* library_, const GemmArgs& args_, int32_t* products_, bool tf32_)
      : library(library_), args(args_), products(products_), tf32(tf32_) {}
  bool same(const Work& other) const override {
    if (typeid(other) != typeid(Product)) return false;
    const auto& that = static_cast<const Product&>(other);
    return library == that.library && args == that.args && products == that.products && tf32 == that.tf32;
  }
  // The handle has its stream.
  cudaError_t issue(cudaStream_t) const override {
    const bool int8 = args.weight == DType::kI8, operands = args.output == GemmOutput::kOperand;
    const float alpha = 1, beta = args.output == GemmOutput::kAddFloat ? 1 : 0;
    const int32_t int_alpha = 1, int_beta = 0;
    const cudaDataType_t in = type_of(args.weight);
    const cudaDataType_t out = int8 ? CUDA_R_32I : operands ? type_of(args.operand) : CUDA_R_32F;
    const cublasComputeType_t compute = int8                                 ? CUBLAS_COMPUTE_32I
                                        : tf32 && args.weight == DType::kF32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                             : CUBLAS_COMPUTE_32F;
    // Column-major: out^T [n, rows] = W [n, k] x^T [k, rows].
    library->check(library->functions.gemm(
                       library->handle, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(args.n), static_cast<int>(args.rows),
                       static_cast<int>(int8 ? args.ldk : args.k), int8 ? static_cast<const void*>(&int_alpha) : &alpha,
                       args.w, in, static_cast<int>(args.ldk), args.x, in, static_cast<int>(args.ldk),
                       int8 ? static_cast<const void*>(&int_beta) : &beta, int8 ? products : args.out, out,
                       static_cast<int>(args.n), compute, CUBLAS_GEMM_DEFAULT),
                   "cublasGemmEx");
    return cudaSuccess;
  }
};

Cublas::Cublas(cudaStream_t stream, bool tf32) : library_(std::make_unique<Library>()), tf32_(tf32) {
  Library& lib = *library_;
  lib.check(lib.functions.create(&lib.handle), "cublasCreate");
  lib.check(lib.functions.set_stream(lib.handle, stream), "cublasSetStream");
  lib.check(lib.functions.set_workspace(lib.handle, lib.workspace.data(), lib.workspace.size()), "cublasSetWorkspace");
}

Cublas::~Cublas() = default;

bool Cublas::supports(const GemmArgs& args) {
  // Products of int8 want rows and depth in multiples of 4; k is padded to 32 by zeros, n is what the layer has.
  return args.weight == DType::kI8 ? args.n % 4 == 0 : args.weight == args.operand;
}

void Cublas::multiply(const GemmArgs& args, int32_t* products, const Queue& queue) const {
  auto product = std::make_unique<Product>(library_.get(), args, products, tf32_);
  if (queue.record == nullptr) {
    bam::cuda::check(product->issue(queue.stream), "cublasGemmEx");
  } else {
    queue.record->push_back(std::move(product));
  }
  if (args.weight == DType::kI8) {
    scale_products(args, products, queue);
  } else if (args.output == GemmOutput::kOperand && args.operand == DType::kF16) {
    clamp_halves({args.out, args.rows, args.n}, queue);
  }
}

std::string Cublas::description() const { return tf32_ ? "cuBLAS with TF32" : "cuBLAS"; }

}  // namespace bam::cuda

#else  // a toolkit without cuBLAS

namespace bam::cuda {

struct Cublas::Library {};
Cublas::Cublas(cudaStream_t, bool) : tf32_(false) {
  throw Error("--cuda-gemm cublas: this plugin was built without cuBLAS");
}
Cublas::~Cublas() = default;
bool Cublas::supports(const GemmArgs&) { return false; }
void Cublas::multiply(const GemmArgs&, int32_t*, const Queue&) const {}
std::string Cublas::description() const { return "no cuBLAS"; }

}  // namespace bam::cuda

#endif
