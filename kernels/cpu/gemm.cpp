#include "kernels/cpu/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cpp"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/gemm_float-inl.h"
#include "kernels/cpu/gemm_int4-inl.h"
#include "kernels/cpu/gemm_int8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {

GemmKernels GemmTable() {
  return {Gemm, GemmInt8, GemmInt4, kQuadBytes, kVnni ? uint8_t{128} : uint8_t{0}, QuantizeRow};
}

}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bam::cpu {
HWY_EXPORT(GemmTable);
GemmKernels gemm_kernels() { return HWY_DYNAMIC_DISPATCH(GemmTable)(); }
}  // namespace bam::cpu
#endif
