// One thread block of the tensor-core attention kernel at work. See attention_mma.cu.
#pragma once

#include "kernels/cuda/attention_mma_types.h"
#include "kernels/cuda/stored.h"

namespace bam::cuda::mma {

template <typename C>
struct Kernel {
  using T = typename C::T;
  using Shared = SharedLayout<C>;

  const AttentionArgs& args;
  const QueryBlock& block;
  unsigned char* shared;
  Run& run;
  int rows, threads, warp, lane, bias_stride, bias_floats;
  int first_key = 0;     // of row `lane` of this warp, lane < 16
  unsigned visited = 0;  // by that row

  __device__ __forceinline__ unsigned char* stage(int s) const {
    return shared + Shared::kStage + s % C::kStages * C::kStageBytes;
  }
  __device__ __forceinline__ unsigned char* raw(int s) const { return shared + Shared::kRaw + s % 2 * C::kRawBytes; }
  __device__ __forceinline__ float* bias_of(int s) const {
    return reinterpret_cast<float*>(shared + Shared::bias(threads)) + s % 2 * bias_floats;
  }
  __device__ __forceinline__ float* totals() const {
    return reinterpret_cast<float*>(shared + Shared::totals(threads)) + threadIdx.x;
  }

  // Rows of K beyond head_dim and columns of V beyond padded_dim are never copied to; they must be zero, not poison.
  __device__ __forceinline__ void clear_padding() {
    const int head_dim = args.kv.layout.head_dim, padded = args.kv.layout.padded_dim;
    for (int s = 0; s < C::kStages; ++s) {
      auto* k = reinterpret_cast<uint32_t*>(stage(s) + head_dim * kKeyRowBytes);
      for (int i = static_cast<int>(threadIdx.x); i < (C::kDims * 16 - head_dim) * kKeyRowBytes / 4; i += threads)
        k[i] = 0;
      const int words = C::kDims * 8 - padded / 2;
      for (int i = static_cast<int>(threadIdx.x); i < kStageKeys * words; i += threads) {
        unsigned char* row = stage(s) + C::kKeyBytes + i / words * C::kValueRowBytes + padded * 2;
        reinterpret_cast<uint32_t*>(row)[i % words] = 0;
      }
    }
  }

  // Starts copying stage s of the run.
  __device__ __forceinline__ void start(int s) {
    const KvLayout& layout = args.kv.layout;
    const unsigned char* tile = run.data[s / kStagesPerTile];
    const int half = s % kStagesPerTile, thread = static_cast<int>(threadIdx.x);
    constexpr int kElement = C::kQuantised ? 1 : 2;
    constexpr int kPanelBytes = kPanelKeys * kElement, kPanels = kStageKeys / kPanelKeys;
    constexpr int kChunks = kPanels * kPanelBytes / 16;  // of one dim's row of K
    const unsigned char* keys = tile + layout.k_offset + half * kPanels * layout.head_dim * kPanelBytes;
    for (int i = thread; i < layout.head_dim * kChunks; i += threads) {
      const int d = i / kChunks, c = i % kChunks;
      const int panel = c * 16 / kPanelBytes, inside = c * 16 % kPanelBytes;
      unsigned char* to = C::kQuantised ? raw(s) + d * kStageKeys + 16 * c : stage(s) + d * kKeyRowBytes + 16 * c;
      cp_async<16>(to, keys + (panel * layout.head_dim + d) * kPanelBytes + inside);
    }
    const int row_bytes = layout.padded_dim * kElement, chunks = row_bytes / 16;
    const unsigned char* values = tile + layout.v_offset + half * kStageKeys * row_bytes;
    for (int i = thread; i < kStageKeys * chunks; i += threads) {
      const int key = i / chunks, c = i % chunks;
      unsigned char* to = C::kQuantised ? raw(s) + C::kDims * 16 * kStageKeys + key * C::kDims * 16 + 16 * c
                                        : stage(s) + C::kKeyBytes + key * C::kValueRowBytes + 16 * c;
      cp_async<16>(to, values + key * row_bytes + 16 * c);
    }
    start_bias(s);
    cp_async_commit();
  }

  // bias[h][j] = B(first distance + j), zeros where no key will be seen.
  __device__ __forceinline__ void start_bias(int s) {
    if (args.heads[block.first_head].bias == nullptr) return;
    const int key = run.tile[s / kStagesPerTile] * kTileKeys + s % kStagesPerTile * kStageKeys;
    const int nearest = block.position - key - (kStageKeys - 1);
    for (int i = static_cast<int>(threadIdx.x); i < block.num_heads * bias_stride; i += threads) {
      const HeadParams& head = args.heads[block.first_head + i / bias_stride];
      const int distance = nearest + i % bias_stride;
      const bool inside = distance >= 0 && distance < head.bias_size;
      cp_async<4>(bias_of(s) + i, head.bias + (inside ? distance : 0), inside ? 4 : 0);
    }
  }

