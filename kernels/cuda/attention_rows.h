// Device-side arithmetic that every attention kernel shares: rows, segments, slots.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/numeric.h"
#include "kernels/cuda/ptx.h"
#include "kernels/prior.h"

namespace bam::cuda {

__device__ __forceinline__ int num_rows(const QueryBlock& block) { return block.num_positions * block.num_heads; }

// What one query row knows about itself.
struct RowInfo {
  int head = 0;
  int position = 0;
  int first_key = 0;        // window or reach: keys before it are not seen
  float content_scale = 0;  // multiplies q.k
  float bias_scale = 0;     // multiplies B
  float skip_margin = 0;    // ln(eps) - ln(n_i)
};

__device__ __forceinline__ RowInfo row_info(const AttentionArgs& args, const QueryBlock& block, int row) {
  RowInfo info;
  info.head = block.first_head + row / block.num_positions;
  info.position = block.position + row % block.num_positions;
  const HeadParams& head = args.heads[info.head];
  const long long visible = visible_keys(info.position, args.window);
  // float32: double precision would take longer than everything else that a row begins with.
  const float log_visible = logf(static_cast<float>(visible));
  const float inverse_root = 1.0f / sqrtf(static_cast<float>(args.kv.layout.head_dim));
  const float c = head.ssmax ? head.seq_scale * log_visible : 1.0f;
  info.content_scale = c * inverse_root;
  info.bias_scale = head.ssmax && head.scaled_bias ? c : 1.0f;
  info.skip_margin = args.log_epsilon - log_visible;
  const int reach = args.window >= 0 ? args.window : (args.certified ? head.reach : -1);
  info.first_key = reach < 0 || info.position < reach ? 0 : info.position - reach;
  return info;
}

// Where a row's query starts in qkv, in elements.
__device__ __forceinline__ long long query_offset(const AttentionArgs& args, const QueryBlock& block, int row) {
  const int out_row = block.out_row + row % block.num_positions;
  const long long source = args.query_rows == nullptr ? out_row : args.query_rows[out_row];
  return source * args.qkv_stride +
         static_cast<long long>(block.first_head + row / block.num_positions) * args.kv.layout.head_dim;
}

__device__ __forceinline__ float load_operand(DType dtype, const void* data, long long at) {
  switch (dtype) {
    case DType::kF16: return to_float(static_cast<const __half*>(data)[at]);
    case DType::kBF16: return to_float(static_cast<const __nv_bfloat16*>(data)[at]);
    default: return static_cast<const float*>(data)[at];
  }
}

// Tensor cores multiply int8 pages with queries in whole units of their largest component: 127 * 256 of them, so that the
// upper of two signed bytes stays within 127. NaN makes the unit NaN.
struct QueryUnits {
  float per_number, unit;
  __device__ __forceinline__ int of(float value) const { return __float2int_rn(value * per_number); }
};
__device__ __forceinline__ QueryUnits query_units(float largest) {
  constexpr float kMost = 127 * 256;
  return {largest > 0 ? kMost / largest : 0.0f, largest / kMost};
}

// out row `row` of the block, dim d.
__device__ __forceinline__ void store_result(const AttentionArgs& args, const QueryBlock& block, int row, int d,
                                             float value) {
  const long long at = (block.out_row + row % block.num_positions) * args.out_stride +
                       static_cast<long long>(block.first_head + row / block.num_positions) * args.kv.layout.head_dim +
                       d;
  switch (args.operand) {
    case DType::kF16: static_cast<__half*>(args.out)[at] = from_float<__half>(value); return;
    case DType::kBF16: static_cast<__nv_bfloat16*>(args.out)[at] = from_float<__nv_bfloat16>(value); return;
    default: static_cast<float*>(args.out)[at] = value; return;
  }
}

// Segments of a block's list, without masks: all from the newest on.
__device__ __forceinline__ int num_segments(const AttentionArgs& args, const QueryBlock& block, int block_index) {
  if (block.mask_offset >= 0) return args.list_size[block_index];
  const int newest = block.diagonal_tile - 2;
  return newest < block.first_tile ? 0 : newest / kSegmentTiles - block.first_tile / kSegmentTiles + 1;
}
__device__ __forceinline__ int segment_at(const AttentionArgs& args, const QueryBlock& block, int entry) {
  if (block.mask_offset >= 0) return args.list[block.list_offset + entry];
  return (block.diagonal_tile - 2) / kSegmentTiles - entry;
}
// Segments of the list that are not before `segment`: the list goes from new to old. All lanes of a warp.
__device__ __forceinline__ int entries_down_to(const AttentionArgs& args, const QueryBlock& block, int entries,
                                               int segment) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int begin = 0, end = entries;  // the answer is one of begin ... end
  while (begin < end) {
    const int stride = (end - begin + 31) / 32, at = begin + lane * stride;
    const int found = __popc(__ballot_sync(kAllLanes, at < end && segment_at(args, block, at) >= segment));
    if (found == 0) break;
    const int last = begin + (found - 1) * stride;
    begin = last + 1;
    end = last + stride < end ? last + stride : end;
  }
  return begin;
}
__device__ __forceinline__ int newest_span(const QueryBlock& block) {
  return (block.diagonal_tile - 2) / kSegmentTiles / kSpanSegments;
}
__device__ __forceinline__ unsigned long long tile_mask(const AttentionArgs& args, const QueryBlock& block, int tile) {
  return block.mask_offset >= 0 ? args.masks[block.mask_offset + tile - block.first_tile] : ~0ull;
}

// Slot layout: max [slot_rows] (of logits in units of log 2), sum [slot_rows], values [slot_rows][padded_dim].
__device__ __forceinline__ float* slot_at(const AttentionArgs& args, const QueryBlock& block, int slot) {
  return args.slots +
         static_cast<long long>(block.first_slot + slot) * args.slot_rows * (2 + args.kv.layout.padded_dim);
}

// The factors with which two softmax states are joined; `max` (of logits in units of log 2) becomes the joint maximum.
struct MergeFactors {
  float keep, add;
};
__device__ __forceinline__ MergeFactors merge_factors(float& max, float other_max) {
  const float joint = fmaxf(max, other_max);
  const MergeFactors factors{exp2_approx(max - joint), exp2_approx(other_max - joint)};
  max = joint;
  return factors;
}

}  // namespace bam::cuda
