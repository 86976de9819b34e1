#include "kernels/cpu/attention_plan.h"

#include <algorithm>
#include <tuple>

namespace bam::cpu {

void WritePlan::clear() {
  tiles.clear();
  completing.clear();
}

void WritePlan::add(std::span<const SequenceRows> sequences, size_t index) {
  const SequenceRows& seq = sequences[index];
  const auto number = static_cast<int32_t>(index);
  const int64_t first = seq.start_pos / kTileKeys, end = (seq.start_pos + seq.num_rows) / kTileKeys;
  for (int64_t t = first; t * kTileKeys < seq.start_pos + seq.num_rows; ++t) tiles.push_back({number, t});
  if (end > first) completing.push_back(number);
}

int AttentionPlanner::shape_of(const AttentionSpec& spec) {
  Shape shape{spec.num_heads, spec.num_kv_heads, spec.window, {}};
  for (int h = 0; h < spec.num_heads; ++h) shape.reach.push_back(spec.reach_of(h));
  const auto same = [&](const auto& entry) { return entry->shape == shape; };
  const auto found = std::ranges::find_if(entries_, same);
  if (found != entries_.end()) return static_cast<int>(found - entries_.begin());
  entries_.push_back(std::make_unique<Entry>());
  entries_.back()->shape = std::move(shape);
  return static_cast<int>(entries_.size()) - 1;
}

const AttentionPlan& AttentionPlanner::plan(int shape, Kind kind, std::span<const SequenceRows> sequences,
                                            bool certified) {
  Entry& entry = *entries_[static_cast<size_t>(shape)];
  Known& known = entry.known[static_cast<size_t>(kind)];
  const auto same = [](const RowRange& range, const SequenceRows& seq) {
    return range == RowRange{seq.row_begin, seq.num_rows, seq.start_pos};
  };
  if (known.made && known.certified == certified && std::ranges::equal(known.rows, sequences, same)) return known.plan;
  ++num_made_;
  known.made = false;
  known.rows.clear();
  make_blocks(entry.shape, sequences, certified, known.plan);
  make_tasks(known.plan);
  known.plan.writes.clear();
  if (kind == Kind::kWriteAndAttend) make_writes(entry.shape, sequences, known.plan);
  known.certified = certified;
  for (const SequenceRows& seq : sequences) known.rows.push_back({seq.row_begin, seq.num_rows, seq.start_pos});
  known.made = true;
  return known.plan;
}

void AttentionPlanner::make_blocks(const Shape& shape, std::span<const SequenceRows> sequences, bool certified,
                                   AttentionPlan& plan) {
  const int group = shape.num_heads / shape.num_kv_heads;
  const int heads_at_once = std::min(group, kMaxRows);
  const int64_t positions_at_once = kMaxRows / heads_at_once;
  std::vector<QueryBlock>& blocks = plan.blocks;
  blocks.clear();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& seq = sequences[s];
    for (int64_t r = 0; r < seq.num_rows;) {
      const int64_t position = seq.start_pos + r;
      const int64_t tile = position / kTileKeys;
      const int64_t count = std::min({positions_at_once, seq.num_rows - r, (tile + 1) * kTileKeys - position});
      for (int h = 0; h < shape.num_heads;) {
        QueryBlock block;
        block.sequence = static_cast<int32_t>(s);
        block.first_row = r;
        block.num_positions = static_cast<int>(count);
        block.kv_head = h / group;
        block.first_head = h;
        block.num_heads = std::min(heads_at_once, (h / group + 1) * group - h);
        block.diagonal_tile = tile;
        bool bounded = true;  // every head has a finite reach
        int64_t reach = shape.window;
        for (int i = h; i < h + block.num_heads && shape.window < 0; ++i) {
          const int64_t head_reach = certified ? shape.reach[static_cast<size_t>(i)] : -1;
          bounded = bounded && head_reach >= 0;
          reach = std::max(reach, head_reach);
        }
        block.first_tile = bounded ? std::max<int64_t>(position - reach, 0) / kTileKeys : 0;
        blocks.push_back(block);
        h += block.num_heads;
      }
      r += count;
    }
  }
  // Long blocks first, so that threads finish together; neighbours stay neighbours. (std::stable_sort would allocate.)
  const auto before = [](const QueryBlock& a, const QueryBlock& b) {
    const int64_t tiles_a = a.diagonal_tile - a.first_tile, tiles_b = b.diagonal_tile - b.first_tile;
    if (tiles_a != tiles_b) return tiles_a > tiles_b;
    return std::tie(a.sequence, a.first_row, a.first_head) < std::tie(b.sequence, b.first_row, b.first_head);
  };
  if (!std::is_sorted(blocks.begin(), blocks.end(), before)) std::sort(blocks.begin(), blocks.end(), before);
}

// Long blocks are split by segment when there are too few of them to keep all threads busy.
void AttentionPlanner::make_tasks(AttentionPlan& plan) const {
  plan.tasks.clear();
  plan.parts = 0;
  const bool few = static_cast<int64_t>(plan.blocks.size()) < 8 * num_threads_;
  size_t b = 0;  // blocks are sorted by length: those to split come first
  for (; b < plan.blocks.size() && few && num_threads_ > 1; ++b) {
    QueryBlock& block = plan.blocks[b];
    const int64_t segments = block.last_segment() - block.first_segment();
    if (segments < 2) break;
    block.first_part = plan.parts;
    plan.parts += 1 + segments;
    for (int64_t s = block.last_segment() - 1; s >= block.first_segment(); --s) {
      plan.tasks.push_back({static_cast<int32_t>(b), 1, s});
    }
  }
  add_whole_blocks(b, plan);
}

// Blocks that are not split. One position of one head over a short context is too little to hand out by itself.
void AttentionPlanner::add_whole_blocks(size_t first, AttentionPlan& plan) const {
  constexpr int64_t kRowTiles = 32;  // of a task, if its blocks are that small
  const size_t end = plan.blocks.size();
  const size_t most = std::max<size_t>(end / (8 * static_cast<size_t>(num_threads_)), 1);
  while (first < end) {
    int64_t row_tiles = 0;
    size_t last = first;
    while (last < end && last - first < most && row_tiles < kRowTiles) {
      const QueryBlock& block = plan.blocks[last++];
      row_tiles += block.num_positions * block.num_heads * (block.diagonal_tile - block.first_tile + 1);
    }
    plan.tasks.push_back({static_cast<int32_t>(first), static_cast<int32_t>(last - first), -1});
    first = last;
  }
}

// A sequence that adds one position gets its key and value written by the task that reads them back: with many short
// streams the way through memory costs more than the arithmetic. A block is then a whole KV head of its sequence, and
// nobody else reads what it writes.
void AttentionPlanner::make_writes(const Shape& shape, std::span<const SequenceRows> sequences, AttentionPlan& plan) {
  const bool by_blocks = shape.num_heads / shape.num_kv_heads <= kMaxRows && !plan.any_split();
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (!by_blocks || sequences[s].num_rows != 1) plan.writes.add(sequences, s);
  }
  for (QueryBlock& block : plan.blocks) {
    block.writes = by_blocks && sequences[static_cast<size_t>(block.sequence)].num_rows == 1;
  }
}

}  // namespace bam::cpu
