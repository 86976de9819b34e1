#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "server/grammar/automaton.h"

namespace bam::constraints {

// A set of 64-bit keys that is emptied in constant time.
class StampedSet {
 public:
  void clear();
  bool insert(uint64_t key);  // false: it was there
  size_t size() const { return size_; }

 private:
  void grow();
  struct Slot {
    uint64_t key = 0;
    uint32_t stamp = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(256);
  uint32_t stamp_ = 1;  // slots with another stamp are free
  size_t size_ = 0;
};

// The deterministic form of an Automaton, built as it is walked. A configuration is a set of items
// (state, stack of open calls); stacks and configurations are stored once each, so that equal ones
// have equal ids. Not thread-safe.
//
// Nothing is ever removed: the owner watches size_bytes() and starts a new one, taking over the
// configurations it still needs with adopt().
class LazyDfa {
 public:
  using ConfigId = uint32_t;
  static constexpr ConfigId kDead = 0;
  // Thrown where going on would exceed the limit of work. What is known stays valid.
  struct OutOfWork {};

  // Throws OutOfWork when finding the first configuration takes more than `max_work`.
  LazyDfa(const Automaton& automaton, uint64_t max_work);

  ConfigId initial() const { return initial_; }
  ConfigId step(ConfigId from, uint8_t byte) {
    const ConfigId known = next_[size_t{from} * num_classes_ + automaton_.class_of(byte)];
    return known != kUnknown ? known : compute_step(from, automaton_.class_of(byte));
  }
  // The text may end here.
  bool accepting(ConfigId id) const { return configs_[id].accepting; }
  // No byte may follow.
  bool exhausted(ConfigId id) const { return configs_[id].num_items == 0; }
  // The id here of a configuration that lives in another LazyDfa of the same Automaton.
  ConfigId adopt(const LazyDfa& other, ConfigId id);

  size_t size_bytes() const;
  // Automaton states looked at so far: a measure of time that does not depend on the machine. step() throws OutOfWork
  // rather than going beyond the limit.
  uint64_t work() const { return work_; }
  void limit_work(uint64_t limit) { work_limit_ = limit; }
  // Counts work, the caller's included.
  void spend(uint64_t work) {
    work_ += work;
    if (work_ > work_limit_) throw OutOfWork{};
  }

 private:
  using StackId = uint32_t;
  struct Frame {
    State return_to;
    StackId below;
    uint16_t depth;
  };
  struct Item {
    State state;
    StackId stack;
    auto operator<=>(const Item&) const = default;
  };
  static_assert(std::has_unique_object_representations_v<Item>);  // hashed as bytes
  struct Config {
    uint32_t first_item, num_items;
    uint64_t hash;
    bool accepting;
  };
  static constexpr ConfigId kUnknown = 0xFFFFFFFF;

  ConfigId compute_step(ConfigId from, uint8_t byte_class);
  StackId push(StackId below, State return_to);
  // Turns todo_ into items_, all that is reached without reading; true when the text may end.
  bool close();
  bool completable(const Item& item) const;
  ConfigId intern(bool accepting);
  void grow_table();

  const Automaton& automaton_;
  const uint32_t num_classes_;
  std::vector<Frame> frames_;  // frames_[0]: the empty stack
  std::unordered_map<uint64_t, StackId> frame_ids_;
  std::vector<Item> item_pool_;
  std::vector<Config> configs_;
  std::vector<ConfigId> next_;   // [configs, classes]
  std::vector<ConfigId> table_;  // open addressing by hash; kDead: free slot
  ConfigId initial_ = kDead;
  uint64_t work_ = 0;
  uint64_t work_limit_;

  std::vector<Item> items_, todo_;  // scratch of close()
  StampedSet visited_;
};

}  // namespace bam::constraints
