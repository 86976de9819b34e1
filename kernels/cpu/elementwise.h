// Operations on single rows of float32.
#pragma once

#include <cstdint>

namespace bam::cpu {

struct ElementwiseKernels {
  // out = x * rsqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  // out[i] = silu(gate[i]) * up[i]
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);
  // out = x * scale, rounded once
  void (*scale)(const float* x, float scale, int64_t n, float* out);
};
ElementwiseKernels elementwise_kernels();

}  // namespace bam::cpu
