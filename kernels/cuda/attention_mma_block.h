// One thread block of the tensor-core attention kernel at work. See attention_mma.cu.
#pragma once

#include "kernels/cuda/attention_mma_codes.h"
#include "kernels/cuda/attention_mma_numbers.h"

namespace bam::cuda::mma {

template <typename C>
struct Kernel {
  using T = typename C::T;
  using Shared = SharedLayout<C>;
  static constexpr int kElements = 2 * C::kRowsOfThread;  // of a tile's fragment that count

  const AttentionArgs& args;
  const QueryBlock& block;
  unsigned char* shared;
  Run& run;
  StageMover<C> mover;
  int rows, threads, warp, lane, bias_stride, bias_floats;
  int first_key = 0;                           // of row `lane` of this warp, lane < 16
  unsigned visited = 0;                        // by that row
  int first_position = 0, last_first_key = 0;  // over the rows of this warp
  unsigned unused_rows = 0;                    // of this warp
  // The entry of every stage's bias that this thread copies, if there are not more of them than threads.
  const float* bias_table = nullptr;
  int bias_size = 0, bias_distance = 0, bias_entries = 0;  // no entries: the block's heads have no bias

  __device__ __forceinline__ unsigned char* stage(int s) const {
    return shared + Shared::kStage + s % C::kStages * C::kStageBytes;
  }
  __device__ __forceinline__ float* bias_of(int s) const {
    return reinterpret_cast<float*>(shared + Shared::bias(threads)) + s % 2 * bias_floats;
  }
  __device__ __forceinline__ float* totals() const {
    return reinterpret_cast<float*>(shared + Shared::totals(threads)) + threadIdx.x;
  }

  // Starts copying stage s of the run.
  __device__ __forceinline__ void start(int s) {
    mover.copy(run.data[s / kStagesPerTile], s % kStagesPerTile, s);
    if (static_cast<int>(threadIdx.x) < bias_entries) start_bias(s);
    cp_async_commit();
  }

  // Where this thread's part of a stage's bias comes from. bias[h][j] = B(first distance + j).
  __device__ __forceinline__ void prepare_bias() {
    if (args.heads[block.first_head].bias == nullptr) return;
    const int i = static_cast<int>(threadIdx.x), head = i / bias_stride;
    const HeadParams& params = args.heads[block.first_head + (head < block.num_heads ? head : 0)];
    bias_table = params.bias;
    bias_size = params.bias_size;
    bias_distance = block.position - (kStageKeys - 1) + i % bias_stride;
    bias_entries = block.num_heads * bias_stride;
  }

