// Ownership of the physical KV pages. Every page is in exactly one of three states:
//
//   free     nobody wants its contents
//   cached   no sequence uses it, but the prefix cache knows it; in LRU order, may be evicted at any time
//   used     one or more sequences hold a reference (it may be known to the prefix cache as well)
//
// free + cached + used == total, always. Used by the engine thread only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/paged_kv.h"

namespace bam {

// Where the prefix cache keeps a page.
struct PageOwner {
  int32_t node = -1;  // -1: not published
  int32_t group = -1;
};

class BlockPool {
 public:
  explicit BlockPool(int64_t num_pages);

  int64_t num_total() const { return static_cast<int64_t>(pages_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_used() const { return num_used_; }
  int64_t num_available() const { return num_free() + num_cached(); }

  // A page with one reference, unpublished; kNoPage when every page is used. When the page had to be taken from the
  // cache (oldest first), *evicted says who published it; the caller must make its owner forget it.
  int32_t allocate(PageOwner* evicted);
  void add_ref(int32_t page);
  // The last release makes the page cached if it is published (most recently used), else free.
  void release(int32_t page);

  void publish(int32_t page, PageOwner owner);
  // The owner forgets the page: a cached one becomes free, a used one will when it is released.
  void unpublish(int32_t page);

  int32_t ref_count(int32_t page) const { return pages_[static_cast<size_t>(page)].refs; }
  PageOwner owner(int32_t page) const { return pages_[static_cast<size_t>(page)].owner; }

  // Empty when every invariant holds, else what is wrong. O(pages).
  std::string check_integrity() const;

 private:
  struct Page {
    int32_t refs = 0;
    PageOwner owner;
    int32_t prev = kNoPage, next = kNoPage;  // LRU list, cached pages only
  };

  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  void lru_append(int32_t page);
  void lru_remove(int32_t page);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // stack: recently used pages first, so that little memory is ever touched
  int32_t lru_head_ = kNoPage, lru_tail_ = kNoPage;  // oldest, newest
  int64_t num_cached_ = 0;
  int64_t num_used_ = 0;
};

}  // namespace bam
