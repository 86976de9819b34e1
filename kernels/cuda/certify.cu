// Certified skipping: which tiles may a row leave out with a proof that the softmax mass it loses is below epsilon?
//
//   q.k <= q.mid + min(box, ball)   box = sum |q_d| * half extent_d, ball = |q| * radius, from the tile's statistics
//   bound = that + the largest prior among the tile's distances; left out if bound < log-sum-exp of the anchor
//           + ln(eps) - ln(n), so all left-out keys together carry less than eps of the mass.
//
// Threads of a block are (query row, super-tile): a super-tile of 16 tiles is tested first, its tiles only where the
// super-tile's centre says that there may be something to leave out. Every decision is a function of one row.
#include <algorithm>
#include <bit>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/memory.h"

namespace bam::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kRounding = 1e-5f;  // covers float32 rounding in every bound

// How a block's threads are dealt: rows rounded up to a power of two, the rest works on other super-tiles.
struct Dealing {
  int padded_rows, others, row, other;
};
__device__ __forceinline__ Dealing deal(int rows) {
  int padded = 1;
  while (padded < rows) padded *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  return {padded, kThreads / padded, thread % padded, thread / padded};
}

// One row's scaled query in shared memory; an odd stride keeps neighbouring rows in different banks.
struct BoundRow {
  RowInfo info;
  const HeadParams* head;
  const float* q;
  int head_dim;
  float norm;
};
__device__ __forceinline__ int query_stride(int head_dim) { return head_dim | 1; }

// A bound must hold for the query that attention multiplies with, after its rounding.
__device__ __forceinline__ float rounded_query(DType format, float value) {
  switch (format) {
    case DType::kF16: return to_float(from_float<__half>(value));
    case DType::kBF16: return to_float(from_float<__nv_bfloat16>(value));
    default: return value;
  }
}

// All threads; ends with a barrier.
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const QueryBlock& block, float* queries) {
  const int head_dim = args.kv.layout.head_dim, rows = num_rows(block);
  for (int i = static_cast<int>(threadIdx.x); i < rows * head_dim; i += kThreads) {
    const int row = i / head_dim, d = i % head_dim;
    const float value = load_operand(args.operand, args.qkv, query_offset(args, block, row) + d);
    queries[row * query_stride(head_dim) + d] = rounded_query(args.query, value);
  }
  __syncthreads();
  if (args.kv.layout.dtype != DType::kI8 || args.query == DType::kF32) return;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += kThreads) {
    float* q = queries + row * query_stride(head_dim);
    float largest = 0;
    for (int d = 0; d < head_dim; ++d) largest = max_or_nan(fabsf(q[d]), largest);
    const QueryUnits units = query_units(largest);
    for (int d = 0; d < head_dim; ++d) q[d] = static_cast<float>(units.of(q[d])) * units.unit;
  }
  __syncthreads();
}

__device__ __forceinline__ BoundRow bound_row(const AttentionArgs& args, const QueryBlock& block, const float* queries,
                                              int row) {
  BoundRow result{row_info(args, block, row), nullptr, queries + row * query_stride(args.kv.layout.head_dim),
                  args.kv.layout.head_dim, 0};
  result.head = args.heads + result.info.head;
  float norm2 = 0;
  for (int d = 0; d < result.head_dim; ++d) norm2 = fmaf(result.q[d], result.q[d], norm2);
  result.norm = sqrtf(norm2) * fabsf(result.info.content_scale) * (1.0f + kRounding);
  return result;
}

// centre + extent >= scaled q.k for every key of the set.
struct ContentBound {
  float centre, extent;
};
__device__ __forceinline__ ContentBound content_bound(const BoundRow& row, const KeyStats* stats, int padded_dim) {
  const auto* lo = reinterpret_cast<const uint16_t*>(stats + 1);
  const uint16_t* hi = lo + padded_dim;
  float centre = 0, box = 0;
  for (int d = 0; d < row.head_dim; ++d) {
    const float low = half_bits_to_float(lo[d]), high = half_bits_to_float(hi[d]);
    centre = fmaf(row.q[d], 0.5f * (low + high), centre);
    box = fmaf(fabsf(row.q[d]), 0.5f * (high - low), box);
  }
  const float scale = row.info.content_scale;
  return {centre * scale,
          fminf(box * fabsf(scale), row.norm * stats->radius) + row.norm * (stats->max_norm * kRounding)};
}

