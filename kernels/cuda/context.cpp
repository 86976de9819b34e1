#include "kernels/cuda/context.h"

#include "kernels/cuda/memory.h"

namespace bam::cuda {

CudaContext::CudaContext(int device) : device_(device) {
  BAM_CUDA(cudaSetDevice(device));
  cudaDeviceProp properties{};
  BAM_CUDA(cudaGetDeviceProperties(&properties, device));
  name_ = properties.name;
  capability_ = properties.major * 10 + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  shared_per_block_ = properties.sharedMemPerBlockOptin;
}

CudaContext::Scope::Scope(int device) {
  if (cudaGetDevice(&previous_) != cudaSuccess || previous_ == device) return;
  changed_ = cudaSetDevice(device) == cudaSuccess;
}

CudaContext::Scope::~Scope() {
  if (changed_) (void)cudaSetDevice(previous_);
}

}  // namespace bam::cuda
