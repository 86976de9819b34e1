// The attention side of the CPU backend: tables, and carrying out a plan.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_worker.h"

namespace bam::cpu {
namespace {

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
  auto layer = std::make_unique<CpuAttention>(spec);
  layer->shape = planner_.shape_of(spec);
  for (int h = 0; h < spec.num_heads; ++h) {
    std::shared_ptr<BiasTable> table;
    if (const HeadBias& bias = spec.bias_of(h); bias.any()) {
      const int64_t limit = spec.bias_positions(h);
      std::weak_ptr<BiasTable>& known = known_tables_[{bias, limit}];
      table = known.lock();
      if (table == nullptr) known = table = std::make_shared<BiasTable>(bias, limit);
    }
    layer->heads.push_back(head_info(spec, h, table.get()));
    layer->tables.push_back(std::move(table));
  }
  for (int kv = 0; kv < spec.num_kv_heads; ++kv) layer->use_super.push_back(spec.keeps_super_tiles(kv));
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
  const int64_t target = positions_to_reserve(num_positions);
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

SoftmaxState CpuBackend::part_state(int64_t part, int padded_dim) {
  return SoftmaxState::at(partial_.data() + static_cast<size_t>(part) * SoftmaxState::floats(padded_dim));
}

void CpuBackend::load_block(const Call& call, const QueryBlock& block, Worker& worker, AttentionItem& item) const {
  const AttentionSpec& spec = call.layer.spec;
  const AttentionOptions& options = call.options;
  const KvLayout& layout = call.kv.layout;
  const int64_t ld = spec.qkv_width();
  const SequenceRows& seq = call.sequence_of(block);
  item.rows = 0;
  item.any_non_decaying = false;
  const double log_epsilon = std::log(static_cast<double>(options.epsilon));
  for (int h = block.first_head; h < block.first_head + block.num_heads; ++h) {
    const HeadInfo& head = call.layer.heads[static_cast<size_t>(h)];
    item.any_non_decaying = item.any_non_decaying || !head.decays;
    for (int p = 0; p < block.num_positions; ++p) {
      const int64_t out_row = seq.row_begin + block.first_row + p;
      const int64_t source = call.query_rows.empty() ? out_row : call.query_rows[static_cast<size_t>(out_row)];
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
      elementwise_.scale(call.qkv + source * ld + int64_t{h} * spec.head_dim, row.content_scale, spec.head_dim, q);
      std::fill(q + spec.head_dim, q + layout.padded_dim, 0.0f);
      worker.attention.counters[item.rows] = {};
      ++item.rows;
    }
  }
  item.row = worker.rows;
  item.q = worker.q.data();
  item.pages = seq.block_table + (spec.first_group + block.kv_head) * seq.table_stride;
  item.base = call.kv.base;
  item.layout = layout;
  item.diagonal_tile = block.diagonal_tile;
  item.window_first_tile = block.first_tile;
  item.certified = options.certified;
  item.epsilon = options.epsilon;
  item.split = block.split();
  item.integer = in_integers(layout);
  item.use_super = call.layer.use_super[static_cast<size_t>(block.kv_head)];
  attention_.prepare(item, worker.attention);
}

// Brings in the two tiles that every row visits.
void CpuBackend::fetch_block(const Call& call, const QueryBlock& block) const {
  const KvLayout& layout = call.kv.layout;
  const SequenceRows& seq = call.sequence_of(block);
  const int32_t* pages = seq.block_table + (call.layer.spec.first_group + block.kv_head) * seq.table_stride;
  const int64_t last = seq.start_pos + block.first_row + block.num_positions - 1;
  for (int64_t tile = block.diagonal_tile; tile >= std::max(block.diagonal_tile - 1, block.first_tile); --tile) {
    if (pages[tile / layout.tiles_per_page()] == kNoPage) continue;
    const std::byte* at = tile_at(layout, call.kv.base, pages, tile);
    const size_t keys = static_cast<size_t>(std::min<int64_t>(last - tile * kTileKeys + 1, kTileKeys));
    const size_t panels = (keys + kPanelKeys - 1) / kPanelKeys;
    const size_t bits = dtype_bits(layout.dtype);
    fetch(at + layout.k_offset, panels * kPanelKeys * static_cast<size_t>(layout.head_dim) * bits / 8);
    fetch(at + layout.v_offset, keys * static_cast<size_t>(layout.padded_dim) * bits / 8);
  }
}

void CpuBackend::attend_whole(const AttentionItem& item, const QueryBlock& block, Worker& worker) const {
  const SoftmaxState state = worker.main_state(), segment = worker.segment_state();
  attention_.anchor(item, worker.attention, worker.anchor, state);
  for (int64_t s = block.last_segment() - 1; s >= block.first_segment(); --s) {
    const bool more = attention_.segment(item, s, worker.anchor, worker.attention, segment);
    attention_.merge(item.rows, item.layout.padded_dim, item.integer, state, segment);
    if (!more) break;
  }
}

void CpuBackend::store_block(const Call& call, const QueryBlock& block, const SoftmaxState& state) const {
  const AttentionSpec& spec = call.layer.spec;
  const int64_t padded_dim = call.kv.layout.padded_dim;
  int r = 0;
  for (int h = block.first_head; h < block.first_head + block.num_heads; ++h) {
    for (int p = 0; p < block.num_positions; ++p, ++r) {
      const int64_t row = call.sequence_of(block).row_begin + block.first_row + p;
      const float* from = state.out + r * padded_dim;
      float* to = call.out + row * spec.q_width() + int64_t{h} * spec.head_dim;
      for (int d = 0; d < spec.head_dim; ++d) to[d] = from[d] / state.sum[r];
    }
  }
}

// The worst row of every head of a finished block.
void CpuBackend::count_left_out(const QueryBlock& block, const SoftmaxState& state,
                                std::span<AttentionCounters> heads) {
  for (int r = 0; r < block.num_heads * block.num_positions; ++r) {
    AttentionCounters& head = heads[static_cast<size_t>(block.first_head + r / block.num_positions)];
    head.left_out = std::max(head.left_out, state.left_out[r]);
  }
}

void CpuBackend::count_block(const QueryBlock& block, Worker& worker) const {
  for (int h = 0; h < block.num_heads; ++h) {
    AttentionCounters& total = worker.counters[static_cast<size_t>(block.first_head + h)];
    for (int p = 0; p < block.num_positions; ++p) {
      const AttentionCounters& row = worker.attention.counters[h * block.num_positions + p];
      total.visited += row.visited;
      total.bound_tests += row.bound_tests;
    }
  }
}

void CpuBackend::do_attention(const AttentionLayer& attention_layer, const KvCacheView& kv,
                              std::span<const SequenceRows> queries, std::span<const int32_t> query_rows,
                              ConstOperandRows qkv, const AttentionOptions& options, OperandRows out,
                              std::span<AttentionCounters> per_head) {
  const auto& layer = static_cast<const CpuAttention&>(attention_layer);
  const AttentionPlan& plan = planner_.plan(layer.shape, AttentionPlanner::Kind::kAttend, queries, options.certified);
  attend({layer, kv, plan, queries, query_rows, static_cast<const float*>(qkv.data), nullptr, options,
          static_cast<float*>(out.data)},
         per_head);
}

void CpuBackend::do_write_and_attend(const AttentionLayer& attention_layer, const KvCacheView& kv,
                                     std::span<const SequenceRows> sequences, OperandRows qkv,
                                     const AttentionOptions& options, OperandRows out,
                                     std::span<AttentionCounters> per_head) {
  const auto& layer = static_cast<const CpuAttention&>(attention_layer);
  const AttentionPlan& plan =
      planner_.plan(layer.shape, AttentionPlanner::Kind::kWriteAndAttend, sequences, options.certified);
  float* rows = static_cast<float*>(qkv.data);
  write_planned(layer, kv, sequences, plan.writes, rows);
  attend({layer, kv, plan, sequences, {}, rows, rows, options, static_cast<float*>(out.data)}, per_head);
}

void CpuBackend::attend(const Call& call, std::span<AttentionCounters> per_head) {
  const AttentionPlan& plan = call.plan;
  const int padded_dim = call.kv.layout.padded_dim;
  ensure_workers(padded_dim);
  for (auto& worker : workers_) worker->counters.assign(per_head.size(), {});
  const auto parts = static_cast<size_t>(plan.parts);
  partial_.resize(std::max(partial_.size(), parts * SoftmaxState::floats(padded_dim)));
  anchors_.resize(std::max(anchors_.size(), parts));

  if (plan.any_split()) attend_anchors(call);
  pool_.parallel_for_ahead(static_cast<int64_t>(plan.tasks.size()), [&](int64_t t, int64_t next, int w) {
    const AttentionTask& task = plan.tasks[static_cast<size_t>(t)];
    const int32_t end = task.block + task.num_blocks;
    const int32_t after = next >= 0 ? plan.tasks[static_cast<size_t>(next)].block : -1;
    for (int32_t b = task.block; b < end; ++b) {
      const int32_t following = b + 1 < end ? b + 1 : after;
      attend_block(call, plan.blocks[static_cast<size_t>(b)], task.segment,
                   following < 0 ? nullptr : &plan.blocks[static_cast<size_t>(following)],
                   *workers_[static_cast<size_t>(w)]);
    }
  });
  if (plan.any_split()) merge_parts(call, per_head);
  add_counters(call, per_head);
}

// What the segments of split blocks start from.
void CpuBackend::attend_anchors(const Call& call) {
  const std::vector<QueryBlock>& blocks = call.plan.blocks;
  pool_.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t b, int w) {
    const QueryBlock& block = blocks[static_cast<size_t>(b)];
    if (!block.split()) return;
    Worker& worker = *workers_[static_cast<size_t>(w)];
    AttentionItem item;
    load_block(call, block, worker, item);
    attention_.anchor(item, worker.attention, anchors_[static_cast<size_t>(block.first_part)],
                      part_state(block.first_part, call.kv.layout.padded_dim));
    count_block(block, worker);
  });
}