// Largest bias_scale * B over the keys of tiles [first, last].
__device__ __forceinline__ float prior_bound(const BoundRow& row, int first, int last) {
  const HeadParams& head = *row.head;
  if (head.bias == nullptr) return 0;
  const int nearest = row.info.position - (last * kTileKeys + kTileKeys - 1);
  const int near = nearest > 0 ? nearest : 0, far = row.info.position - first * kTileKeys;
  float bound = fmaxf(row.info.bias_scale * head.bias[near],
                      row.info.bias_scale * head.bias[far < head.bias_size ? far : head.bias_size - 1]);
  if (near < head.settled && far > head.rising) {
    bound = fmaxf(bound, fmaxf(row.info.bias_scale * head.largest, row.info.bias_scale * head.smallest));
  }
  return bound + fabsf(bound) * kRounding;
}

__device__ __forceinline__ const KeyStats* tile_stats(const AttentionArgs& args, const QueryBlock& block, int tile,
                                                      size_t offset) {
  const unsigned char* data = tile_pointer(args.kv, block.pages, tile);
  if (data == nullptr) return nullptr;
  const auto* stats = reinterpret_cast<const KeyStats*>(data + offset);
  return stats->valid != 0 ? stats : nullptr;
}

// The best (value, index) of the threads that share a row; the newer index wins a tie. Ends with a barrier.
__device__ __forceinline__ int best_of_row(float value, int index, const Dealing& mine, float* values, int* indices) {
  values[threadIdx.x] = value;
  indices[threadIdx.x] = index;
  __syncthreads();
  int best = -1;
  float most = minus_infinity();
  for (int o = 0; o < mine.others; ++o) {
    const int at = o * mine.padded_rows + mine.row;
    if (indices[at] >= 0 && (best < 0 || values[at] > most || (values[at] == most && indices[at] > best))) {
      most = values[at];
      best = indices[at];
    }
  }
  __syncthreads();
  return best;
}

// grid: items. The most promising finished tile of each row whose prior does not decay: best super-tile, best tile
// inside.
__global__ void __launch_bounds__(kThreads) find_seeds_kernel(AttentionArgs args) {
  BAM_DYNAMIC_SHARED(float, queries);
  BAM_SHARED(float, values, [kThreads]);
  BAM_SHARED(int, indices, [kThreads]);
  const int block_index = args.items[blockIdx.x].block;
  const QueryBlock block = args.blocks[block_index];
  load_queries(args, block, queries);
  const Dealing mine = deal(num_rows(block));
  const bool used = mine.row < num_rows(block);
  const BoundRow row = bound_row(args, block, queries, used ? mine.row : 0);
  const bool wanted = used && block.mask_offset >= 0 && !row.head->decays && args.super_heads[block.kv_head] != 0 &&
                      block.first_tile == 0;
  const int supers = wanted ? (block.diagonal_tile - 1) / kSuperTiles : 0;  // whole groups among tiles 0 ... D - 2
  const KvLayout& layout = args.kv.layout;
  unsigned long long tests = 0;
  float best = minus_infinity();
  int where = -1;
  const auto consider = [&](int first, int last, size_t offset, int index) {
    const KeyStats* stats = tile_stats(args, block, last, offset);
    if (stats == nullptr) return;
    const ContentBound content = content_bound(row, stats, layout.padded_dim);
    const float bound = content.centre + content.extent + prior_bound(row, first, last);
    ++tests;
    if (where < 0 || bound > best) {
      best = bound;
      where = index;
    }
  };
  for (int s = supers - 1 - mine.other; s >= 0; s -= mine.others) {
    consider(s * kSuperTiles, s * kSuperTiles + kSuperTiles - 1, layout.super_stats_offset, s);
  }
  const int super = best_of_row(best, where, mine, values, indices);
  best = minus_infinity();
  where = -1;
  for (int t = kSuperTiles - 1 - mine.other; super >= 0 && t >= 0; t -= mine.others) {
    const int tile = super * kSuperTiles + t;
    consider(tile, tile, layout.stats_offset, tile);
  }
  const int seed = best_of_row(best, where, mine, values, indices);
  if (used && mine.other == 0) {
    args.seeds[block_index * kMaxBlockRows + mine.row] = seed;
    args.left_out[block_index * kMaxBlockRows + mine.row] = 0;
  }
  if (tests != 0) atomicAdd(&args.counters[row.info.head].bound_tests, tests);
}

