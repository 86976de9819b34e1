// From formats known at run time to C++ types, for the host side of kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "base/check.h"
#include "kernels/dtype.h"

namespace bam::cuda {

// Calls body(std::type_identity<T>()) with the type of kF32, kF16 or kBF16.
template <typename Body>
void with_float_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(std::type_identity<float>());
    case DType::kF16: return body(std::type_identity<__half>());
    case DType::kBF16: return body(std::type_identity<__nv_bfloat16>());
    default: BAM_CHECK(false && "not a floating-point format");
  }
}

constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace bam::cuda
