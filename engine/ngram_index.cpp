#include "engine/ngram_index.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/check.h"

namespace bam {

NgramIndex::NgramIndex(int length, int64_t expected)
    : length_(length),
      mask_(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(2 * expected, 64, kMaxSlots))) - 1),
      slots_(static_cast<uint32_t*>(std::calloc(mask_ + 1, sizeof(uint32_t)))) {
  BAM_CHECK(length >= 1);
  if (!slots_) throw std::bad_alloc();
}

size_t NgramIndex::slot_of(const int32_t* ngram) const {
  uint64_t h = 0;
  for (int i = 0; i < length_; ++i) {
    h = (h ^ static_cast<uint32_t>(ngram[i])) * 0x9e3779b97f4a7c15;
    h ^= h >> 32;
  }
  return h & mask_;
}

int64_t NgramIndex::extend(std::span<const int32_t> tokens, int64_t begin, int64_t end, int64_t limit) {
  if (next_ == 0) next_ = std::max<int64_t>(begin, length_);
  const int64_t until = std::min(std::min(end, static_cast<int64_t>(tokens.size())), next_ + limit);
  const int64_t first = next_;
  for (; next_ < until; ++next_) {
    slots_[slot_of(&tokens[static_cast<size_t>(next_ - length_)])] = static_cast<uint32_t>(next_);
  }
  return next_ - first;
}

int64_t NgramIndex::find(std::span<const int32_t> tokens) const {
  const int64_t size = static_cast<int64_t>(tokens.size());
  if (size < length_) return -1;
  const auto last = tokens.last(static_cast<size_t>(length_));
  const int64_t at = slots_[slot_of(last.data())];
  if (at == 0 || at >= size) return -1;
  return std::ranges::equal(last, tokens.subspan(static_cast<size_t>(at - length_), last.size())) ? at : -1;
}

}  // namespace bam
