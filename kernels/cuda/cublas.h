// Matrix products by cuBLAS, for those who want its speed more than batch invariance: it picks an algorithm, and with
// it an order of sums, by the number of rows. The library is opened when it is asked for, so the plugin works without
// it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/kernels.h"

namespace bam::cuda {

class Cublas {
 public:
  // Products are issued or captured on `stream` only. tf32: float32 products on tensor cores, with 10 bits of mantissa. Throws
  // bam::Error if the library is missing.
  Cublas(cudaStream_t stream, bool tf32);
  ~Cublas();

  // Weights in the operands' own format, or int8.
  static bool supports(const GemmArgs& args);
  // products [rows, n]: scratch for int8, else unused. Recorded or issued on the stream.
  void multiply(const GemmArgs& args, int32_t* products, const Queue& queue) const;
  std::string description() const;

 private:
  struct Library;
  struct Product;
  std::unique_ptr<Library> library_;
  bool tf32_;
};

}  // namespace bam::cuda
