#include "engine/attention_looks.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "engine/sequence.h"
#include "models/attention_probe.h"
#include "models/bam.h"

namespace bam {

void AttentionLooks::add(const Sequence& sequence, const std::string& request) {
  looks_.push_back({request, sequence.arrival, sequence.blocks.id, nullptr, 0});
}

bool AttentionLooks::advance(const Sequence& sequence, const AttentionLook& wanted, StepRunner& runner,
                             const StagedKv& kv, int64_t max_pages) {
  Look& look = looks_.front();
  const int64_t position = sequence.num_known() - 1;
  if (!look.walk) {
    std::vector<float> queries = runner.row_queries(sequence.blocks, sequence.tokens.back(), position);
    look.walk = std::make_unique<AttentionWalk>(AttentionProbe::specs(model_), wanted, position, std::move(queries));
    return false;
  }
  const std::vector<AttentionWalk::Group>& groups = look.walk->groups();
  const int64_t end = position / kv.page_size() + 1;
  const int64_t tiles = kv.page_size() / kTileKeys;
  const int64_t run = std::max<int64_t>(1, max_pages / tiles / static_cast<int64_t>(groups.size()));
  const int64_t end_block = std::min(end, look.next_block + run);
  size_t group = 0;
  int first_layer = 0;
  for (int stage = 0; stage < kv.num_stages(); ++stage) {
    const int layers = kv.stage(stage).geometry().num_groups() / static_cast<int>(model_.config().num_kv_heads);
    const size_t first_group = group;
    while (group < groups.size() && groups[group].layer < first_layer + layers) ++group;
    if (group > first_group) {
      read_stage(look, sequence, runner, kv, stage, first_group, group, first_layer, end_block);
    }
    first_layer += layers;
  }
  look.next_block = end_block;
  return end_block == end;
}

void AttentionLooks::read_stage(Look& look, const Sequence& sequence, StepRunner& runner, const StagedKv& kv, int stage,
                                size_t first_group, size_t end_group, int first_layer, int64_t end_block) {
  const BlockTable& table = sequence.blocks.stages[static_cast<size_t>(stage)];
  const KvLayout& layout = runner.layout();
  const KvGeometry& geometry = kv.stage(stage).geometry();
  const int64_t kv_heads = model_.config().num_kv_heads;
  pages_.clear();
  pieces_.clear();
  std::vector<size_t> first_piece;
  for (size_t g = first_group; g < end_group; ++g) {
    const AttentionWalk::Group& group = look.walk->groups()[g];
    const int64_t row = (group.layer - first_layer) * kv_heads + group.kv_head;
    first_piece.push_back(pieces_.size());
    // Pages out of reach may still be there, or not: what is seen must not depend on it.
    const int64_t reached = geometry.first_needed_block(static_cast<int>(row), sequence.num_known() - 1);
    for (int64_t block = std::max(look.next_block, reached); block < end_block; ++block) {
      const int32_t page = table.entries[static_cast<size_t>(row * table.stride + block)];
      if (page == kNoPage) continue;
      pages_.push_back(page);
      pieces_.push_back({g, block});
    }
  }
  first_piece.push_back(pieces_.size());
  bytes_.resize(pages_.size() * layout.page_bytes());
  runner.read_pages(stage, pages_, bytes_);
  const auto add_group = [&](int64_t i, int) {
    for (size_t p = first_piece[static_cast<size_t>(i)]; p < first_piece[static_cast<size_t>(i) + 1]; ++p) {
      look.walk->add(pieces_[p].group, pieces_[p].block * layout.page_size, layout,
                     bytes_.data() + p * layout.page_bytes());
    }
  };
  const auto count = static_cast<int64_t>(end_group - first_group);
  if (ThreadPool* pool = model_.backend().threads()) return pool->parallel_for(count, add_group);
  for (int64_t i = 0; i < count; ++i) add_group(i, 0);
}

}  // namespace bam
