#include "engine/stage_tables.h"

#include <algorithm>

namespace bam {

void StageTables::update(Table& table, const wire::PlanEntry& entry, const int32_t* pages) {
  const auto groups = static_cast<size_t>(geometry_.num_groups());
  if (entry.num_blocks > table.stride) {
    const int64_t stride = std::max(entry.num_blocks + 4, table.stride + table.stride / 2);
    std::vector<int32_t> entries(groups * static_cast<size_t>(stride), kNoPage);
    for (size_t g = 0; g < groups; ++g) {
      const auto from = table.entries.begin() + static_cast<int64_t>(g) * table.stride;
      std::copy(from, from + std::min(table.num_blocks, table.stride),
                entries.begin() + static_cast<int64_t>(g) * stride);
    }
    table.entries = std::move(entries);
    table.stride = stride;
    table.history.start_over(geometry_.num_groups());
  }
  table.first_live.resize(groups, 0);
  table.num_blocks = entry.num_blocks;
  for (int64_t b = entry.first_block; b < entry.num_blocks; ++b) table.history.note(-1, b);
  for (size_t g = 0; g < groups; ++g) {
    for (int64_t b = entry.first_block; b < entry.num_blocks; ++b, ++pages) {
      table.entries[g * static_cast<size_t>(table.stride) + static_cast<size_t>(b)] = *pages;
      if (*pages == kNoPage) table.first_live[g] = std::max(table.first_live[g], b + 1);
    }
  }
}

void StageTables::apply(const wire::StepPlan& plan, std::vector<SequenceRows>& rows) {
  ids_.clear();
  for (const wire::PlanEntry& entry : plan.entries) ids_.push_back(entry.table);
  std::ranges::sort(ids_);
  if (std::ranges::adjacent_find(ids_) != ids_.end()) throw wire::WireError("a plan has a sequence twice");
  for (const uint64_t id : plan.ended) tables_.erase(id);
  rows.clear();
  int64_t row = 0;
  const int32_t* pages = plan.pages.data();
  for (const wire::PlanEntry& entry : plan.entries) {
    auto found = tables_.find(entry.table);
    if (entry.first_block == 0) {
      if (found != tables_.end()) tables_.erase(found);
      found = tables_.try_emplace(entry.table).first;
    } else if (found == tables_.end() || found->second.num_blocks < entry.first_block) {
      throw wire::WireError("a plan goes on with a block table that is not there");
    }
    Table& table = found->second;
    update(table, entry, pages);
    pages += (entry.num_blocks - entry.first_block) * geometry_.num_groups();
    for (int g = 0; g < geometry_.num_groups(); ++g) {
      if (table.first_live[static_cast<size_t>(g)] > geometry_.first_needed_block(g, entry.start)) {
        throw wire::WireError("a plan reads or writes a page that is not there");
      }
    }
    rows.push_back({table.entries.data(), table.stride, row, entry.num_rows, entry.start, &table.history});
    row += entry.num_rows;
  }
}

}  // namespace bam