// What a row leaves out: an upper bound on its share of the softmax mass, added up in integers so that the order does
// not matter.
struct LeftOut {
  float lse;  // of the anchor
  int first_key;
  unsigned long long shares = 0;

  // Tiles [first, last], where no logit is above `bound`.
  __device__ __forceinline__ void add(int first, int last, float bound) {
    const int begin = first * kTileKeys > first_key ? first * kTileKeys : first_key, end = (last + 1) * kTileKeys;
    if (end > begin) add_share(static_cast<float>(end - begin) * exp2_approx((bound - lse) * kLog2E));
  }
  __device__ __forceinline__ void add_share(float share) {
    shares += static_cast<unsigned long long>(fminf(share * (1.0f + kRounding), 1.0f) * kSharesInOne) + 1;
  }
};

// Keys out of a head's static reach. The proof for all queries says epsilon / n per key; this query's own norm and the
// norms of those keys usually say far less.
__device__ __forceinline__ void leave_out_beyond_reach(const AttentionArgs& args, const QueryBlock& block,
                                                       const BoundRow& row, LeftOut& left) {
  const int beyond = args.window >= 0 ? 0 : row.info.first_key;
  if (beyond == 0) return;
  float share = args.epsilon * static_cast<float>(beyond) / static_cast<float>(row.info.position + 1);
  const KeyStats* stats = tile_stats(args, block, row.info.first_key / kTileKeys, args.kv.layout.stats_offset);
  const int near = row.info.position - row.info.first_key + 1;
  if (stats != nullptr && row.head->bias != nullptr && row.head->never_grows && near >= row.head->settled) {
    const float prior =
        row.info.bias_scale * row.head->bias[near < row.head->bias_size ? near : row.head->bias_size - 1];
    const float bound = row.norm * stats->max_norm_prefix + prior + fabsf(prior) * kRounding;
    share = fminf(share, static_cast<float>(beyond) * exp2_approx((bound - left.lse) * kLog2E));
  }
  left.add_share(share);
}

// What one row has to decide about one group of up to 16 tiles.
struct GroupDecision {
  bool alive = false;       // any tile may matter
  bool test_tiles = false;  // boxes of single tiles are worth a look
};

__device__ __forceinline__ GroupDecision judge_group(const AttentionArgs& args, const QueryBlock& block,
                                                     const BoundRow& row, int first, int last, float threshold,
                                                     unsigned long long& tests, LeftOut& left) {
  const KvLayout& layout = args.kv.layout;
  const int last_key = last * kTileKeys + kTileKeys - 1, near = row.info.position - last_key;
  GroupDecision decision{last_key >= row.info.first_key, true};
  if (!decision.alive) return decision;
  if (row.head->never_grows && near >= row.head->settled) {
    // Nothing this old or older can matter: |q| |k| <= |q| max|k| of all keys up to here.
    if (const KeyStats* stats = tile_stats(args, block, last, layout.stats_offset)) {
      const float prior = row.info.bias_scale * row.head->bias[near];
      const float bound = row.norm * stats->max_norm_prefix + prior + fabsf(prior) * kRounding;
      decision.alive = !(bound < threshold);
      if (!decision.alive) {
        left.add(first, last, bound);
        return decision;
      }
    }
  }
  if (args.super_heads[block.kv_head] == 0 || last - first + 1 != kSuperTiles) return decision;
  const KeyStats* stats = tile_stats(args, block, last, layout.super_stats_offset);
  if (stats == nullptr) return decision;
  ++tests;
  const ContentBound content = content_bound(row, stats, layout.padded_dim);
  const float prior = prior_bound(row, first, last);
  decision.alive = !(content.centre + content.extent + prior < threshold);
  if (!decision.alive) left.add(first, last, content.centre + content.extent + prior);
  // Tighter boxes can help only where the middle of the keys is below the threshold.
  decision.test_tiles = content.centre + prior < threshold;
  return decision;
}

