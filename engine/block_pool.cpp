#include "engine/block_pool.h"

#include <limits>

#include <fmt/format.h>

#include "base/check.h"

namespace bam {

BlockPool::BlockPool(int64_t num_pages) : pages_(static_cast<size_t>(num_pages)) {
  BAM_CHECK(num_pages >= 0 && num_pages <= std::numeric_limits<int32_t>::max());
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int32_t BlockPool::allocate(PageOwner* evicted) {
  *evicted = PageOwner{};
  int32_t page = kNoPage;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (lru_head_ != kNoPage) {
    page = lru_head_;
    lru_remove(page);
    *evicted = at(page).owner;
    at(page).owner = PageOwner{};
  } else {
    return kNoPage;
  }
  at(page).refs = 1;
  ++num_used_;
  return page;
}

void BlockPool::add_ref(int32_t page) {
  Page& p = at(page);
  if (p.refs == 0) {
    BAM_CHECK_MSG(p.owner.node >= 0, "reference to a free page");
    lru_remove(page);
    ++num_used_;
  }
  ++p.refs;
}

void BlockPool::release(int32_t page) {
  Page& p = at(page);
  BAM_CHECK_MSG(p.refs > 0, "page released twice");
  if (--p.refs > 0) return;
  --num_used_;
  if (p.owner.node >= 0) {
    lru_append(page);
  } else {
    free_.push_back(page);
  }
}

void BlockPool::publish(int32_t page, PageOwner owner) {
  Page& p = at(page);
  BAM_CHECK_MSG(p.refs > 0 && p.owner.node < 0 && owner.node >= 0, "only an unpublished page in use can be published");
  p.owner = owner;
}

void BlockPool::unpublish(int32_t page) {
  Page& p = at(page);
  BAM_CHECK_MSG(p.owner.node >= 0, "page is not published");
  p.owner = PageOwner{};
  if (p.refs == 0) {
    lru_remove(page);
    free_.push_back(page);
  }
}

void BlockPool::lru_append(int32_t page) {
  Page& p = at(page);
  p.prev = lru_tail_;
  p.next = kNoPage;
  (lru_tail_ == kNoPage ? lru_head_ : at(lru_tail_).next) = page;
  lru_tail_ = page;
  ++num_cached_;
}

void BlockPool::lru_remove(int32_t page) {
  Page& p = at(page);
  (p.prev == kNoPage ? lru_head_ : at(p.prev).next) = p.next;
  (p.next == kNoPage ? lru_tail_ : at(p.next).prev) = p.prev;
  p.prev = p.next = kNoPage;
  --num_cached_;
}

std::string BlockPool::check_integrity() const {
  if (num_free() + num_cached_ + num_used_ != num_total()) {
    return fmt::format("free {} + cached {} + used {} != total {}", num_free(), num_cached_, num_used_, num_total());
  }
  std::vector<uint8_t> seen(pages_.size(), 0);
  for (int32_t page : free_) {
    const Page& p = pages_[static_cast<size_t>(page)];
    if (p.refs != 0 || p.owner.node >= 0) return fmt::format("free page {} is in use", page);
    if (seen[static_cast<size_t>(page)]++) return fmt::format("page {} is free twice", page);
  }
  int64_t cached = 0;
  int32_t prev = kNoPage;
  for (int32_t page = lru_head_; page != kNoPage; page = pages_[static_cast<size_t>(page)].next) {
    const Page& p = pages_[static_cast<size_t>(page)];
    if (p.refs != 0 || p.owner.node < 0) return fmt::format("page {} must not be in the LRU", page);
    if (p.prev != prev) return fmt::format("LRU links of page {} are broken", page);
    if (seen[static_cast<size_t>(page)]++) return fmt::format("page {} is listed twice", page);
    prev = page;
    if (++cached > num_cached_) return "the LRU list has a cycle or too many pages";
  }
  if (cached != num_cached_ || prev != lru_tail_) return "the LRU list lost pages";
  for (size_t page = 0; page < pages_.size(); ++page) {
    if ((pages_[page].refs > 0) == (seen[page] != 0)) {
      return fmt::format("page {} with {} references is {}listed", page, pages_[page].refs, seen[page] ? "" : "not ");
    }
  }
  return {};
}

}  // namespace bam
