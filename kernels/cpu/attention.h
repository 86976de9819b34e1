// Fused attention of a block of query rows over paged keys and values, with certified skipping.
//
// The result of a row is defined by the row alone (its position, query, head and the pages), in this order:
//   anchor    its own tile D and tile D - 1; for heads whose bias does not decay also the "seed": the tile that
//             promises most by its bound, found through the super-tiles
//   segments  tiles D - 2 ... 0 in fixed segments of 256 tiles, newest first; each starts from an empty state and
//             leaves out tiles whose bound cannot matter against the anchor or against what the segment has seen
//   merge     anchor, then segments from new to old
// So prefill and decode, one thread or many, whole or chunked prompts give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "kernels/attention_options.h"
#include "kernels/paged_kv.h"

namespace bam::cpu {

inline constexpr int kMaxRows = 64;  // query rows of one work item
inline constexpr int64_t kSegmentTiles = 256;

// Static facts of one query head.
struct HeadInfo {
  const float* bias = nullptr;      // bias[-d] = B(d) for d < positions reserved; null: no bias
  bool scaled_bias = false;         // multiply B by c_i
  bool never_grows = false;         // bias_scale * B never grows with the distance from `settled` on
  bool decays = false;              // and falls below any bound
  int64_t rising = 0, settled = 0;  // between these B stays within [smallest, largest], else it is monotone
  float largest = 0, smallest = 0;
  int64_t reach = -1;  // keys further away than this are left out by proof; -1: none
  double seq_scale = 1;
  bool ssmax = false;
};

struct RowInfo {
  const HeadInfo* head = nullptr;
  int64_t position = 0;
  float content_scale = 0;   // multiplies q.k
  float bias_scale = 0;      // multiplies B
  float skip_margin = 0;     // ln(eps) - ln(n_i): a tile may go when bound < log-sum-exp + margin
  int64_t first_key = 0;     // window or reach: keys before it are not seen
  int64_t beyond_reach = 0;  // how many of those a model without reach would see
};

// Mergeable softmax state of the rows of one item.
struct SoftmaxState {
  float* max;       // [rows]
  float* sum;       // [rows]
  float* left_out;  // [rows] upper bound on the share of the mass that was not visited
  float* out;       // [rows][padded_dim], unnormalised

  static size_t floats(int padded_dim) { return static_cast<size_t>(kMaxRows * (3 + padded_dim)); }
  static SoftmaxState at(float* memory) {
    return {memory, memory + kMaxRows, memory + 2 * kMaxRows, memory + 3 * kMaxRows};
  }
};

struct AttentionItem {
  int rows = 0;
  const RowInfo* row = nullptr;    // [rows]
  const float* q = nullptr;        // [rows][padded_dim], scaled by content_scale, padding zero
  const int32_t* pages = nullptr;  // block table of the KV head's group
  const std::byte* base = nullptr;
  KvLayout layout;
  int64_t diagonal_tile = 0;      // tile of every row's own key
  int64_t window_first_tile = 0;  // no row needs an older tile
  bool certified = true;
  float epsilon = 0;
  bool split = false;      // every segment is visited by itself, whatever the newer ones found
  bool use_super = false;  // super-tile boxes are valid for this group
  bool any_non_decaying = false;
  bool integer = false;  // int8 and int4 pages: attention_int8-inl.h
};

// What the anchor pass tells the segments.
struct AnchorInfo {
  float lse[kMaxRows];     // log-sum-exp of the anchor keys
  int64_t seed[kMaxRows];  // tile already visited as the seed; -1: none
};

// Numbers that start at a cache line.
template <typename T>
class Lines {
 public:
  explicit Lines(size_t count) : data_(new (kLine) T[count]{}) {}
  ~Lines() { ::operator delete[](data_, kLine); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  static constexpr std::align_val_t kLine{64};
  T* data_;
};

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMostQuadWords = 2;  // 32-bit words that four codes of a row take, at most

// Per worker, sized once.
struct AttentionScratch {
  explicit AttentionScratch(int padded_dim);
  Lines<float> k_tile, v_tile;  // one tile as float32
  Lines<float> scores;          // [kMaxRows][64]
  Lines<float> q_t;             // [padded_dim][kMaxRows], made when the first bound of an item is asked for
  Lines<float> mid, extent;     // [padded_dim]
  Lines<float> lanes;           // [kMaxRows][16] partial sums of a running state
  Lines<float> segment;         // memory of a SoftmaxState
  // In integers:
  Lines<float> q_rounded;                   // [kMaxRows][padded_dim] what the codes stand for
  Lines<int32_t> q_words;                   // [kMaxRows][padded_dim / 4 quads of codes]
  Lines<std::byte> k_quads, v_quads;        // one tile
  Lines<int32_t> weights;                   // [kMaxRows][16 quads of slots]
  alignas(64) float dither[2 * kTileKeys];  // one period, twice
  float q_scale[kMaxRows];
  int32_t q_code_sum[kMaxRows];
  bool q_transposed = false;
  float q_norm[kMaxRows], q_sum[kMaxRows], bound[kMaxRows];
  AttentionCounters counters[kMaxRows];
};

// prepare() before the others, once per item and worker. `state` always has room for kMaxRows rows.
struct AttentionKernels {
  void (*prepare)(const AttentionItem& item, AttentionScratch& scratch);
  void (*anchor)(const AttentionItem& item, AttentionScratch& scratch, AnchorInfo& info, const SoftmaxState& state);
  // One segment from an empty state. False: no row's bias grows any more and all are past what could matter, so this
  // segment contributed nothing and no older one will.
  bool (*segment)(const AttentionItem& item, int64_t segment, const AnchorInfo& info, AttentionScratch& scratch,
                  const SoftmaxState& state);
  // into = merge(into, from) for `rows` rows.
  void (*merge)(int rows, int padded_dim, bool integer, const SoftmaxState& into, const SoftmaxState& from);
};
AttentionKernels attention_kernels();

inline int64_t num_segments(int64_t diagonal_tile) {
  return diagonal_tile < 2 ? 0 : (diagonal_tile - 2) / kSegmentTiles + 1;
}

}  // namespace bam::cpu
