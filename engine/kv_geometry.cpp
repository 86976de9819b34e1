#include "engine/kv_geometry.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "kernels/paged_kv.h"
#include "kernels/position.h"

namespace bam {

KvGeometry::KvGeometry(int page_size, std::vector<int64_t> reach, int64_t max_chunk)
    : page_size_(page_size), reach_(std::move(reach)) {
  BAM_CHECK(page_size > 0 && page_size % kTileKeys == 0 && !reach_.empty() && max_chunk > 0);
  chunk_blocks_ = blocks_for(max_chunk) + 1;
  std::map<int64_t, int64_t> sizes;
  for (const int64_t r : reach_) {
    // Statistics of a tile chain to the previous one, so the two newest tiles always stay.
    const int64_t window = r < 0 ? -1 : blocks_for(std::max<int64_t>(r, 2 * kTileKeys));
    window_blocks_.push_back(window);
    ++sizes[window];
  }
  window_sizes_.assign(sizes.begin(), sizes.end());
}

int64_t KvGeometry::first_needed_block(int group, int64_t position) const {
  const int64_t window = window_blocks_[static_cast<size_t>(group)];
  return window < 0 ? 0 : std::max<int64_t>(0, position / page_size_ - window);
}

int64_t KvGeometry::pages_for(int64_t tokens) const {
  const int64_t blocks = blocks_for(tokens);
  int64_t pages = 0;
  for (const auto& [window, groups] : window_sizes_) {
    pages += groups * (window < 0 ? blocks : std::min(blocks, window + chunk_blocks_));
  }
  return pages;
}

int64_t KvGeometry::max_tokens(int64_t pages) const {
  int64_t fits = 0, too_many = blocks_for(kMaxPositions) + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (pages_for(middle * page_size_) <= pages ? fits : too_many) = middle;
  }
  return std::min(fits * page_size_, kMaxPositions);
}

}  // namespace bam
