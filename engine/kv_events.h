// What happened to the blocks of the prefix cache, for routers that send a prompt where its beginning is cached.
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace bam {

struct KvEvent {
  enum class Kind : uint8_t {
    kStored,   // a prompt that begins with this block's chain can be continued from it
    kRemoved,  // no longer
    kCleared,  // nothing that was said before counts
  };
  Kind kind = Kind::kCleared;
  uint64_t hash = 0;               // of the block and all before it
  std::optional<uint64_t> parent;  // kStored: of the block before it; nothing: it is a prompt's first
  std::vector<int32_t> tokens;     // kStored: of this block
};

// Events in order, until they are taken. Recording never throws: without memory, everything is declared gone.
class KvEventLog {
 public:
  void stored(uint64_t hash, std::optional<uint64_t> parent, const std::vector<int32_t>& tokens) noexcept {
    record([&] { events_.push_back({KvEvent::Kind::kStored, hash, parent, tokens}); });
  }
  void removed(uint64_t hash) noexcept {
    record([&] { events_.push_back({KvEvent::Kind::kRemoved, hash, std::nullopt, {}}); });
  }
  void cleared() noexcept {
    events_.clear();
    overflown_ = false;
    record([&] { events_.push_back({}); });
  }
  bool empty() const { return events_.empty() && !overflown_; }
  std::vector<KvEvent> take() {
    if (overflown_) events_.assign(1, KvEvent{});
    overflown_ = false;
    return std::exchange(events_, {});
  }

 private:
  template <typename F>
  void record(F append) noexcept {
    if (overflown_) return;
    try {
      append();
    } catch (const std::bad_alloc&) {
      events_.clear();
      overflown_ = true;
    }
  }

  std::vector<KvEvent> events_;
  bool overflown_ = false;
};

}  // namespace bam
