// Attention without tensor cores: every KV format, float32 arithmetic, any device. One warp per query row; lanes are
// keys while scores are computed and dims while values are added up. Also the merge of split blocks.
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/stored.h"

namespace bam::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMergeWarps = 8;
constexpr int kMaxDim = 256;
constexpr int kDimsPerLane = kMaxDim / 32;

// Softmax state of one row: max and sum the same in all lanes, values of dims lane, lane + 32, ...
struct State {
  float max, sum;
  float out[kDimsPerLane];
};

__device__ __forceinline__ void clear(State& state) {
  state.max = kNothingSeen;
  state.sum = 0;
#pragma unroll
  for (int i = 0; i < kDimsPerLane; ++i) state.out[i] = 0;
}

__device__ __forceinline__ void merge(State& into, const State& from) {
  const MergeFactors factors = merge_factors(into.max, from.max);
  into.sum = fmaf(into.sum, factors.keep, from.sum * factors.add);
#pragma unroll
  for (int i = 0; i < kDimsPerLane; ++i) into.out[i] = fmaf(into.out[i], factors.keep, from.out[i] * factors.add);
}

__device__ __forceinline__ void store_slot(const AttentionArgs& args, float* slot, int row, const State& state,
                                           int lane) {
  const int dim = args.kv.layout.padded_dim;
  if (lane == 0) {
    slot[row] = state.max;
    slot[args.slot_rows + row] = state.sum;
  }
  float* values = slot + 2 * args.slot_rows + static_cast<long long>(row) * dim;
#pragma unroll
  for (int i = 0; i < kDimsPerLane; ++i) {
    if (lane + 32 * i < dim) values[lane + 32 * i] = state.out[i];
  }
}

__device__ __forceinline__ void load_slot(const AttentionArgs& args, const float* slot, int row, State& state,
                                          int lane) {
  const int dim = args.kv.layout.padded_dim;
  state.max = slot[row];
  state.sum = slot[args.slot_rows + row];
  const float* values = slot + 2 * args.slot_rows + static_cast<long long>(row) * dim;
#pragma unroll
  for (int i = 0; i < kDimsPerLane; ++i) state.out[i] = lane + 32 * i < dim ? values[lane + 32 * i] : 0.0f;
}

__device__ __forceinline__ void store_row(const AttentionArgs& args, const QueryBlock& block, int row,
                                          const State& state, int lane) {
#pragma unroll
  for (int i = 0; i < kDimsPerLane; ++i) {
    if (lane + 32 * i < args.kv.layout.head_dim)
      store_result(args, block, row, lane + 32 * i, state.out[i] / state.sum);
  }
}

// One row at work over pages of one format.
template <DType kStored>
struct RowWork {
  const AttentionArgs& args;
  const QueryBlock& block;
  const HeadParams& head;
  RowInfo row;
  const float* q;  // shared, [head_dim], scaled, in units of log 2
  float* weights;  // shared, [kTileKeys]
  int lane;
  unsigned long long visited = 0;

  // The logit of the key at `slot` in units of log 2, or minus infinity where this row may not look.
  __device__ __forceinline__ float logit(const unsigned char* tile, int tile_index, int slot) const {
    const KvLayout& layout = args.kv.layout;
    const int key = tile_index * kTileKeys + slot;
    if (key > row.position || key < row.first_key) return minus_infinity();
    const unsigned char* keys = tile + layout.k_offset;
    const auto* scales = reinterpret_cast<const uint16_t*>(tile + layout.k_scale_offset);
    float dot = 0;
    for (int d = 0; d < layout.head_dim; ++d) {
      dot = fmaf(q[d], load_stored(kStored, keys, scales, slot, key_index(layout.head_dim, slot, d)), dot);
    }
    return head.bias == nullptr ? dot : fmaf(row.bias_scale * kLog2E, head.bias[row.position - key], dot);
  }

