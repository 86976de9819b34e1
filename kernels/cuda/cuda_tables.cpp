// Block tables on the device: copies that stay and take over changes, or whole tables among a step's inputs.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/cuda_backend.h"

namespace bam::cuda {
namespace {

// Changed table entries that travel with a recorded step's inputs. More take a copy and a launch of their own.
constexpr size_t kPatchRoom = 512;

}  // namespace

void CudaBackend::refresh_table(const SequenceRows& sequence) {
  const TableHistory& history = *sequence.history;
  const int64_t stride = sequence.table_stride;
  const auto entries = static_cast<size_t>(history.num_groups() * stride);
  ResidentTable& table = resident_[history.id()];
  table.last_step = steps_;
  const auto changes = table.memory.data() == nullptr ? std::nullopt : history.since(table.version);
  if (!changes) {
    if (table.memory.data() == nullptr) {
      table.memory = DeviceMemory(entries * sizeof(int32_t));
      resident_bytes_ += table.memory.size();
    }
    // Ahead of what is recorded: nothing there has read this table.
    uploads_.copy(table.memory.data(), sequence.block_table, entries * sizeof(int32_t), stream_.get());
  } else {
    for (const TableHistory::Change& change : *changes) {
      const int64_t first = change.group < 0 ? 0 : change.group;
      const int64_t end = change.group < 0 ? history.num_groups() : first + 1;
      for (int64_t group = first; group < end; ++group) {
        const int64_t at = group * stride + change.block;
        patches_.push_back({table.memory.as<int32_t>() + at, sequence.block_table[at]});
      }
    }
  }
  table.version = history.version();
}

void CudaBackend::apply_patches() {
  if (patches_.empty()) return;
  const auto bytes = patches_.size() * sizeof(TablePatch);
  auto* device = patch_memory_.reserve<TablePatch>(patches_.size());
  uploads_.copy(device, patches_.data(), bytes, stream_.get());
  patch_tables(device, static_cast<int>(patches_.size()), stream_.get());
  patches_.clear();
}

void CudaBackend::refresh_tables(std::span<const SequenceRows> sequences) {
  for (const SequenceRows& sequence : sequences) {
    if (sequence.history == nullptr) continue;
    const auto known = resident_.find(sequence.history->id());
    if (known != resident_.end() && known->second.version == sequence.history->version()) {
      known->second.last_step = steps_;
    } else {
      refresh_table(sequence);
    }
  }
  while (resident_bytes_ > kMaxResidentBytes) {
    const auto oldest = std::min_element(resident_.begin(), resident_.end(), [](const auto& a, const auto& b) {
      return a.second.last_step < b.second.last_step;
    });
    if (oldest->second.last_step == steps_) break;
    resident_bytes_ -= oldest->second.memory.size();
    retired_.push_back(std::move(oldest->second.memory));  // an earlier step may still read it
    resident_.erase(oldest);
  }
  // An entry that changed twice is written once.
  std::ranges::sort(patches_, {}, &TablePatch::at);
  patches_.erase(std::unique(patches_.begin(), patches_.end(), [](auto& a, auto& b) { return a.at == b.at; }),
                 patches_.end());
  if (!graph_.recording() || refreshed_) return apply_patches();
  refreshed_ = true;
  // The launches of a recorded step are always the same, whether anything has changed or not.
  if (patches_.size() > kPatchRoom) apply_patches();
  patches_.resize(kPatchRoom, {nullptr, 0});
  patch_tables(upload(std::span<const TablePatch>(patches_)), static_cast<int>(kPatchRoom), queue());
  patches_.clear();
}

CudaBackend::Table CudaBackend::upload_table(const AttentionSpec& spec, const SequenceRows& sequence, int64_t num_tiles,
                                             const KvLayout& layout) {
  Table table;
  table.source = sequence.block_table + spec.first_group * sequence.table_stride;
  table.source_stride = sequence.table_stride;
  if (sequence.history != nullptr) {
    table.num_pages = sequence.table_stride;
    table.host = table.source;
    table.device = resident_.at(sequence.history->id()).memory.as<int32_t>() + spec.first_group * sequence.table_stride;
    return table;
  }
  table.num_pages = (num_tiles + layout.tiles_per_page() - 1) / layout.tiles_per_page();
  const auto bytes = static_cast<size_t>(table.num_pages) * sizeof(int32_t);
  // Writing K and V and attending to them need the same table; its entries may have changed since.
  const auto [first, last] = tables_.equal_range(table.source);
  for (auto it = first; it != last; ++it) {
    const Table& known = it->second;
    ++tables_compared_;
    if (known.source_stride != table.source_stride || known.num_pages != table.num_pages) continue;
    bool same = true;
    for (int64_t head = 0; head < spec.num_kv_heads && same; ++head) {
      same = std::memcmp(known.host + head * table.num_pages, table.source + head * table.source_stride, bytes) == 0;
    }
    if (same) return known;
  }
  const Staging::Slice slice = staging_.take(bytes * static_cast<size_t>(spec.num_kv_heads));
  for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
    std::memcpy(static_cast<int32_t*>(slice.host) + head * table.num_pages, table.source + head * table.source_stride,
                bytes);
  }
  send(slice, bytes * static_cast<size_t>(spec.num_kv_heads));
  table.host = static_cast<const int32_t*>(slice.host);
  table.device = static_cast<const int32_t*>(slice.device);
  tables_.emplace(table.source, table);
  return table;
}

}  // namespace bam::cuda
