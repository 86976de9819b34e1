// Rows that are computed and whose token is still to be sampled, because the masks of their step had cost enough. Their
// sequences have no row to compute, as if one were on its way, and keep their slot and their pages; who loses these
// computes the row again. Engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/sequence.h"

namespace bam {

class DeferredSamples {
 public:
  struct Entry {
    Sequence* sequence = nullptr;
    uint64_t stay = 0;            // of its sequence in the cache: good while that is live
    int64_t rejected_drafts = 0;  // that its step computed in vain
    std::vector<float> logits;    // [vocab]
    const float* row = nullptr;   // = logits.data()
    Sample sample{.status = SampleStatus::kDeferred};
  };

  void add(Sequence& sequence, std::span<const float> logits, int64_t rejected_drafts) {
    Entry entry{.sequence = &sequence, .stay = sequence.blocks.id, .rejected_drafts = rejected_drafts};
    if (!spare_.empty()) {
      entry.logits = std::move(spare_.back());
      spare_.pop_back();
    }
    entry.logits.assign(logits.begin(), logits.end());
    entry.row = entry.logits.data();
    entries_.push_back(std::move(entry));
  }
  // Who has waited longest comes first.
  std::span<Entry> entries() { return entries_; }
  bool empty() const { return entries_.empty(); }
  // Those that are sampled, or whose sequence is_live(stay) denies.
  template <typename F>
  void drop_done(F is_live) {
    const auto done = [&](Entry& entry) {
      if (entry.sample.status == SampleStatus::kDeferred && is_live(entry.stay)) return false;
      if (spare_.size() < kSpareRows) spare_.push_back(std::move(entry.logits));
      return true;
    };
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), done), entries_.end());
  }
  void clear() { entries_.clear(); }

 private:
  static constexpr size_t kSpareRows = 64;

  std::vector<Entry> entries_;
  std::vector<std::vector<float>> spare_;  // rows to be used again
};

}  // namespace bam
