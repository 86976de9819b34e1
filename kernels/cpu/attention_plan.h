// How the attention of one step is cut into tasks. A plan depends on which rows there are and on the shape of a layer
// only, never on pages or numbers: layers of one shape share the plan of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"

namespace bam::cpu {

// One block of query rows: positions of one sequence inside one tile, all query heads of one KV head.
struct QueryBlock {
  int32_t sequence = 0;   // index into the sequences of the call
  int64_t first_row = 0;  // of the sequence's rows
  int num_positions = 0;
  int kv_head = 0;
  int first_head = 0, num_heads = 0;          // query heads taken together
  int64_t diagonal_tile = 0, first_tile = 0;  // tiles [first_tile, diagonal_tile] may be visited
  bool writes = false;                        // its one key and value must be stored first
  int64_t first_part = -1;                    // split blocks: index of the anchor's state, then one per segment

  bool split() const { return first_part >= 0; }
  int64_t first_segment() const { return first_tile / kSegmentTiles; }
  int64_t last_segment() const { return num_segments(diagonal_tile); }
};

struct AttentionTask {
  int32_t block = 0;
  int32_t num_blocks = 0;  // small blocks are taken several at a time
  int64_t segment = -1;    // -1: whole blocks
};

// A tile that rows of a step are written to.
struct WrittenTile {
  int32_t sequence = 0;
  int64_t tile = 0;
};

// Keys and values that are stored before anybody reads them.
struct WritePlan {
  std::vector<WrittenTile> tiles;
  std::vector<int32_t> completing;  // sequences that finish a tile

  void clear();
  void add(std::span<const SequenceRows> sequences, size_t index);
};

struct AttentionPlan {
  std::vector<QueryBlock> blocks;  // long ones first
  std::vector<AttentionTask> tasks;
  int64_t parts = 0;  // states of split blocks
  WritePlan writes;

  bool any_split() const { return !blocks.empty() && blocks.front().split(); }
};

class AttentionPlanner {
 public:
  enum class Kind { kAttend, kWriteAndAttend };

  explicit AttentionPlanner(int num_threads) : num_threads_(num_threads) {}

  // The number of this layer's shape; equal shapes have equal numbers.
  int shape_of(const AttentionSpec& spec);
  // The plan for these rows: the last one of this shape and kind if the rows are the same. Valid until the next call
  // with the same shape and kind.
  const AttentionPlan& plan(int shape, Kind kind, std::span<const SequenceRows> sequences, bool certified);
  uint64_t num_made() const { return num_made_; }  // plans that were not there yet

 private:
  struct Shape {
    int num_heads = 0, num_kv_heads = 0;
    int64_t window = -1;
    std::vector<int64_t> reach;  // [heads]
    bool operator==(const Shape&) const = default;
  };
  struct RowRange {
    int64_t row_begin, num_rows, start_pos;
    bool operator==(const RowRange&) const = default;
  };
  struct Known {
    std::vector<RowRange> rows;
    bool made = false, certified = false;
    AttentionPlan plan;
  };
  struct Entry {
    Shape shape;
    Known known[2];  // by kind
  };

  void make_blocks(const Shape& shape, std::span<const SequenceRows> sequences, bool certified, AttentionPlan& plan);
  void make_tasks(AttentionPlan& plan) const;
  void add_whole_blocks(size_t first, AttentionPlan& plan) const;
  static void make_writes(const Shape& shape, std::span<const SequenceRows> sequences, AttentionPlan& plan);

  int num_threads_;
  uint64_t num_made_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;  // by shape
};

}  // namespace bam::cpu
