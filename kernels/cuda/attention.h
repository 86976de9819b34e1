// Fused paged attention with certified skipping: what host and kernels share.
//
// The result of a row is defined by the row alone (its position, query, head and the pages), in this order:
//   anchor    its own tile D and tile D - 1; where tiles are left out by bounds and the prior does not decay also the
//             "seed": the finished tile that promises most
//   segments  tiles D - 2 ... 0 in fixed segments of 8 tiles, newest first, each from an empty softmax state
//   spans     32 segments each: the newest span goes on from the anchor, others from an empty state, segments from new
//             to old
//   merge     spans from new to old
// A tile that a row leaves out changes no bit of its state, so rows of different wishes can share a tile's visit. One
// block per query block, or many (split over segments) with a merge kernel that takes spans side by side: the same
// operations in the same order.
//
//   query block = up to 64 rows: positions inside one tile x query heads of one KV head
//   row         = head * positions + position
//
//   bounds on, rows far enough:   seed -> anchor -> masks -> list -> attention over the list (-> merge)
//   else:                         attention over all segments within reach (-> merge)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/launch.h"
#include "kernels/dtype.h"

namespace bam::cuda {

inline constexpr int kMaxBlockRows = 64;
inline constexpr int kSegmentTiles = 8;
inline constexpr int kSegmentsPerSuper = kSuperTiles / kSegmentTiles;
inline constexpr int kSpanSegments = 32;
// Rows whose own tile is before this one read everything within reach: bounds would cost more than they save.
inline constexpr int kFirstBoundedTile = 8;

// Static facts of one query head.
struct HeadParams {
  const float* bias = nullptr;  // bias[d] = B(d) for d < bias_size; null: no bias
  int bias_size = 0;
  int reach = -1;               // keys further away are left out by proof; -1: none
  int rising = 0, settled = 0;  // between these B stays within [smallest, largest], else it is monotone
  float largest = 0, smallest = 0;
  bool scaled_bias = false;  // multiply B by c_i
  bool never_grows = false;  // bias_scale * B never grows with the distance from `settled` on
  bool decays = false;       // and falls below any bound
  bool ssmax = false;
  float seq_scale = 1;
};

struct QueryBlock {
  const int32_t* pages;  // block table of the KV head's group
  int out_row;           // row of the first position
  int position;          // first position
  int num_positions;
  int first_head, num_heads;
  int kv_head;
  int diagonal_tile;  // tile of every row's own key
  int first_tile;     // no row needs an older tile
  int first_slot;     // softmax states: the anchor's slot, then one per listed segment; -1: none
  int mask_offset;    // masks of tiles first_tile ... D - 2; -1: every row wants every tile
  int list_offset;    // segments to visit, newest first; only with masks
};

enum class WorkKind : int {
  kNone,    // nothing: so that the number of items does not change from step to step
  kWhole,   // anchor and all segments, then the output
  kAnchor,  // the anchor into its slot
  kRest,    // from the anchor's slot over all segments to the output; as kWhole it keeps the total there between spans
  kPart,    // segments part, part + parts, ... of the list, each into its slot
};
struct WorkItem {
  int block;
  WorkKind kind;
  int part, parts;
};

// Counters of one head, only ever growing.
struct DeviceCounters {
  unsigned long long visited, bound_tests;
  unsigned long long left_out;  // the largest share of a row's mass, in units of 1 / kSharesInOne, rounded up
};
inline constexpr float kSharesInOne = 0x1p60f;  // units of DeviceCounters::left_out

struct AttentionArgs {
  KvPages kv;
  const HeadParams* heads = nullptr;  // [heads]
  const QueryBlock* blocks = nullptr;
  const WorkItem* items = nullptr;
  const int32_t* query_rows = nullptr;  // row of qkv for a row of out; null: the same
  const void* qkv = nullptr;            // operands
  long long qkv_stride = 0;
  void* out = nullptr;  // [rows, heads * head_dim] operands
  long long out_stride = 0;
  DType operand = DType::kF32;
  DType query = DType::kF32;  // to which attention rounds queries before it multiplies; kF32: not at all
  int window = -1;
  bool certified = false;
  float log_epsilon = 0, epsilon = 0;
  float* slots = nullptr;  // [slots][kMaxBlockRows or 16][2 + padded_dim]: max, sum, values
  int slot_rows = 0;
  unsigned long long* masks = nullptr;     // rows that want a tile
  int32_t* list = nullptr;                 // segments with any such tile
  int32_t* list_size = nullptr;            // [blocks]
  int32_t* seeds = nullptr;                // [blocks][kMaxBlockRows]; -1: none. Null before there are any
  unsigned long long* left_out = nullptr;  // [blocks][kMaxBlockRows] share of a row's mass, as in DeviceCounters
  const uint8_t* super_heads = nullptr;    // [kv heads] super-tile boxes are kept
  DeviceCounters* counters = nullptr;      // [heads]
  friend bool operator==(const AttentionArgs&, const AttentionArgs&) = default;
};

// One kernel launch over num_items work items. All blocks of a launch have at most `max_rows` rows.
void attention_plain(const AttentionArgs& args, int num_items, const Queue& queue);
// Tensor cores: 16-bit operands, KV in kF16, kBF16, kI8 or kFp8, padded head_dim up to 128.
// bias_floats: room for the bias of one stage, see bias_stage_floats().
void attention_mma(const AttentionArgs& args, int num_items, int max_rows, int bias_floats, const Queue& queue);
// Query heads of one KV head, up to `most`, that fit into a block of a device with that much shared memory; 0: none do.
int attention_mma_heads(const KvLayout& layout, int most, size_t shared_per_block);
// Lets the kernel of this layout take what blocks of up to `heads` heads need.
void prepare_attention_mma(const KvLayout& layout, int heads);
bool attention_mma_supports(DType operand, const KvLayout& layout);
// The 16-bit format of its products.
DType attention_mma_format(const KvLayout& layout);
// Keys of one step of the tensor-core pipeline.
inline constexpr int kStageKeys = 32;
constexpr int bias_stage_floats(int num_heads, int num_positions) {
  return num_heads * (num_positions + kStageKeys - 1);
}

// Split blocks: merges the slots of the blocks listed in items (kind unused) into the output.
void attention_merge(const AttentionArgs& args, int num_items, const Queue& queue);

// certify.cu, in this order around an attention launch of kAnchor items. items: one per block (kind unused).
void find_seeds(const AttentionArgs& args, int num_items, const Queue& queue);
void mark_tiles(const AttentionArgs& args, int num_items, int max_supers, const Queue& queue);
void list_segments(const AttentionArgs& args, int num_items, const Queue& queue);
void prepare_certify(int head_dim);

}  // namespace bam::cuda