__device__ __forceinline__ bool wants_tile(const AttentionArgs& args, const QueryBlock& block, const BoundRow& row,
                                           int tile, float threshold, bool test_box, unsigned long long& tests,
                                           LeftOut& left) {
  if (tile * kTileKeys + kTileKeys - 1 < row.info.first_key) return false;
  if (tile_pointer(args.kv, block.pages, tile) == nullptr) return false;
  const KeyStats* stats = tile_stats(args, block, tile, args.kv.layout.stats_offset);
  if (stats == nullptr) return true;
  const float prior = prior_bound(row, tile, tile);
  const float largest = row.norm * stats->max_norm + prior;
  if (largest < threshold) {
    left.add(tile, tile, largest);
    return false;
  }
  if (!test_box) return true;
  ++tests;
  const ContentBound content = content_bound(row, stats, args.kv.layout.padded_dim);
  const float bound = content.centre + content.extent + prior;
  if (bound < threshold) left.add(tile, tile, bound);
  return !(bound < threshold);
}

// grid: (items, groups of super-tiles). Writes masks of tiles first_tile ... D - 2. Eight blocks leave
// it 64 registers: without a number ptxas takes fewer and spills on sm_80.
__global__ void __launch_bounds__(kThreads, 8) mark_tiles_kernel(AttentionArgs args) {
  BAM_DYNAMIC_SHARED(float, queries);
  BAM_SHARED(unsigned, masks, [kThreads][kSuperTiles][2]);
  const int block_index = args.items[blockIdx.x].block;
  const QueryBlock block = args.blocks[block_index];
  if (block.mask_offset < 0) return;
  load_queries(args, block, queries);
  const Dealing mine = deal(num_rows(block));
  const bool used = mine.row < num_rows(block);
  const BoundRow row = bound_row(args, block, queries, used ? mine.row : 0);
  const float* anchor = slot_at(args, block, 0);
  const float lse = used ? anchor[mine.row] * kLn2 + logf(anchor[args.slot_rows + mine.row]) : 0.0f;
  const float threshold = lse + row.info.skip_margin;
  const int seed = used ? args.seeds[block_index * kMaxBlockRows + mine.row] : -1;
  const int newest = block.diagonal_tile - 2, last_group = newest / kSuperTiles,
            first_group = block.first_tile / kSuperTiles;
  unsigned long long tests = 0;
  LeftOut left{lse, row.info.first_key};
  if (used && mine.other == 0 && blockIdx.y == 0) leave_out_beyond_reach(args, block, row, left);
  for (int base = last_group - static_cast<int>(blockIdx.y) * mine.others; base >= first_group;
       base -= static_cast<int>(gridDim.y) * mine.others) {
    for (int i = static_cast<int>(threadIdx.x); i < mine.others * kSuperTiles * 2; i += kThreads)
      (&masks[0][0][0])[i] = 0;
    __syncthreads();
    const int group = base - mine.other;
    if (used && group >= first_group) {
      const int first = group * kSuperTiles > block.first_tile ? group * kSuperTiles : block.first_tile;
      const int end = group * kSuperTiles + kSuperTiles - 1, last = end < newest ? end : newest;
      const GroupDecision decision = judge_group(args, block, row, first, last, threshold, tests, left);
      for (int t = last; decision.alive && t >= first; --t) {
        if (t == seed || !wants_tile(args, block, row, t, threshold, decision.test_tiles, tests, left)) {
          continue;
        }
        atomicOr(&masks[mine.other][t % kSuperTiles][mine.row / 32], 1u << mine.row % 32);
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < mine.others * kSuperTiles; i += kThreads) {
      const int t = (base - i / kSuperTiles) * kSuperTiles + i % kSuperTiles;
      if (t < block.first_tile || t > newest) continue;
      const unsigned* mask = masks[i / kSuperTiles][i % kSuperTiles];
      args.masks[block.mask_offset + t - block.first_tile] = mask[0] | static_cast<unsigned long long>(mask[1]) << 32;
    }
    __syncthreads();
  }
  if (tests != 0) atomicAdd(&args.counters[row.info.head].bound_tests, tests);
  if (left.shares != 0) atomicAdd(&args.left_out[block_index * kMaxBlockRows + mine.row], left.shares);
}

// grid: items; one warp. list = segments in which any row wants any tile, newest first.
__global__ void __launch_bounds__(32) list_segments_kernel(AttentionArgs args) {
  const int block_index = args.items[blockIdx.x].block;
  const QueryBlock block = args.blocks[block_index];
  if (block.mask_offset < 0) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int newest = (block.diagonal_tile - 2) / kSegmentTiles, oldest = block.first_tile / kSegmentTiles;
  int count = 0;
  for (int base = newest; base >= oldest; base -= 32) {
    const int segment = base - lane;
    unsigned long long any = 0;
    for (int i = 0; segment >= oldest && i < kSegmentTiles; ++i) {
      const int tile = segment * kSegmentTiles + i;
      if (tile >= block.first_tile && tile <= block.diagonal_tile - 2) any |= tile_mask(args, block, tile);
    }
    const unsigned listed = __ballot_sync(kAllLanes, any != 0);
    if (any != 0) args.list[block.list_offset + count + __popc(listed & ((1u << lane) - 1))] = segment;
    count += __popc(listed);
  }
  if (lane == 0) args.list_size[block_index] = count;
  for (int row = lane; row < num_rows(block); row += 32) {
    const unsigned long long shares = args.left_out[block_index * kMaxBlockRows + row];
    const int head = block.first_head + row / block.num_positions;
    if (shares != 0) atomicMax(&args.counters[head].left_out, shares);
  }
}

size_t query_bytes(const AttentionArgs& args) {
  return static_cast<size_t>(kMaxBlockRows * (args.kv.layout.head_dim | 1)) * sizeof(float);
}

}  // namespace

