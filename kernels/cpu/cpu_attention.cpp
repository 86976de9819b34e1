// The attention side of the CPU backend: tables, and cutting a step's queries into tasks.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_worker.h"

namespace bam::cpu {
namespace {

constexpr int64_t kPositionStep = 1024;  // tables grow by at least this much
// A super-tile is summarised when its last tile fills up; all 16 tiles are certainly still there if a head reaches
// further.
constexpr int64_t kSuperReach = 2 * kSuperTiles * kTileKeys;

constexpr size_t kCacheLine = 64;

void fetch(const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(from + at, 0, 2);
}

// One head as the kernels want it.
HeadInfo head_info(const AttentionSpec& spec, int head, const BiasTable* table) {
  const HeadBias& bias = spec.bias_of(head);
  HeadInfo info;
  info.bias = table == nullptr ? nullptr : table->zero();
  info.scaled_bias = bias.scaled;
  info.never_grows = bias.never_grows;
  info.decays = bias.decays;
  info.rising = bias.rising;
  info.settled = bias.settled;
  info.largest = static_cast<float>(bias.largest);
  info.smallest = static_cast<float>(bias.smallest);
  info.reach = spec.reach_of(head);
  info.seq_scale = spec.seq_scale_of(head);
  info.ssmax = spec.ssmax;
  return info;
}

}  // namespace

std::unique_ptr<AttentionLayer> CpuBackend::make_attention(const AttentionSpec& spec) {
  auto layer = std::make_unique<CpuAttention>();
  layer->spec = spec;
  for (int h = 0; h < spec.num_heads; ++h) {
    std::shared_ptr<BiasTable> table;
    if (const HeadBias& bias = spec.bias_of(h); bias.any()) {
      const int64_t reach = spec.reach_of(h);
      const int64_t limit = reach < 0 ? kMaxPositions : std::min(kMaxPositions, reach + 2 * kSuperReach);
      std::weak_ptr<BiasTable>& known = known_tables_[{bias, limit}];
      table = known.lock();
      if (table == nullptr) known = table = std::make_shared<BiasTable>(bias, limit);
    }
    layer->heads.push_back(head_info(spec, h, table.get()));
    layer->tables.push_back(std::move(table));
  }
  const int group = spec.num_heads / spec.num_kv_heads;
  for (int kv = 0; kv < spec.num_kv_heads; ++kv) {
    bool wide = spec.window < 0;
    bool any_unbounded = false;
    for (int h = kv * group; h < (kv + 1) * group; ++h) {
      const int64_t reach = layer->heads[static_cast<size_t>(h)].reach;
      any_unbounded = any_unbounded || reach < 0 || reach >= kSuperReach;
    }
    layer->use_super.push_back(wide && any_unbounded);
  }
  if (spec.rotates()) {
    std::weak_ptr<const RopeTable>& known = known_rope_[{spec.rope_theta, spec.head_dim, spec.rope_style}];
    layer->rope = known.lock();
    if (layer->rope == nullptr) {
      known = layer->rope = std::make_shared<RopeTable>(spec.rope_theta, spec.head_dim, spec.rope_style);
    }
  }
  return layer;
}

void CpuBackend::reserve_positions(std::span<AttentionLayer* const> layers, int64_t num_positions) {
  const int64_t target = std::min(kMaxPositions, (num_positions + kPositionStep - 1) / kPositionStep * kPositionStep);
  std::vector<BiasTable*> short_tables;
  for (AttentionLayer* layer : layers) {
    for (const auto& table : static_cast<CpuAttention*>(layer)->tables) {
      if (table != nullptr && table->size() < std::min(target, table->limit())) short_tables.push_back(table.get());
    }
  }
  std::sort(short_tables.begin(), short_tables.end());
  short_tables.erase(std::unique(short_tables.begin(), short_tables.end()), short_tables.end());
  pool_.parallel_for(static_cast<int64_t>(short_tables.size()),
                     [&](int64_t i, int) { short_tables[static_cast<size_t>(i)]->extend(target); });
}

void CpuBackend::ensure_workers(int padded_dim) {
  if (!workers_.empty() && workers_.front()->padded_dim >= padded_dim) return;
  workers_.clear();
  for (int w = 0; w < pool_.num_threads(); ++w) workers_.push_back(std::make_unique<Worker>(padded_dim, arena_));
}

void CpuBackend::plan_blocks(const CpuAttention& layer, std::span<const SequenceRows> queries,
                             const AttentionOptions& options) {
  const AttentionSpec& spec = layer.spec;
  const int group = spec.num_heads / spec.num_kv_heads;
  const int heads_at_once = std::min(group, kMaxRows);
  const int64_t positions_at_once = kMaxRows / heads_at_once;
  blocks_.clear();
  for (const SequenceRows& seq : queries) {
    for (int64_t r = 0; r < seq.num_rows;) {
      const int64_t position = seq.start_pos + r;
      const int64_t tile = position / kTileKeys;
      const int64_t count = std::min({positions_at_once, seq.num_rows - r, (tile + 1) * kTileKeys - position});
      for (int h = 0; h < spec.num_heads; h += heads_at_once) {
        const int in_group = std::min(heads_at_once, (h / group + 1) * group - h);
        Block block{};
        block.sequence = &seq;
        block.first_row = r;
        block.num_positions = static_cast<int>(count);
        block.kv_head = h / group;
        block.first_head = h;
        block.num_heads = in_group;
        block.diagonal_tile = tile;
        block.bounded = true;
        int64_t reach = spec.window;
        for (int i = h; i < h + in_group && spec.window < 0; ++i) {
          const int64_t head_reach = options.certified ? layer.heads[static_cast<size_t>(i)].reach : -1;
          block.bounded = block.bounded && head_reach >= 0;
          reach = std::max(reach, head_reach);
        }
        block.first_tile = block.bounded ? std::max<int64_t>(position - reach, 0) / kTileKeys : 0;
        block.first_part = -1;
        blocks_.push_back(block);
        h -= heads_at_once - in_group;
      }
      r += count;
    }
  }
  // Long blocks first, so that threads finish together; neighbours stay neighbours. (std::stable_sort would allocate.)
  const auto before = [](const Block& a, const Block& b) {
    const int64_t tiles_a = a.diagonal_tile - a.first_tile, tiles_b = b.diagonal_tile - b.first_tile;
    if (tiles_a != tiles_b) return tiles_a > tiles_b;
    return std::tie(a.sequence, a.first_row, a.first_head) < std::tie(b.sequence, b.first_row, b.first_head);
  };
  if (!std::is_sorted(blocks_.begin(), blocks_.end(), before)) std::sort(blocks_.begin(), blocks_.end(), before);
}

// Blocks that are not split. One position of one head over a short context is too little to hand out by itself.
void CpuBackend::plan_whole_blocks(size_t first, size_t end) {
  constexpr int64_t kRowTiles = 32;  // of a task, if its blocks are that small
  const size_t most = std::max<size_t>(blocks_.size() / (8 * static_cast<size_t>(pool_.num_threads())), 1);
  while (first < end) {
    int64_t row_tiles = 0;
    size_t last = first;
    while (last < end && last - first < most && row_tiles < kRowTiles) {
      const Block& block = blocks_[last++];
      row_tiles += block.num_positions * block.num_heads * (block.diagonal_tile - block.first_tile + 1);
    }
    tasks_.push_back({static_cast<int32_t>(first), static_cast<int32_t>(last - first), -1});
    first = last;
  }
}

// Long blocks are split by segment when there are too few of them to keep all threads busy.
void CpuBackend::plan_tasks(int padded_dim) {
  tasks_.clear();
  int64_t parts = 0;
  const bool few = static_cast<int64_t>(blocks_.size()) < 8 * pool_.num_threads();
  size_t b = 0;  // blocks are sorted by length: those to split come first
  for (; b < blocks_.size() && few && pool_.num_threads() > 1; ++b) {
    Block& block = blocks_[b];
    const int64_t segments = block.last_segment() - block.first_segment();
    if (segments < 2) break;
    block.first_part = parts;
    parts += 1 + segments;
    for (int64_t s = block.last_segment() - 1; s >= block.first_segment(); --s) {
      tasks_.push_back({static_cast<int32_t>(b), 1, s});
    }
  }
  plan_whole_blocks(b, blocks_.size());
  partial_.resize(std::max(partial_.size(), static_cast<size_t>(parts) * SoftmaxState::floats(padded_dim)));
  anchors_.resize(std::max(anchors_.size(), static_cast<size_t>(parts)));
}

SoftmaxState CpuBackend::part_state(int64_t part, int padded_dim) {
  return SoftmaxState::at(partial_.data() + static_cast<size_t>(part) * SoftmaxState::floats(padded_dim));
}

void CpuBackend::load_block(const CpuAttention& layer, const KvCacheView& kv, const Block& block,
                            std::span<const int32_t> query_rows, const float* qkv, const AttentionOptions& options,
                            Worker& worker, AttentionItem& item) const {
  const AttentionSpec& spec = layer.spec;
  const KvLayout& layout = kv.layout;
  const int64_t ld = int64_t{spec.num_heads + 2 * spec.num_kv_heads} * spec.head_dim;
  const SequenceRows& seq = *block.sequence;
  item.rows = 0;
  item.any_non_decaying = false;
  const double log_epsilon = std::log(static_cast<double>(options.epsilon));
  for (int h = block.first_head; h < block.first_head + block.num_heads; ++h) {
    const HeadInfo& head = layer.heads[static_cast<size_t>(h)];
    item.any_non_decaying = item.any_non_decaying || !head.decays;
    for (int p = 0; p < block.num_positions; ++p) {
      const int64_t out_row = seq.row_begin + block.first_row + p;
      const int64_t source = query_rows.empty() ? out_row : query_rows[static_cast<size_t>(out_row)];
      const int64_t position = seq.start_pos + block.first_row + p;
      const int64_t visible = visible_keys(position, spec.window);
      const RowScales scales = row_scales(head.ssmax, head.scaled_bias, head.seq_scale, visible, spec.head_dim);
      RowInfo& row = worker.rows[item.rows];
      row.head = &head;
      row.position = position;
      row.content_scale = scales.content;
      row.bias_scale = scales.bias;
      row.skip_margin = static_cast<float>(log_epsilon - std::log(static_cast<double>(visible)));
      const int64_t reach = spec.window >= 0 ? spec.window : (options.certified ? head.reach : -1);
      row.first_key = reach < 0 ? 0 : std::max<int64_t>(position - reach, 0);
      row.beyond_reach = spec.window >= 0 ? 0 : row.first_key;
      float* q = worker.q.data() + int64_t{item.rows} * layout.padded_dim;
      elementwise_.scale(qkv + source * ld + int64_t{h} * spec.head_dim, row.content_scale, spec.head_dim, q);
      std::fill(q + spec.head_dim, q + layout.padded_dim, 0.0f);
      worker.attention.counters[item.rows] = {};
      ++item.rows;
    }
  }
  item.row = worker.rows;
  item.q = worker.q.data();
  item.pages = seq.block_table + (spec.first_group + block.kv_head) * seq.table_stride;
  item.base = kv.base;
  item.layout = layout;
  item.diagonal_tile = block.diagonal_tile;
  item.window_first_tile = block.first_tile;
  item.certified = options.certified;
  item.epsilon = options.epsilon;
  item.split = block.first_part >= 0;
  item.integer = in_integers(layout);
  item.use_super = layer.use_super[static_cast<size_t>(block.kv_head)];
  attention_.prepare(item, worker.attention);
}

// Brings in the two tiles that every row visits.
void CpuBackend::fetch_block(const CpuAttention& layer, const KvCacheView& kv, const Block& block) const {
  const KvLayout& layout = kv.layout;
  const int32_t* pages =
      block.sequence->block_table + (layer.spec.first_group + block.kv_head) * block.sequence->table_stride;
  const int64_t last = block.sequence->start_pos + block.first_row + block.num_positions - 1;
  for (int64_t tile = block.diagonal_tile; tile >= std::max(block.diagonal_tile - 1, block.first_tile); --tile) {
    if (pages[tile / layout.tiles_per_page()] == kNoPage) continue;
    const std::byte* at = tile_at(layout, kv.base, pages, tile);
    const size_t keys = static_cast<size_t>(std::min<int64_t>(last - tile * kTileKeys + 1, kTileKeys));
    const size_t panels = (keys + kPanelKeys - 1) / kPanelKeys;
    const size_t bits = static_cast<size_t>(dtype_bits(layout.dtype));
    fetch(at + layout.k_offset, panels * kPanelKeys * static_cast<size_t>(layout.head_dim) * bits / 8);
    fetch(at + layout.v_offset, keys * static_cast<size_t>(layout.padded_dim) * bits / 8);
  }
}

void CpuBackend::attend_whole(const AttentionItem& item, const Block& block, Worker& worker) const {
  const SoftmaxState state = worker.main_state(), segment = worker.segment_state();
  attention_.anchor(item, worker.attention, worker.anchor, state);
  for (int64_t s = block.last_segment() - 1; s >= block.first_segment(); --s) {
    const bool more = attention_.segment(item, s, worker.anchor, worker.attention, segment);
    attention_.merge(item.rows, item.layout.padded_dim, item.integer, state, segment);
    if (!more) break;
  }
}

void CpuBackend::store_block(const CpuAttention& layer, const Block& block, const SoftmaxState& state, int padded_dim,
                             float* out) const {
  const AttentionSpec& spec = layer.spec;
  const int64_t ldo = int64_t{spec.num_heads} * spec.head_dim;
  int r = 0;
  for (int h = block.first_head; h < block.first_head + block.num_heads; ++h) {
    for (int p = 0; p < block.num_positions; ++p, ++r) {
      const int64_t row = block.sequence->row_begin + block.first_row + p;
      const float* from = state.out + int64_t{r} * padded_dim;
      float* to = out + row * ldo + int64_t{h} * spec.head_dim;
      for (int d = 0; d < spec.head_dim; ++d) to[d] = from[d] / state.sum[r];
    }
  }
}

// The worst row of every head of a finished block.
void CpuBackend::count_left_out(const Block& block, const SoftmaxState& state, std::span<AttentionCounters> heads) {
  for (int r = 0; r < block.num_heads * block.num_positions; ++r) {
    AttentionCounters& head = heads[static_cast<size_t>(block.first_head + r / block.num_positions)];
    head.left_out = std::max(head.left_out, state.left_out[r]);
  }
}

void CpuBackend::count_block(const Block& block, Worker& worker) const {
  for (int h = 0; h < block.num_heads; ++h) {
    AttentionCounters& total = worker.counters[static_cast<size_t>(block.first_head + h)];
    for (int p = 0; p < block.num_positions; ++p) {
      const AttentionCounters& row = worker.attention.counters[h * block.num_positions + p];
      total.visited += row.visited;
      total.bound_tests += row.bound_tests;
    }
  }
}

void CpuBackend::attention(const AttentionLayer& attention_layer, const KvCacheView& kv,
                           std::span<const SequenceRows> queries, std::span<const int32_t> query_rows,
                           const void* qkv_data, const AttentionOptions& options, void* out_data,
                           std::span<AttentionCounters> per_head) {
  const auto& layer = static_cast<const CpuAttention&>(attention_layer);
  plan_blocks(layer, queries, options);
  plan_tasks(kv.layout.padded_dim);
  attend(layer, kv, query_rows, static_cast<const float*>(qkv_data), nullptr, options, static_cast<float*>(out_data),
         per_head);
}

// A sequence that adds one position gets its key and value written by the task that reads them back: with many short
// streams the way through memory costs more than the arithmetic.
void CpuBackend::write_and_attend(const AttentionLayer& attention_layer, const KvCacheView& kv,
                                  std::span<const SequenceRows> sequences, void* qkv_data,
                                  const AttentionOptions& options, void* out_data,
                                  std::span<AttentionCounters> per_head) {
  const auto& layer = static_cast<const CpuAttention&>(attention_layer);
  float* qkv = static_cast<float*>(qkv_data);
  plan_blocks(layer, sequences, options);
  plan_tasks(kv.layout.padded_dim);
  // A block is then a whole KV head of its sequence, and nobody else reads what it writes.
  const bool whole_heads = layer.spec.num_heads / layer.spec.num_kv_heads <= kMaxRows;
  const bool any_split = !blocks_.empty() && blocks_.front().first_part >= 0;
  written_.clear();
  completing_.clear();
  for (const SequenceRows& seq : sequences) {
    if (seq.num_rows != 1 || !whole_heads || any_split) plan_writes(seq);
  }
  write_planned(layer, kv, qkv);
  for (Block& block : blocks_) block.writes = block.sequence->num_rows == 1 && whole_heads && !any_split;
  attend(layer, kv, {}, qkv, qkv, options, static_cast<float*>(out_data), per_head);
}

void CpuBackend::attend(const CpuAttention& layer, const KvCacheView& kv, std::span<const int32_t> query_rows,
                        const float* qkv, float* write_from, const AttentionOptions& options, float* out,
                        std::span<AttentionCounters> per_head) {
  const int padded_dim = kv.layout.padded_dim;
  ensure_workers(padded_dim);
  for (auto& worker : workers_) worker->counters.assign(per_head.size(), {});

  const auto is_split = [](const Block& block) { return block.first_part >= 0; };
  const bool any_split = std::any_of(blocks_.begin(), blocks_.end(), is_split);
  if (any_split) {
    pool_.parallel_for(static_cast<int64_t>(blocks_.size()), [&](int64_t b, int w) {
      const Block& block = blocks_[static_cast<size_t>(b)];
      if (!is_split(block)) return;
      Worker& worker = *workers_[static_cast<size_t>(w)];
      AttentionItem item;
      load_block(layer, kv, block, query_rows, qkv, options, worker, item);
      attention_.anchor(item, worker.attention, anchors_[static_cast<size_t>(block.first_part)],
                        part_state(block.first_part, padded_dim));
      count_block(block, worker);
    });
  }
  pool_.parallel_for_ahead(static_cast<int64_t>(tasks_.size()), [&](int64_t t, int64_t next, int w) {
    const Task& task = tasks_[static_cast<size_t>(t)];
    Worker& worker = *workers_[static_cast<size_t>(w)];
    for (int32_t b = task.block; b < task.block + task.num_blocks; ++b) {
      const Block& block = blocks_[static_cast<size_t>(b)];
      if (block.writes) {
        write_tile(layer, kv, {block.sequence, block.diagonal_tile}, block.kv_head, write_from);
        if (block.sequence->start_pos % kTileKeys == kTileKeys - 1)
          chain_stats(layer, kv, *block.sequence, block.kv_head);
      }
      AttentionItem item;
      load_block(layer, kv, block, query_rows, qkv, options, worker, item);
      const int32_t following =
          b + 1 < task.block + task.num_blocks ? b + 1 : (next >= 0 ? tasks_[static_cast<size_t>(next)].block : -1);
      if (following >= 0) fetch_block(layer, kv, blocks_[static_cast<size_t>(following)]);
      if (task.segment < 0) {
        attend_whole(item, block, worker);
        store_block(layer, block, worker.main_state(), padded_dim, out);
        count_left_out(block, worker.main_state(), worker.counters);
      } else {
        const int64_t part = block.first_part + 1 + task.segment - block.first_segment();
        attention_.segment(item, task.segment, anchors_[static_cast<size_t>(block.first_part)], worker.attention,
                           part_state(part, padded_dim));
      }
      count_block(block, worker);
    }
  });
  if (any_split) {
    for (const Block& block : blocks_) {
      if (!is_split(block)) continue;
      const SoftmaxState state = part_state(block.first_part, padded_dim);
      for (int64_t s = block.last_segment() - 1; s >= block.first_segment(); --s) {
        attention_.merge(block.num_heads * block.num_positions, padded_dim, in_integers(kv.layout), state,
                         part_state(block.first_part + 1 + s - block.first_segment(), padded_dim));
      }
      store_block(layer, block, state, padded_dim, out);
      count_left_out(block, state, per_head);
    }
  }
  add_counters(layer, per_head);
}

// What the workers counted; whatever could have been visited and was not has been skipped.
void CpuBackend::add_counters(const CpuAttention& layer, std::span<AttentionCounters> per_head) const {
  for (const Block& block : blocks_) {
    for (int h = block.first_head; h < block.first_head + block.num_heads; ++h) {
      const int64_t first = layer.spec.window < 0 ? 0 : block.first_tile;
      per_head[static_cast<size_t>(h)].skipped +=
          static_cast<uint64_t>(block.num_positions * (block.diagonal_tile - first + 1));
    }
  }
  for (const auto& worker : workers_) {
    for (size_t h = 0; h < per_head.size(); ++h) {
      per_head[h].visited += worker->counters[h].visited;
      per_head[h].skipped -= worker->counters[h].visited;
      per_head[h].bound_tests += worker->counters[h].bound_tests;
      per_head[h].left_out = std::max(per_head[h].left_out, worker->counters[h].left_out);
    }
  }
}

}  // namespace bam::cpu