// One block, or one segment of a split one. following: what the same thread will read next.
void CpuBackend::attend_block(const Call& call, const QueryBlock& block, int64_t segment, const QueryBlock* following,
                              Worker& worker) {
  if (block.writes) {
    const SequenceRows& seq = call.sequence_of(block);
    write_tile(call.layer, call.kv, seq, block.diagonal_tile, block.kv_head, call.write_from);
    if (seq.start_pos % kTileKeys == kTileKeys - 1) chain_stats(call.layer, call.kv, seq, block.kv_head);
  }
  AttentionItem item;
  load_block(call, block, worker, item);
  if (following != nullptr) fetch_block(call, *following);
  if (segment < 0) {
    attend_whole(item, block, worker);
    store_block(call, block, worker.main_state());
    count_left_out(block, worker.main_state(), worker.counters);
  } else {
    const int64_t part = block.first_part + 1 + segment - block.first_segment();
    attention_.segment(item, segment, anchors_[static_cast<size_t>(block.first_part)], worker.attention,
                       part_state(part, call.kv.layout.padded_dim));
  }
  count_block(block, worker);
}

void CpuBackend::merge_parts(const Call& call, std::span<AttentionCounters> per_head) {
  const KvLayout& layout = call.kv.layout;
  for (const QueryBlock& block : call.plan.blocks) {
    if (!block.split()) continue;
    const SoftmaxState state = part_state(block.first_part, layout.padded_dim);
    for (int64_t s = block.last_segment() - 1; s >= block.first_segment(); --s) {
      attention_.merge(block.num_heads * block.num_positions, layout.padded_dim, in_integers(layout), state,
                       part_state(block.first_part + 1 + s - block.first_segment(), layout.padded_dim));
    }
    store_block(call, block, state);
    count_left_out(block, state, per_head);
  }
}

// What the workers counted; whatever could have been visited and was not has been skipped.
void CpuBackend::add_counters(const Call& call, std::span<AttentionCounters> per_head) const {
  for (const QueryBlock& block : call.plan.blocks) {
    for (int h = block.first_head; h < block.first_head + block.num_heads; ++h) {
      const int64_t first = call.layer.spec.window < 0 ? 0 : block.first_tile;
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
