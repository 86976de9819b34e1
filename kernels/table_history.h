// What became of a block table: a device that keeps a copy takes over the changes alone instead of the whole table.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <vector>

namespace bam {

// Whoever writes the table notes it here. Used by one thread at a time.
class TableHistory {
 public:
  struct Change {
    int32_t group;  // -1: that block of every group
    int32_t block;
  };

  TableHistory() = default;
  // A copy is another table, which goes its own way.
  TableHistory(const TableHistory& other) : num_groups_(other.num_groups_) {}
  TableHistory& operator=(const TableHistory& other) {
    start_over(other.num_groups_);
    return *this;
  }

  uint64_t id() const { return id_; }  // never used again for other contents
  int64_t num_groups() const { return num_groups_; }
  uint64_t version() const { return dropped_ + changes_.size(); }

  // Never fails: the page is in the table already. Without memory for the change, copies take the whole table.
  void note(int64_t group, int64_t block) noexcept {
    // The newer half is kept: whoever is further behind takes the whole table.
    if (changes_.size() == kMost) {
      changes_.erase(changes_.begin(), changes_.begin() + kMost / 2);
      dropped_ += kMost / 2;
    }
    try {
      changes_.push_back({static_cast<int32_t>(group), static_cast<int32_t>(block)});
    } catch (const std::bad_alloc&) {
      start_over(num_groups_);
    }
  }
  // Nothing of before holds: other contents, or another stride.
  void start_over(int64_t num_groups) {
    id_ = next_id();
    num_groups_ = num_groups;
    changes_.clear();
    dropped_ = 0;
  }
  // Changes after `version`, oldest first, some maybe twice; nullopt: not known any more.
  std::optional<std::span<const Change>> since(uint64_t version) const {
    if (version < dropped_ || version > this->version()) return std::nullopt;
    return std::span(changes_).subspan(version - dropped_);
  }

 private:
  static constexpr size_t kMost = 1024;
  static uint64_t next_id() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
  uint64_t id_ = next_id();
  int64_t num_groups_ = 0;
  std::vector<Change> changes_;
  uint64_t dropped_ = 0;
};

}  // namespace bam
