// The shape of the KV cache and how many pages a number of tokens needs. Plain arithmetic, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bam {

class KvGeometry {
 public:
  // reach[g]: a query never needs keys of group g further back than this; -1: it may need all of them.
  // max_chunk: most tokens computed by one sequence in one step.
  KvGeometry(int page_size, std::vector<int64_t> reach, int64_t max_chunk);

  int page_size() const { return page_size_; }
  int num_groups() const { return static_cast<int>(window_blocks_.size()); }
  bool unbounded(int group) const { return window_blocks_[static_cast<size_t>(group)] < 0; }
  const std::vector<int64_t>& reach() const { return reach_; }

  int64_t blocks_for(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }
  // The oldest block of a group that queries at positions >= position may still read.
  int64_t first_needed_block(int group, int64_t position) const;
  // Most pages one sequence of `tokens` tokens holds at any time, with pages freed as the reach passes them.
  int64_t pages_for(int64_t tokens) const;
  // The longest sequence that `pages` pages can hold alone, at most kMaxPositions.
  int64_t max_tokens(int64_t pages) const;

 private:
  int page_size_;
  int64_t chunk_blocks_;  // blocks one chunk can touch beyond the window
  std::vector<int64_t> reach_;
  std::vector<int64_t> window_blocks_;                     // [groups] whole blocks behind the newest; -1: all
  std::vector<std::pair<int64_t, int64_t>> window_sizes_;  // (window_blocks, groups that have it)
};

}  // namespace bam
