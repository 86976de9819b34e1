// Weights that come next, fetched while the current ones are multiplied.
#pragma once

#include <algorithm>
#include <cstdint>

namespace bam::cpu {

inline constexpr int64_t kLineBytes = 64;

// Two panels that come next. Each register tile of the current two fetches its share of them into the second-level
// cache: otherwise the first tile would wait for memory and memory would wait for the others.
struct Share {
  const char* at;
  int64_t step;  // bytes per row of k, may be 0

  template <int kLines>
  __attribute__((always_inline)) void Fetch() {
#pragma GCC unroll 2
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(at + line * kLineBytes, 0, 2);
    at += step;
  }
};
class NextPanels {
 public:
  // `tiles` register tiles of `depth` steps each work on the current panels; `second` follows `first`.
  NextPanels(const void* first, const void* second, int64_t bytes, int64_t tiles, int64_t depth)
      : panel_{static_cast<const char*>(first), static_cast<const char*>(second)},
        for_first_((tiles + 1) / 2),
        depth_(depth) {
    const int64_t for_second = std::max<int64_t>(tiles - for_first_, 1);
    step_[0] = (bytes + for_first_ * depth - 1) / (for_first_ * depth);
    step_[1] = (bytes + for_second * depth - 1) / (for_second * depth);
  }
  // Nothing comes next: `harmless` is fetched instead.
  explicit NextPanels(const void* harmless)
      : panel_{static_cast<const char*>(harmless), static_cast<const char*>(harmless)} {}

  Share Tile(int64_t tile) const {
    const int q = tile < for_first_ ? 0 : 1;
    return {panel_[q] + (tile - q * for_first_) * depth_ * step_[q], step_[q]};
  }

 private:
  const char* panel_[2];
  int64_t for_first_ = 0, depth_ = 0;
  int64_t step_[2] = {0, 0};
};

}  // namespace bam::cpu
