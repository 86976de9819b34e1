// Writing K and V of a step's rows into their pages.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace bam::cpu {

void CpuBackend::write_tile(const CpuAttention& layer, const KvCacheView& kv, const SequenceRows& seq,
                            int64_t tile_index, int head, float* qkv) {
  const AttentionSpec& spec = layer.spec;
  const int64_t ld = spec.qkv_width();
  const int64_t k_begin = int64_t{spec.num_heads + head} * spec.head_dim;
  const int64_t v_begin = k_begin + int64_t{spec.num_kv_heads} * spec.head_dim;
  const int64_t begin = std::max(seq.start_pos, tile_index * kTileKeys);
  const int64_t end = std::min(seq.start_pos + seq.num_rows, (tile_index + 1) * kTileKeys);
  float* row = qkv + (seq.row_begin + begin - seq.start_pos) * ld;
  if (layer.rope != nullptr) {
    const int group = spec.num_heads / spec.num_kv_heads;
    for (int64_t p = begin; p < end; ++p) {
      float* at = row + (p - begin) * ld;
      for (int h = head * group; h < (head + 1) * group; ++h) layer.rope->rotate(p, at + int64_t{h} * spec.head_dim);
      layer.rope->rotate(p, at + k_begin);
    }
  }
  const int32_t* pages = seq.block_table + (spec.first_group + head) * seq.table_stride;
  BAM_CHECK(pages[tile_index / kv.layout.tiles_per_page()] != kNoPage);
  std::byte* tile = tile_at(kv.layout, kv.base, pages, tile_index);
  kv_store_.store_tile_rows(kv.layout, tile, static_cast<int>(begin % kTileKeys),
                            {.k = row + k_begin,
                             .v = row + v_begin,
                             .count = static_cast<int>(end - begin),
                             .head_dim = spec.head_dim,
                             .stride = ld});
  if (end % kTileKeys == 0) kv_store_.finish_tile_stats(kv.layout, tile);
}

void CpuBackend::chain_stats(const CpuAttention& layer, const KvCacheView& kv, const SequenceRows& seq, int head) {
  const KvLayout& layout = kv.layout;
  const int32_t* pages = seq.block_table + (layer.spec.first_group + head) * seq.table_stride;
  const int64_t full_end = (seq.start_pos + seq.num_rows) / kTileKeys;
  const auto stats_of = [&](int64_t t) {
    return reinterpret_cast<KeyStats*>(tile_at(layout, kv.base, pages, t) + layout.stats_offset);
  };
  for (int64_t t = seq.start_pos / kTileKeys; t < full_end; ++t) {
    KeyStats* stats = stats_of(t);
    if (t > 0) stats->max_norm_prefix = larger_or_nan(stats->max_norm_prefix, stats_of(t - 1)->max_norm_prefix);
    if (!layer.use_super[static_cast<size_t>(head)] || t % kSuperTiles != kSuperTiles - 1) continue;
    const std::byte* tiles16[kSuperTiles];
    for (int i = 0; i < kSuperTiles; ++i) tiles16[i] = tile_at(layout, kv.base, pages, t - kSuperTiles + 1 + i);
    finish_super_stats(layout, tiles16, tile_at(layout, kv.base, pages, t));
  }
}

void CpuBackend::write_planned(const CpuAttention& layer, const KvCacheView& kv,
                               std::span<const SequenceRows> sequences, const WritePlan& plan, float* qkv) {
  // One row of one head is too little to hand out by itself when there are many.
  const int64_t heads = layer.spec.num_kv_heads, tiles = static_cast<int64_t>(plan.tiles.size());
  const int64_t heads_at_once = tiles >= 8 * pool_.num_threads() ? heads : 1;
  const int64_t groups = (heads + heads_at_once - 1) / heads_at_once;
  pool_.parallel_for(tiles * groups, [&](int64_t item, int) {
    const WrittenTile& written = plan.tiles[static_cast<size_t>(item / groups)];
    const SequenceRows& seq = sequences[static_cast<size_t>(written.sequence)];
    const int64_t first = item % groups * heads_at_once;
    for (int64_t h = first; h < std::min(first + heads_at_once, heads); ++h)
      write_tile(layer, kv, seq, written.tile, static_cast<int>(h), qkv);
  });
  pool_.parallel_for(static_cast<int64_t>(plan.completing.size()) * heads, [&](int64_t item, int) {
    const int32_t sequence = plan.completing[static_cast<size_t>(item / heads)];
    chain_stats(layer, kv, sequences[static_cast<size_t>(sequence)], static_cast<int>(item % heads));
  });
}

void CpuBackend::do_write_kv(const AttentionLayer& layer, const KvCacheView& kv,
                             std::span<const SequenceRows> sequences, OperandRows qkv) {
  writes_.clear();
  for (size_t s = 0; s < sequences.size(); ++s) writes_.add(sequences, s);
  write_planned(static_cast<const CpuAttention&>(layer), kv, sequences, writes_, static_cast<float*>(qkv.data));
}

}  // namespace bam::cpu