  // Two neighbouring codes as numbers; every one of them is exact in T.
  __device__ __forceinline__ static float2 decode2(const unsigned char* codes) {
    if constexpr (C::kCodes == Codes::kFp8) {
      return fp8x2_to_float2(*reinterpret_cast<const uint16_t*>(codes));
    } else {
      const auto* integers = reinterpret_cast<const int8_t*>(codes);
      return {static_cast<float>(integers[0]), static_cast<float>(integers[1])};
    }
  }

  // Codes: the raw stage becomes 16-bit numbers; values get their scale here, keys later.
  __device__ __forceinline__ void widen(int s) {
    const KvLayout& layout = args.kv.layout;
    const auto* scales = reinterpret_cast<const uint16_t*>(run.data[s / kStagesPerTile] + layout.v_scale_offset) +
                         s % kStagesPerTile * kStageKeys;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < layout.head_dim * (kStageKeys / 2); i += threads) {
      const int d = i / (kStageKeys / 2), pair = i % (kStageKeys / 2);
      const float2 key = decode2(raw(s) + d * kStageKeys + 2 * pair);
      reinterpret_cast<uint32_t*>(stage(s) + d * kKeyRowBytes)[pair] = pack2<T>(key.x, key.y);
    }
    const int pairs = layout.padded_dim / 2;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kStageKeys * pairs; i += threads) {
      const int key = i / pairs, pair = i % pairs;
      const float scale = half_bits_to_float(scales[key]);
      const float2 value = decode2(raw(s) + C::kDims * 16 * (kStageKeys + key) + 2 * pair);
      reinterpret_cast<uint32_t*>(stage(s) + C::kKeyBytes + key * C::kValueRowBytes)[pair] =
          pack2<T>(scale * value.x, scale * value.y);
    }
  }

  __device__ __forceinline__ void load_queries(Fragment<C>& f) {
    if (lane < 16 && warp * 16 + lane < rows) first_key = row_info(args, block, warp * 16 + lane).first_key;
    long long at[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + fragments::c_row(lane, 2 * r);
      const bool used = row < rows;
      const RowInfo info = row_info(args, block, used ? row : 0);
      f.position[r] = info.position;
      f.first_key[r] = info.first_key;
      f.content[r] = info.content_scale;
      f.bias[r] = info.bias_scale;
      f.bias_row[r] = (info.head - block.first_head) * bias_stride + info.position - block.position + kStageKeys - 1;
      at[r] = used ? query_offset(args, block, row) : -1;
    }
    if constexpr (C::kSharedQueries) {
      auto* words = reinterpret_cast<uint32_t*>(query_tile());
      for (int i = lane; i < 16 * C::kDims * 8; i += 32) {
        const int row = i / (C::kDims * 8), d = i % (C::kDims * 8) * 2;
        const long long from = warp * 16 + row < rows ? query_offset(args, block, warp * 16 + row) : -1;
        words[row * (C::kValueRowBytes / 4) + d / 2] = query_pair(from, d);
      }
    } else {
#pragma unroll
      for (int k = 0; k < C::kDims; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // elements 2 i and 2 i + 1 of the A fragment
          f.q[k][i] = query_pair(at[(fragments::a_row(lane, 2 * i) - fragments::group(lane)) / 8],
                                 16 * k + fragments::a_col(lane, 2 * i));
        }
      }
    }
  }

  // Dims d and d + 1 of the query that starts at element `from` (-1: no such row). Through T: a bfloat16 query beyond
  // the range of float16 saturates.
  __device__ __forceinline__ uint32_t query_pair(long long from, int d) const {
    const bool inside = from >= 0 && d < args.kv.layout.head_dim;
    return pack2<T>(to_float(from_float<T>(inside ? load_operand(args.operand, args.qkv, from + d) : 0.0f)),
                    to_float(from_float<T>(inside ? load_operand(args.operand, args.qkv, from + d + 1) : 0.0f)));
  }
  __device__ __forceinline__ unsigned char* query_tile() const {
    return shared + Shared::kQueries + warp * Shared::kQueryBytes;
  }

  // The row that this lane names in an ldmatrix of two neighbouring B tiles.
  __device__ __forceinline__ SharedAddress matrix_row(const unsigned char* tile, int row_bytes) const {
    const int matrix = fragments::ldmatrix_matrix(lane);
    return shared_address(tile + (fragments::b_matrix_k(matrix) + fragments::ldmatrix_row(lane)) * row_bytes +
                          2 * fragments::b_matrix_n(matrix));
  }

  // scores [16 rows][32 keys] = q K
  __device__ __forceinline__ void score(const Fragment<C>& f, const unsigned char* keys, float (&s)[4][4]) const {
    const SharedAddress base = matrix_row(keys, kKeyRowBytes);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
    }
    const int matrix = fragments::ldmatrix_matrix(lane);
    const SharedAddress queries = shared_address(
        query_tile() + (fragments::a_matrix_row(matrix) + fragments::ldmatrix_row(lane)) * C::kValueRowBytes +
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
        mma_m16n8k16<MmaOf<T>::kType>(s[n], q, first);
        mma_m16n8k16<MmaOf<T>::kType>(s[n + 1], q, second);
      }
    }
  }

  // Scores become logits; minus infinity where a row may not or need not look.
  __device__ __forceinline__ void add_prior(const Fragment<C>& f, int s, float (&x)[4][4]) const {
    const KvLayout& layout = args.kv.layout;
    const int key0 = run.tile[s / kStagesPerTile] * kTileKeys + s % kStagesPerTile * kStageKeys;
    const unsigned long long mask = run.mask[s / kStagesPerTile] >> (warp * 16);
    const bool has_bias = args.heads[block.first_head].bias != nullptr;
    const float* bias = bias_of(s);
    const auto* scales = reinterpret_cast<const uint16_t*>(run.data[s / kStagesPerTile] + layout.k_scale_offset) +
                         s % kStagesPerTile * kStageKeys;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2, column = 8 * n + fragments::c_col(lane, i), key = key0 + column;
        float logit = x[n][i] * f.content[r];
        if constexpr (C::kQuantised) logit = logit * half_bits_to_float(scales[column]);
        if (has_bias) logit = fmaf(f.bias[r], bias[f.bias_row[r] - column], logit);
        const bool seen = key <= f.position[r] && key >= f.first_key[r] && (mask >> fragments::c_row(lane, i) & 1) != 0;
        x[n][i] = seen ? logit : minus_infinity();
      }
    }
  }

  // Online softmax: x becomes weights relative to the new maximum.
  __device__ __forceinline__ void soften(Fragment<C>& f, float (&x)[4][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = minus_infinity();
#pragma unroll
      for (int n = 0; n < 4; ++n) largest = fmaxf(largest, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      largest = fmaxf(f.max[r], quad_max(largest));
      const float base = largest == minus_infinity() ? 0.0f : largest;
      const float scale = exp_negative(f.max[r] - base);
      f.max[r] = largest;
      float sum = f.sum[r] * scale;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          x[n][2 * r + e] = exp_negative(x[n][2 * r + e] - base);
          sum += x[n][2 * r + e];
        }
      }
      f.sum[r] = sum;
      if (scale != 1.0f) {
#pragma unroll
        for (int n = 0; n < 2 * C::kDims; ++n) {
          f.out[n][2 * r] *= scale;
          f.out[n][2 * r + 1] *= scale;
        }
      }
    }
  }

  // out += weights V
  __device__ __forceinline__ void add_values(Fragment<C>& f, const unsigned char* values,
                                             const float (&x)[4][4]) const {
    const SharedAddress base = matrix_row(values, C::kValueRowBytes);
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

  // All tiles of the run, for the rows that want them.
  __device__ __forceinline__ void visit_run(Fragment<C>& f) {
    const int stages = run.count * kStagesPerTile;
    if (stages == 0) return;
    count_visits();
    start(0);
    for (int s = 0; s < stages; ++s) {
      cp_async_wait<0>();
      __syncthreads();  // the stage is here for everybody, the other buffer is read by nobody
      if (s + 1 < stages) start(s + 1);
      if constexpr (C::kQuantised) {
        widen(s);
        __syncthreads();
      }
      if ((run.mask[s / kStagesPerTile] >> (warp * 16) & 0xffff) == 0) continue;
      float x[4][4];
      score(f, stage(s), x);
      add_prior(f, s, x);
      soften(f, x);
      add_values(f, stage(s) + C::kKeyBytes, x);
    }
  }

  __device__ __forceinline__ void count_visits() {
    const int row = warp * 16 + lane;
    if (lane >= 16 || row >= rows) return;
    for (int t = 0; t < run.count; ++t) {
      const bool reached = run.tile[t] * kTileKeys + kTileKeys - 1 >= first_key;
      visited += static_cast<unsigned>(reached && (run.mask[t] >> row & 1) != 0);
    }
  }

  // ---- runs: built by one thread, between barriers because everybody reads the last one ----

  __device__ __forceinline__ void append(int tile, unsigned long long mask) {
    const unsigned char* data = mask == 0 ? nullptr : tile_pointer(args.kv, block.pages, tile);
    if (data == nullptr) return;
    run.tile[run.count] = tile;
    run.data[run.count] = data;
    run.mask[run.count++] = mask;
  }
  __device__ __forceinline__ unsigned long long all_rows() const { return rows == 64 ? ~0ull : (1ull << rows) - 1; }

  // The first run: nobody has read one before.
  __device__ __forceinline__ void build_anchor() {
    if (threadIdx.x == 0) {
      run.count = 0;
      append(block.diagonal_tile, all_rows());
      if (block.diagonal_tile > 0) append(block.diagonal_tile - 1, all_rows());
    }
    __syncthreads();
  }

  // The next few distinct seeds after row `row`; returns the row to go on from.
  __device__ __forceinline__ int build_seeds(const int32_t* seeds, int row, int& next) {
    __syncthreads();
    if (threadIdx.x == 0) {
      run.count = 0;
      for (; row < rows && run.count < kSegmentTiles; ++row) {
        unsigned long long mask = 0;
        bool known = seeds[row] < 0;
        for (int other = 0; other < rows && !known; ++other) {
          if (seeds[other] != seeds[row]) continue;
          known = other < row;
          mask |= 1ull << other;
        }
        if (!known) append(seeds[row], mask);
      }
      next = row;
    }
    __syncthreads();
    return next;
  }

  __device__ __forceinline__ void build_segment(int segment) {
    __syncthreads();
    if (threadIdx.x == 0) {
      run.count = 0;
      const int first = segment * kSegmentTiles, last = first + kSegmentTiles - 1, newest = block.diagonal_tile - 2;
      for (int t = last < newest ? last : newest; t >= first && t >= block.first_tile; --t) {
        append(t, tile_mask(args, block, t) & all_rows());
      }
    }
    __syncthreads();
  }

  // ---- states ----

  __device__ __forceinline__ void finish_sums(Fragment<C>& f) const {
    f.sum[0] = quad_sum(f.sum[0]);
    f.sum[1] = quad_sum(f.sum[1]);
  }

  // Shared totals [fragment element, then max and sum of two rows][thread]: nobody else touches them. They are not kept
  // in registers, which the visits of tiles need.
  __device__ __forceinline__ float& total_max(int r) const { return totals()[(8 * C::kDims + r) * threads]; }
  __device__ __forceinline__ float& total_sum(int r) const { return totals()[(8 * C::kDims + 2 + r) * threads]; }

  __device__ __forceinline__ void keep_total(const Fragment<C>& f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_max(r) = f.max[r];
      total_sum(r) = f.sum[r];
    }
#pragma unroll
    for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) totals()[(4 * n + i) * threads] = f.out[n][i];
    }
  }

  __device__ __forceinline__ void merge_total(const Fragment<C>& f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const MergeFactors factors = merge_factors(total_max(r), f.max[r]);
      total_sum(r) = fmaf(total_sum(r), factors.keep, f.sum[r] * factors.add);
#pragma unroll
      for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& total = totals()[(4 * n + 2 * r + e) * threads];
          total = fmaf(total, factors.keep, f.out[n][2 * r + e] * factors.add);
        }
      }
    }
  }

  // Calls put(row in the block, dim, element of the fragment) for what this thread holds and the output needs.
  template <typename Put>
  __device__ __forceinline__ void for_outputs(int dims, Put put) const {
#pragma unroll
    for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + fragments::c_row(lane, i), d = 8 * n + fragments::c_col(lane, i);
        if (row < rows && d < dims) put(row, d, n, i);
      }
    }
  }

  __device__ __forceinline__ void store_slot(int slot, const Fragment<C>& f) const {
    float* at = slot_at(args, block, slot);
    const int dims = args.kv.layout.padded_dim;
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + fragments::c_row(lane, 2 * r);
      if (row >= rows || fragments::in_group(lane) != 0) continue;
      at[row] = f.max[r];
      at[args.slot_rows + row] = f.sum[r];
    }
    for_outputs(dims, [&](int row, int d, int n, int i) {
      at[2 * args.slot_rows + static_cast<long long>(row) * dims + d] = f.out[n][i];
    });
  }

  __device__ __forceinline__ void load_slot(int slot, Fragment<C>& f) const {
    const float* at = slot_at(args, block, slot);
    const int dims = args.kv.layout.padded_dim;
    clear(f);
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + fragments::c_row(lane, 2 * r);
      f.max[r] = row < rows ? at[row] : 0.0f;
      f.sum[r] = row < rows ? at[args.slot_rows + row] : 1.0f;
    }
    for_outputs(dims, [&](int row, int d, int n, int i) {
      f.out[n][i] = at[2 * args.slot_rows + static_cast<long long>(row) * dims + d];
    });
  }

  __device__ __forceinline__ void store_output() {
    const float sum[2] = {total_sum(0), total_sum(1)};
    for_outputs(args.kv.layout.head_dim, [&](int row, int d, int n, int i) {
      store_result(args, block, row, d, totals()[(4 * n + i) * threads] / sum[i / 2]);
    });
  }
};

}  // namespace bam::cuda::mma