void find_seeds(const AttentionArgs& args, int num_items, const Queue& queue) {
  check(
      launch(find_seeds_kernel, dim3(static_cast<unsigned>(num_items)), dim3(kThreads), query_bytes(args), queue, args),
      "find_seeds_kernel");
}

void mark_tiles(const AttentionArgs& args, int num_items, int max_supers, const Queue& queue) {
  constexpr int kMostGroups = 64;
  // A power of two: contexts that grow do not change the launch at every step.
  const dim3 grid(static_cast<unsigned>(num_items),
                  std::bit_ceil(static_cast<unsigned>(std::clamp(max_supers / 2, 1, kMostGroups))));
  check(launch(mark_tiles_kernel, grid, dim3(kThreads), query_bytes(args), queue, args), "mark_tiles_kernel");
}

void list_segments(const AttentionArgs& args, int num_items, const Queue& queue) {
  check(launch(list_segments_kernel, dim3(static_cast<unsigned>(num_items)), dim3(32), 0, queue, args),
        "list_segments_kernel");
}

void prepare_certify(int head_dim) {
  const size_t most = static_cast<size_t>(kMaxBlockRows * (head_dim | 1)) * sizeof(float);
  check(allow_shared(find_seeds_kernel, most), "cudaFuncSetAttribute(find_seeds)");
  check(allow_shared(mark_tiles_kernel, most), "cudaFuncSetAttribute(mark_tiles)");
}

}  // namespace bam::cuda
