#include "kernels/cpu/elementwise.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

// Calls body(load, store, offset) for blocks of sixteen; the last one may be partial and goes through a buffer.
template <typename Body>
HWY_INLINE void ForBlocks(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, 16);
  if (i < n) body(i, static_cast<int>(n - i));
}

HWY_INLINE F32x16 LoadSome(const float* from, int count) {
  if (count == 16) return Load16(from);
  HWY_ALIGN float lanes[16] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return Load16(lanes);
}
HWY_INLINE void StoreSome(F32x16 v, float* to, int count) {
  if (count == 16) return Store16(v, to);
  HWY_ALIGN float lanes[16];
  Store16(v, lanes);
  for (int i = 0; i < count; ++i) to[i] = lanes[i];
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  F32x16 squares = Zero16();
  ForBlocks(n, [&](int64_t i, int count) {
    const F32x16 v = LoadSome(x + i, count);
    squares = MulAdd(v, v, squares);
  });
  const float mean = ReduceSum16(squares) / static_cast<float>(n);
  const F32x16 inverse = Set16(1.0f / std::sqrt(mean + eps));
  ForBlocks(n, [&](int64_t i, int count) {
    StoreSome(Mul(Mul(LoadSome(x + i, count), inverse), LoadSome(weight + i, count)), out + i, count);
  });
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  ForBlocks(n, [&](int64_t i, int count) {
    const F32x16 g = LoadSome(gate + i, count);
    F32x16 magnitude;
    BAM_EACH_PART magnitude.part[p] = hn::Neg(hn::Abs(g.part[p]));
    const F32x16 e = ExpNegative(magnitude);
    const F32x16 one = Set16(1.0f);
    F32x16 numerator;  // sigmoid(g) = 1 / (1 + e) for g >= 0, e / (1 + e) below
    BAM_EACH_PART numerator.part[p] = hn::IfThenElse(hn::Ge(g.part[p], hn::Zero(FloatTag())), one.part[p], e.part[p]);
    const F32x16 sigmoid = Div(numerator, Add(one, e));
    StoreSome(Mul(Mul(g, sigmoid), LoadSome(up + i, count)), out + i, count);
  });
}

void Scale(const float* x, float scale, int64_t n, float* out) {
  const F32x16 factor = Set16(scale);
  ForBlocks(n, [&](int64_t i, int count) { StoreSome(Mul(LoadSome(x + i, count), factor), out + i, count); });
}

ElementwiseKernels ElementwiseTable() { return {RmsNorm, SwiGlu, Scale}; }

}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bam::cpu {
HWY_EXPORT(ElementwiseTable);
ElementwiseKernels elementwise_kernels() { return HWY_DYNAMIC_DISPATCH(ElementwiseTable)(); }
}  // namespace bam::cpu
#endif
