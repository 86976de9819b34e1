// int8 pages on tensor cores, from the codes as they lie in shared memory. See attention_mma.cu.
//
// ldmatrix moves pairs of codes: transposed, a register holds two neighbouring keys (dims) of two rows, and byte
// permutations make fragments of two tiles of it, the even and the odd columns (Config::column).
//
//   q K   integers: a query is whole units of its largest component, an upper and a lower byte each, so sums are exact and
//         no key is widened. With few rows the lower bytes are the rows 8 ... 15 of the same tile.
//   w V   a code plus 128, read as a subnormal half, is its number times 2^-24: no subtraction, no multiplication. Scales
//         are in the weights, and the sum of weights takes the 128 away at the end of a run.
#pragma once

#include "kernels/cuda/attention_mma_stage.h"

namespace bam::cuda::mma {

// Weights are up to 2^6 instead of 1: times a scale they fill the range of float16 as values of f16 pages would.
inline constexpr float kWeightBits = 6;

template <typename C>
struct CodeFragments {
  const unsigned char* codes;  // of a stage: the mover's buffer
  int lane;

  static constexpr int kPanelCodes = C::kDims * 256;

  // The two rows of a thread as whole numbers of units. word(r, d): the dims d, d + 1, d + 8 and d + 9 as floats.
  template <typename Words>
  __device__ __forceinline__ static void pack_queries(int lane, Fragment<C>& f, uint32_t* shared, Words words) {
#pragma unroll
    for (int r = 0; r < C::kRowsOfThread; ++r) {
      float largest = 0;
#pragma unroll
      for (int step = 0; step < 2 * C::kQuerySteps; ++step) {
        const float4 q = words(r, 16 * step + 2 * fragments::in_group(lane));
        largest = max_or_nan(fabsf(q.x), largest);
        largest = max_or_nan(fabsf(q.y), largest);
        largest = max_or_nan(fabsf(q.z), largest);
        largest = max_or_nan(fabsf(q.w), largest);
      }
      largest = max_or_nan(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = max_or_nan(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      // Logits are in units of `content` until the end of a run. It is positive: a sign is the query's, and nothing of a query
      // is no factor.
      QueryUnits units = query_units(largest);
      if (f.content[r] < 0) units.per_number = -units.per_number;
      const float content = fabsf(f.content[r] * units.unit);
      const bool nothing = content < 1e-30f;
      if (nothing) units.per_number = 0;
      f.content[r] = nothing ? 1.0f : content;
      f.bias[r] = f.bias[r] / f.content[r];
#pragma unroll
      for (int step = 0; step < 2 * C::kQuerySteps; ++step) {
        const float4 q = words(r, 16 * step + 2 * fragments::in_group(lane));
        const int whole[4] = {units.of(q.x), units.of(q.y), units.of(q.z), units.of(q.w)};
        uint32_t upper = 0, lower = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          upper |= (static_cast<uint32_t>((whole[i] + 128) >> 8) & 0xffu) << 8 * i;
          lower |= (static_cast<uint32_t>(whole[i]) & 0xffu) << 8 * i;
        }
        const int at = step % 2 * 2 + r, low_at = C::kFew ? at + 1 : at + 4;
        if constexpr (C::kSharedQueries) {
          shared[(step / 2 * C::kQueryWords + at) * 32 + lane] = upper;
          shared[(step / 2 * C::kQueryWords + low_at) * 32 + lane] = lower;
        } else {
          f.q[step / 2][at] = upper;
          f.q[step / 2][low_at] = lower;
        }
      }
    }
  }

  // scores [16 or 8 rows][32 keys] = q K in units of the query
  __device__ __forceinline__ void score(const Fragment<C>& f, const uint32_t* shared, float (&s)[4][4]) const {
    const SharedAddress base = shared_address(codes + 16 * lane);
    int32_t upper[4][4], lower[4][4];
#pragma unroll
    for (int step = 0; step < C::kQuerySteps; ++step) {
      uint32_t q[C::kQueryWords];
#pragma unroll
      for (int i = 0; i < C::kQueryWords; ++i) {
        q[i] = C::kSharedQueries ? shared[(step * C::kQueryWords + i) * 32 + lane] : f.q[step][i];
      }
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        const SharedAddress from = base + (panel * kPanelCodes + 512 * step);
        uint32_t pairs[4] = {0, 0, 0, 0};
        if (2 * step + 1 < C::kDims) {
          ldmatrix_x4_trans(pairs, from);
        } else {
          uint32_t half[2];
          ldmatrix_x2_trans(half, from);
          pairs[0] = half[0];
          pairs[1] = half[1];
        }
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const unsigned bytes = odd == 0 ? 0x6420 : 0x7531;
          const uint32_t b[2] = {__byte_perm(pairs[0], pairs[1], bytes), __byte_perm(pairs[2], pairs[3], bytes)};
          multiply(upper[2 * panel + odd], q, b, step == 0);
          if constexpr (!C::kFew) multiply(lower[2 * panel + odd], q + 4, b, step == 0);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * C::kRowsOfThread; ++i) {
        s[n][i] = static_cast<float>(upper[n][i] * 256 + (C::kFew ? upper[n][i + 2] : lower[n][i]));
      }
    }
  }
  __device__ __forceinline__ static void multiply(int32_t (&d)[4], const uint32_t* q, const uint32_t (&b)[2],
                                                  bool first) {
    const uint32_t a[4] = {q[0], q[1], q[2], q[3]};
    if (first) {
      mma_m16n8k32_s8_zero(d, a, b);
    } else {
      mma_m16n8k32_s8(d, a, b);
    }
  }

