// Pages of 16-bit numbers (fp8 codes once they are widened) on tensor cores. See attention_mma.cu; int8: attention_mma_codes.h.
#pragma once

#include "kernels/cuda/attention_mma_types.h"

namespace bam::cuda::mma {

template <typename C>
struct NumberFragments {
  using T = typename C::T;

  const unsigned char* stage;  // keys, then values
  int lane;

  // The row that this lane names in an ldmatrix of two neighbouring B tiles.
  __device__ __forceinline__ SharedAddress matrix_row(const unsigned char* tile, int row_bytes) const {
    const int matrix = fragments::ldmatrix_matrix(lane);
    return shared_address(tile + (fragments::b_matrix_k(matrix) + fragments::ldmatrix_row(lane)) * row_bytes +
                          2 * fragments::b_matrix_n(matrix));
  }

  // scores [16 rows][32 keys] = q K
  __device__ __forceinline__ void score(const Fragment<C>& f, const unsigned char* query_tile, float (&s)[4][4]) const {
    const SharedAddress base = matrix_row(stage, kKeyRowBytes);
    const int matrix = fragments::ldmatrix_matrix(lane);
    const SharedAddress queries = shared_address(
        query_tile + (fragments::a_matrix_row(matrix) + fragments::ldmatrix_row(lane)) * C::kValueRowBytes +
        2 * fragments::a_matrix_col(matrix));
#pragma unroll
    for (int k = 0; k < C::kDims; ++k) {
      uint32_t q[4];
      if constexpr (C::kSharedQueries) {
        ldmatrix_x4(q, queries + 32 * k);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = f.q[k][i];
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, base + (16 * k * kKeyRowBytes + 16 * n));
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        if (k == 0) {
          mma_m16n8k16_zero<MmaOf<T>::kType>(s[n], q, first);
          mma_m16n8k16_zero<MmaOf<T>::kType>(s[n + 1], q, second);
        } else {
          mma_m16n8k16<MmaOf<T>::kType>(s[n], q, first);
          mma_m16n8k16<MmaOf<T>::kType>(s[n + 1], q, second);
        }
      }
    }
  }

  // out += weights V
  __device__ __forceinline__ void add_values(Fragment<C>& f, const float (&x)[4][4]) const {
    const SharedAddress base = matrix_row(stage + C::kKeyBytes, C::kValueRowBytes);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      // The accumulators of two 16x8 score tiles are the A fragment of their 16 keys.
      const uint32_t a[4] = {pack2<T>(x[2 * k][0], x[2 * k][1]), pack2<T>(x[2 * k][2], x[2 * k][3]),
                             pack2<T>(x[2 * k + 1][0], x[2 * k + 1][1]), pack2<T>(x[2 * k + 1][2], x[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < 2 * C::kDims; n += 2) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, base + (16 * k * C::kValueRowBytes + 16 * n));
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        mma_m16n8k16<MmaOf<T>::kType>(f.out[n], a, first);
        mma_m16n8k16<MmaOf<T>::kType>(f.out[n + 1], a, second);
      }
    }
  }
};

}  // namespace bam::cuda::mma