  // Zeros where no key will be seen.
  __device__ __forceinline__ void start_bias(int s) {
    const int key = run.tile[s / kStagesPerTile] * kTileKeys + s % kStagesPerTile * kStageKeys;
    copy_bias(bias_of(s) + threadIdx.x, bias_table, bias_size, bias_distance - key);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) + threads; i < bias_entries; i += threads) {
      const HeadParams& head = args.heads[block.first_head + i / bias_stride];
      copy_bias(bias_of(s) + i, head.bias, head.bias_size, block.position - key - (kStageKeys - 1) + i % bias_stride);
    }
  }
  __device__ __forceinline__ static void copy_bias(float* to, const float* table, int size, int distance) {
    const bool inside = static_cast<unsigned>(distance) < static_cast<unsigned>(size);
    cp_async<4>(to, table + (inside ? distance : 0), inside ? 4 : 0);
  }
  __device__ __forceinline__ void load_queries(Fragment<C>& f) {
    const int own = warp * 16 + lane;  // of the first 16 lanes
    const RowInfo own_info = row_info(args, block, lane < 16 && own < rows ? own : 0);
    if (lane < 16 && own < rows) first_key = own_info.first_key;
    const bool alive = lane < 16 && own < rows;
    unused_rows = ~__ballot_sync(kAllLanes, alive) & 0xffffu;
    first_position = __reduce_min_sync(kAllLanes, alive ? own_info.position : 0x7fffffff);
    last_first_key = __reduce_max_sync(kAllLanes, alive ? own_info.first_key : 0);
    long long at[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + fragments::c_row(lane, 2 * r);
      const bool used = row < rows;
      const RowInfo info = row_info(args, block, used ? row : 0);
      f.position[r] = info.position;
      f.first_key[r] = info.first_key;
      f.content[r] = info.content_scale * kLog2E;
      f.bias[r] = info.bias_scale * kLog2E;
      f.bias_row[r] = (info.head - block.first_head) * bias_stride + info.position - block.position + kStageKeys - 1;
      at[r] = used ? query_offset(args, block, row) : -1;
    }
    if constexpr (C::kInt8) {
      CodeFragments<C>::pack_queries(lane, f, query_words(), [&](int r, int d) {
        return float4{query_value(at[r], d), query_value(at[r], d + 1), query_value(at[r], d + 8),
                      query_value(at[r], d + 9)};
      });
    } else if constexpr (C::kSharedQueries) {
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

  // Dim d of the query that starts at element `from` (-1: no such row). Through T: a bfloat16 query beyond the range of
  // float16 saturates.
  __device__ __forceinline__ float query_value(long long from, int d) const {
    const bool inside = from >= 0 && d < args.kv.layout.head_dim;
    return to_float(from_float<T>(inside ? load_operand(args.operand, args.qkv, from + d) : 0.0f));
  }
  __device__ __forceinline__ uint32_t query_pair(long long from, int d) const {
    return pack2<T>(query_value(from, d), query_value(from, d + 1));
  }
  __device__ __forceinline__ unsigned char* query_tile() const {
    return shared + Shared::kQueries + warp * Shared::kQueryBytes;
  }
  __device__ __forceinline__ uint32_t* query_words() const { return reinterpret_cast<uint32_t*>(query_tile()); }

  // Scores become logits.
  __device__ __forceinline__ void add_prior(const Fragment<C>& f, int s, float (&x)[4][4]) const {
    if constexpr (C::kInt8) {
      codes_of(s).apply_scales(x);
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[n][i] = x[n][i] * f.content[i / 2];
      }
    }
    if constexpr (C::kQuantised && !C::kInt8) {
      const uint16_t* scales = mover.scales(s) + fragments::c_col(lane, 0);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 scale = __half22float2(halves_of(*reinterpret_cast<const uint32_t*>(scales + 8 * n)));
#pragma unroll
        for (int i = 0; i < 4; ++i) x[n][i] = x[n][i] * (i % 2 == 0 ? scale.x : scale.y);
      }
    }
    if (bias_entries == 0) return;
    const float* bias = bias_of(s) - C::column(lane, 0, 0);
    const float *first = bias + f.bias_row[0], *second = bias + f.bias_row[1];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        x[n][i] = fmaf(f.bias[i / 2], (i < 2 ? first : second)[-C::column(0, n, i % 2)], x[n][i]);
      }
    }
  }

  // Minus infinity where a row may not or need not look.
  __device__ __forceinline__ void hide_unseen(const Fragment<C>& f, int s, float (&x)[4][4]) const {
    const int key0 = run.tile[s / kStagesPerTile] * kTileKeys + s % kStagesPerTile * kStageKeys;
    const auto mask = static_cast<unsigned>(run.mask[s / kStagesPerTile] >> (warp * 16));
#pragma unroll
    for (int r = 0; r < C::kRowsOfThread; ++r) {
      const bool wanted = (mask >> fragments::c_row(lane, 2 * r) & 1) != 0;
      const int first = f.first_key[r] - key0, last = wanted ? f.position[r] - key0 : -1;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = C::column(lane, n, e);
          if (column < first || column > last) x[n][2 * r + e] = minus_infinity();
        }
      }
    }
  }

  // Online softmax: x becomes weights relative to the new maximum.
  __device__ __forceinline__ void soften(Fragment<C>& f, float (&x)[4][4]) const {
    float scale[2] = {1.0f, 1.0f};
#pragma unroll
    for (int r = 0; r < C::kRowsOfThread; ++r) {
      float largest = fmaxf(x[0][2 * r], x[0][2 * r + 1]);
#pragma unroll
      for (int n = 1; n < 4; ++n) largest = fmaxf(largest, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      largest = fmaxf(f.max[r], quad_max(largest));
      scale[r] = exp2_approx(C::kInt8 ? (f.max[r] - largest) * f.content[r] : f.max[r] - largest);
      f.max[r] = largest;
      float sum = f.sum[r] * scale[r];
      const float top = C::kInt8 ? CodeFragments<C>::log2_units(f, r) - kWeightBits : largest;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          x[n][2 * r + e] = exp2_approx(C::kInt8 ? fmaf(x[n][2 * r + e], f.content[r], -top) : x[n][2 * r + e] - top);
          sum += x[n][2 * r + e];
        }
      }
      f.sum[r] = sum;
    }
    // Maxima settle after a few tiles: then no row of the warp has anything to rescale.
    if (__any_sync(kAllLanes, scale[0] != 1.0f || scale[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) f.out[n][i] *= scale[i / 2];
      }
      if constexpr (C::kInt8) {
#pragma unroll
        for (int i = 0; i < kElements; i += 2) f.weights[i] *= scale[i / 2];
      }
    }
  }

  // Which tiles of the run (bits) this warp visits, and which of them every row sees whole.
  struct Wanted {
    unsigned any, whole;
  };
  __device__ __forceinline__ Wanted wanted_tiles() const {
    const bool there = lane < run.count;
    const unsigned mask = there ? static_cast<unsigned>(run.mask[lane] >> (warp * 16)) & 0xffffu : 0;
    const int first = there ? run.tile[lane] * kTileKeys : 0;
    const bool inside = first + kTileKeys - 1 <= first_position && first >= last_first_key;
    return {__ballot_sync(kAllLanes, mask != 0), __ballot_sync(kAllLanes, inside && (mask | unused_rows) == 0xffffu)};
  }

  // All tiles of the run, for the rows that want them.
  __device__ __forceinline__ void visit_run(Fragment<C>& f) {
    const int stages = run.count * kStagesPerTile;
    if (stages == 0) return;
    count_visits();
    const Wanted wanted = wanted_tiles();
    start(0);
    for (int s = 0; s < stages; ++s) {
      cp_async_wait<0>();
      __syncthreads();  // the stage is here for everybody, the other buffer is read by nobody
      if (s + 1 < stages) start(s + 1);
      if constexpr (C::kQuantised && !C::kInt8) {
        mover.widen(s, stage(s));
        __syncthreads();
      }
      if ((wanted.any >> (s / kStagesPerTile) & 1) == 0) continue;
      float x[4][4];
      if constexpr (C::kInt8) {
        codes_of(s).score(f, query_words(), x);
      } else {
        numbers_of(s).score(f, query_tile(), x);
      }
      add_prior(f, s, x);
      if ((wanted.whole >> (s / kStagesPerTile) & 1) == 0) hide_unseen(f, s, x);
      soften(f, x);
      if constexpr (C::kInt8) {
        codes_of(s).add_values(f, x);
      } else {
        numbers_of(s).add_values(f, x);
      }
    }
  }
  __device__ __forceinline__ CodeFragments<C> codes_of(int s) const { return {mover.buffer(s), lane}; }
  __device__ __forceinline__ NumberFragments<C> numbers_of(int s) const { return {stage(s), lane}; }
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
      run.span = segment / kSpanSegments;
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
    if constexpr (C::kInt8) CodeFragments<C>::finish(f);
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

  // Maximum and sum of one of this thread's two rows, in a slot.
  __device__ __forceinline__ void put_state(float* slot, int r, float max, float sum) const {
    const int row = warp * 16 + fragments::c_row(lane, 2 * r);
    if (row >= rows || fragments::in_group(lane) != 0) return;
    slot[row] = max;
    slot[args.slot_rows + row] = sum;
  }
  __device__ __forceinline__ void get_state(const float* slot, int r, float& max, float& sum) const {
    const int row = warp * 16 + fragments::c_row(lane, 2 * r);
    max = row < rows ? slot[row] : 0.0f;
    sum = row < rows ? slot[args.slot_rows + row] : 1.0f;
  }

  // Calls put(total, its place in slot 0, which of the two rows). Once in many segments, so in a loop that takes no
  // registers from the visits of tiles.
  template <typename Put>
  __device__ __forceinline__ void for_totals(Put put) const {
    const int dims = args.kv.layout.padded_dim;
    float* at = slot_at(args, block, 0) + 2 * args.slot_rows;
#pragma unroll 1
    for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + fragments::c_row(lane, i), d = C::column(lane, n, i % 2);
        if (row < rows && d < dims)
          put(totals()[(4 * n + i) * threads], at[static_cast<long long>(row) * dims + d], i / 2);
      }
    }
  }

  // The totals are those of a span: they follow on what older work left in slot 0.
  __device__ __forceinline__ void join_slot() const {
    const float* at = slot_at(args, block, 0);
    MergeFactors factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float max, sum;
      get_state(at, r, max, sum);
      factors[r] = merge_factors(max, total_max(r));
      total_max(r) = max;
      total_sum(r) = fmaf(sum, factors[r].keep, total_sum(r) * factors[r].add);
    }
    for_totals(
        [&](float& total, float& older, int r) { total = fmaf(older, factors[r].keep, total * factors[r].add); });
  }

  // Makes room for the next span: the total goes to slot 0.
  __device__ __forceinline__ void end_span() {
    if (run.span != newest_span(block)) join_slot();
    __syncwarp();
    float* at = slot_at(args, block, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      put_state(at, r, total_max(r), total_sum(r));
      total_max(r) = kNothingSeen;
      total_sum(r) = 0.0f;
    }
    for_totals([](float& total, float& place, int) {
      place = total;
      total = 0.0f;
    });
  }

  // Calls put(row in the block, dim, element of the fragment) for what this thread holds and the output needs.
  template <typename Put>
  __device__ __forceinline__ void for_outputs(int dims, Put put) const {
#pragma unroll
    for (int n = 0; n < 2 * C::kDims; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + fragments::c_row(lane, i), d = C::column(lane, n, i % 2);
        if (row < rows && d < dims) put(row, d, n, i);
      }
    }
  }
  __device__ __forceinline__ void store_slot(int slot, const Fragment<C>& f) const {
    float* at = slot_at(args, block, slot);
    const int dims = args.kv.layout.padded_dim;
    for (int r = 0; r < 2; ++r) put_state(at, r, f.max[r], f.sum[r]);
    for_outputs(dims, [&](int row, int d, int n, int i) {
      at[2 * args.slot_rows + static_cast<long long>(row) * dims + d] = f.out[n][i];
    });
  }
  __device__ __forceinline__ void load_slot(int slot, Fragment<C>& f) const {
    const float* at = slot_at(args, block, slot);
    const int dims = args.kv.layout.padded_dim;
    clear(f);
    for (int r = 0; r < 2; ++r) get_state(at, r, f.max[r], f.sum[r]);
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