  // Scales of this lane's four keys in panel `panel`: of K (kind 0) or V (1).
  __device__ __forceinline__ uint2 scales(int kind, int panel) const {
    const unsigned char* at = codes + C::kRawScales + kind * kStageKeys * 2 + panel * kPanelKeys * 2;
    return reinterpret_cast<const uint2*>(at)[fragments::in_group(lane)];
  }
  // Scores of every key times its scale.
  __device__ __forceinline__ void apply_scales(float (&x)[4][4]) const {
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
      const uint2 halves = scales(0, panel);
      const float2 low = __half22float2(halves_of(halves.x)), high = __half22float2(halves_of(halves.y));
      const float scale[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
      for (int n = 2 * panel; n < 2 * panel + 2; ++n) {
#pragma unroll
        for (int i = 0; i < 2 * C::kRowsOfThread; ++i) x[n][i] = x[n][i] * scale[2 * (i % 2) + n % 2];
      }
    }
  }

  // out += weights V and f.weights += weights, both as the codes are read: see finish().
  __device__ __forceinline__ void add_values(Fragment<C>& f, const float (&x)[4][4]) const {
    const int matrix = fragments::ldmatrix_matrix(lane);
    const SharedAddress base = shared_address(
        codes + C::kRawValues + (matrix % 2 * 8 + fragments::ldmatrix_row(lane)) * C::kRawValueRow + matrix / 2 * 16);
    const uint32_t ones[2] = {0x3c003c00u, 0x3c003c00u};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      // Rows of V lie in the order that makes pairs of two score tiles neighbours, see StageMover::value_slot.
      const float(&even)[4] = x[2 * k], (&odd)[4] = x[2 * k + 1];
      const uint2 scale = scales(1, k);
      const uint32_t a[4] = {scaled(even[0], odd[0], scale.x), C::kFew ? 0 : scaled(even[2], odd[2], scale.x),
                             scaled(even[1], odd[1], scale.y), C::kFew ? 0 : scaled(even[3], odd[3], scale.y)};
      mma_m16n8k16<MmaType::kF16>(f.weights, a, ones);
#pragma unroll
      for (int d = 0; d < C::kDims; d += 2) {
        const SharedAddress from = base + (16 * k * C::kRawValueRow + 16 * d);
        uint32_t pairs[4] = {0, 0, 0, 0};
        if (d + 1 < C::kDims) {
          ldmatrix_x4_trans(pairs, from);
        } else {
          uint32_t half[2];
          ldmatrix_x2_trans(half, from);
          pairs[0] = half[0];
          pairs[1] = half[1];
        }
#pragma unroll
        for (int n = 2 * d; n < 2 * d + 4 && n < 2 * C::kDims; ++n) {
          const uint32_t first = pairs[(n - 2 * d) / 2 * 2] ^ 0x80808080u,
                         second = pairs[(n - 2 * d) / 2 * 2 + 1] ^ 0x80808080u;
          const unsigned bytes = n % 2 == 0 ? 0x4240 : 0x4341;
          const uint32_t b[2] = {__byte_perm(first, 0, bytes), __byte_perm(second, 0, bytes)};
          mma_m16n8k16<MmaType::kF16>(f.out[n], a, b);
        }
      }
    }
  }

  // A maximum in units of log 2; finite, as f.max is.
  __device__ __forceinline__ static float log2_units(const Fragment<C>& f, int r) {
    return fmaxf(f.max[r] * f.content[r], kNothingSeen);
  }

  __device__ __forceinline__ static uint32_t scaled(float first, float second, uint32_t scale) {
    return bits_of(__hmul2(halves_of(pack2<__half>(first, second)), halves_of(scale)));
  }

  // At the end of a run: logits are in units of log 2, weights up to 1, and sums those of numbers instead of codes.
  __device__ __forceinline__ static void finish(Fragment<C>& f) {
    constexpr float kUnit = 1.0f / (1 << static_cast<int>(kWeightBits));
#pragma unroll
    for (int r = 0; r < C::kRowsOfThread; ++r) {
      f.sum[r] = f.sum[r] * kUnit;
      f.max[r] = log2_units(f, r);
    }
#pragma unroll
    for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * C::kRowsOfThread; ++i) {
        f.out[n][i] = fmaf(f.out[n][i], 0x1p24f * kUnit, f.weights[i / 2 * 2] * (-128.0f * kUnit));
      }
    }
  }
};

}  // namespace bam::cuda::mma