  __device__ __forceinline__ void visit(int tile_index, State& state) {
    const unsigned char* tile = tile_pointer(args.kv, block.pages, tile_index);
    if (tile == nullptr || tile_index * kTileKeys + kTileKeys - 1 < row.first_key) return;
    ++visited;
    const KvLayout& layout = args.kv.layout;
    const float first = logit(tile, tile_index, lane), second = logit(tile, tile_index, lane + 32);
    const float largest = fmaxf(state.max, warp_max(fmaxf(first, second)));
    const float scale = exp2_approx(state.max - largest);
    state.max = largest;
    weights[lane] = exp2_approx(first - largest);
    weights[lane + 32] = exp2_approx(second - largest);
    state.sum = fmaf(state.sum, scale, warp_sum(weights[lane] + weights[lane + 32]));
    __syncwarp();
    const unsigned char* values = tile + layout.v_offset;
    const auto* scales = reinterpret_cast<const uint16_t*>(tile + layout.v_scale_offset);
    // Slots after the row's own position may not be written yet.
    const int ahead = row.position - tile_index * kTileKeys;
    const int slots = ahead < kTileKeys ? ahead + 1 : kTileKeys;
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i) {
      const int d = lane + 32 * i;
      if (d >= layout.head_dim) continue;
      float sum = state.out[i] * scale;
      for (int slot = 0; slot < slots; ++slot) {
        sum = fmaf(weights[slot], load_stored(kStored, values, scales, slot, slot * layout.padded_dim + d), sum);
      }
      state.out[i] = sum;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void anchor(int seed, State& state) {
    clear(state);
    visit(block.diagonal_tile, state);
    if (block.diagonal_tile > 0) visit(block.diagonal_tile - 1, state);
    if (seed >= 0) visit(seed, state);
  }

  __device__ __forceinline__ void segment(int segment, int row_in_block, State& state) {
    clear(state);
    const int last = segment * kSegmentTiles + kSegmentTiles - 1, newest = block.diagonal_tile - 2;
    const int first = segment * kSegmentTiles;
    for (int t = last < newest ? last : newest; t >= first && t >= block.first_tile; --t) {
      if ((tile_mask(args, block, t) >> row_in_block & 1) != 0) visit(t, state);
    }
  }
};

// grid: (items, rows / kWarps)
template <DType kStored>
__global__ void __launch_bounds__(kWarps * 32, 4) attention_plain_kernel(AttentionArgs args) {
  BAM_SHARED(float, queries, [kWarps][kMaxDim]);
  BAM_SHARED(float, weights, [kWarps][kTileKeys]);
  const WorkItem item = args.items[blockIdx.x];
  if (item.kind == WorkKind::kNone) return;
  const QueryBlock block = args.blocks[item.block];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (row >= num_rows(block)) return;
  const RowInfo info = row_info(args, block, row);
  const long long at = query_offset(args, block, row);
  for (int d = lane; d < args.kv.layout.head_dim; d += 32) {
    queries[warp][d] = load_operand(args.operand, args.qkv, at + d) * (info.content_scale * kLog2E);
  }
  __syncwarp();
  RowWork<kStored> work{args, block, args.heads[info.head], info, queries[warp], weights[warp], lane};
  State total, of_span, segment;
  bool older = false;  // than the newest span
  const int entries = item.kind == WorkKind::kAnchor ? 0 : num_segments(args, block, item.block);
  if (item.kind == WorkKind::kPart) {
    for (int e = item.part; e < entries; e += item.parts) {
      work.segment(segment_at(args, block, e), row, segment);
      store_slot(args, slot_at(args, block, 1 + e), row, segment, lane);
    }
  } else {
    if (item.kind == WorkKind::kRest) {
      load_slot(args, slot_at(args, block, 0), row, total, lane);
    } else {
      work.anchor(args.seeds == nullptr ? -1 : args.seeds[item.block * kMaxBlockRows + row], total);
    }
    int span = newest_span(block);
    for (int e = 0; e < entries; ++e) {
      const int next = segment_at(args, block, e);
      if (next / kSpanSegments != span) {
        if (older) merge(total, of_span);
        clear(of_span);
        span = next / kSpanSegments;
        older = true;
      }
      work.segment(next, row, segment);
      if (older) {
        merge(of_span, segment);
      } else {
        merge(total, segment);
      }
    }
    if (older) merge(total, of_span);
    if (item.kind == WorkKind::kAnchor) {
      store_slot(args, slot_at(args, block, 0), row, total, lane);
    } else {
      store_row(args, block, row, total, lane);
    }
  }
  if (lane == 0) atomicAdd(&args.counters[info.head].visited, work.visited);
}

// grid: (items, rows). Every warp joins the segments of a span, then the first one joins what they have.
__global__ void __launch_bounds__(kMergeWarps * 32) attention_merge_kernel(AttentionArgs args) {
  BAM_SHARED(State, spans, [kMergeWarps][32]);
  const WorkItem item = args.items[blockIdx.x];
  if (item.kind == WorkKind::kNone) return;
  const QueryBlock block = args.blocks[item.block];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y);
  if (row >= num_rows(block)) return;
  const int entries = num_segments(args, block, item.block);
  const int newest = newest_span(block), oldest = block.first_tile / kSegmentTiles / kSpanSegments;
  State total;
  load_slot(args, slot_at(args, block, 0), row, total, lane);
  for (int first = newest; first >= oldest; first -= kMergeWarps) {
    const int span = first - warp;
    if (span >= oldest) {
      State state, segment;
      clear(state);
      if (span == newest) state = total;
      const int end = entries_down_to(args, block, entries, span * kSpanSegments);
#pragma unroll 4
      for (int e = entries_down_to(args, block, entries, (span + 1) * kSpanSegments); e < end; ++e) {
        load_slot(args, slot_at(args, block, 1 + e), row, segment, lane);
        merge(state, segment);
      }
      spans[warp][lane] = state;
    }
    __syncthreads();
    for (int w = 0; warp == 0 && w < kMergeWarps && first - w >= oldest; ++w) {
      if (first - w == newest) {
        total = spans[w][lane];
      } else {
        merge(total, spans[w][lane]);
      }
    }
    __syncthreads();  // the next spans take their place
  }
  if (warp == 0) store_row(args, block, row, total, lane);
}

}  // namespace

void attention_plain(const AttentionArgs& args, int num_items, const Queue& queue) {
  BAM_CHECK(args.kv.layout.padded_dim <= kMaxDim);
  const dim3 grid(static_cast<unsigned>(num_items), kMaxBlockRows / kWarps);
  const auto run = [&]<DType kStored>() {
    check(launch(attention_plain_kernel<kStored>, grid, dim3(kWarps * 32), 0, queue, args), "attention_plain_kernel");
  };
  switch (args.kv.layout.dtype) {
    case DType::kF32: return run.template operator()<DType::kF32>();
    case DType::kF16: return run.template operator()<DType::kF16>();
    case DType::kBF16: return run.template operator()<DType::kBF16>();
    case DType::kI8: return run.template operator()<DType::kI8>();
    case DType::kI4: return run.template operator()<DType::kI4>();
    case DType::kFp8: return run.template operator()<DType::kFp8>();
  }
}

void attention_merge(const AttentionArgs& args, int num_items, const Queue& queue) {
  const dim3 grid(static_cast<unsigned>(num_items), static_cast<unsigned>(args.slot_rows));
  check(launch(attention_merge_kernel, grid, dim3(kMergeWarps * 32), 0, queue, args), "attention_merge_kernel");
}

}  // namespace bam::cuda
