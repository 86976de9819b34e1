#include "server/grammar/lazy_dfa.h"

#include <algorithm>
#include <span>

#include "base/hash.h"

namespace bam::constraints {
namespace {

// What is only read or written in a row takes so much less time than following one edge.
constexpr uint64_t kEdgesPerWork = 8;
constexpr uint64_t kTransitionsPerWork = 16;

}  // namespace

void StampedSet::clear() {
  size_ = 0;
  if (++stamp_ == 0) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    stamp_ = 1;
  }
}

bool StampedSet::insert(uint64_t key) {
  if (2 * size_ >= slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  size_t i = hash_number(key) & mask;
  for (; slots_[i].stamp == stamp_; i = (i + 1) & mask) {
    if (slots_[i].key == key) return false;
  }
  slots_[i] = {key, stamp_};
  ++size_;
  return true;
}

void StampedSet::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.stamp != stamp_) continue;
    size_t i = hash_number(slot.key) & mask;
    while (slots_[i].stamp == stamp_) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

LazyDfa::LazyDfa(const Automaton& automaton, uint64_t max_work)
    : automaton_(automaton), num_classes_(automaton.num_classes()), work_limit_(max_work) {
  frames_.push_back({.return_to = 0, .below = 0, .depth = 0});
  configs_.push_back({.first_item = 0, .num_items = 0, .hash = 0, .accepting = false});
  next_.assign(num_classes_, kDead);
  table_.assign(256, kDead);
  todo_.push_back({automaton.root(), 0});
  initial_ = intern(close());
}

bool LazyDfa::completable(const Item& item) const {
  return frames_[item.stack].depth + automaton_.height(item.state) <= automaton_.max_depth();
}

LazyDfa::StackId LazyDfa::push(StackId below, State return_to) {
  const uint64_t key = (uint64_t{below} << 32) | return_to;
  const auto [it, added] = frame_ids_.try_emplace(key, static_cast<StackId>(frames_.size()));
  if (added) {
    const auto depth = static_cast<uint16_t>(frames_[below].depth + 1);
    frames_.push_back({.return_to = return_to, .below = below, .depth = depth});
  }
  return it->second;
}

bool LazyDfa::close() {
  items_.clear();
  visited_.clear();
  bool accepting = false;
  while (!todo_.empty()) {
    spend(1);
    const Item item = todo_.back();
    todo_.pop_back();
    if (!completable(item) || !visited_.insert((uint64_t{item.stack} << 32) | item.state)) continue;
    if (!automaton_.byte_edges(item.state).empty()) items_.push_back(item);
    if (automaton_.is_end(item.state)) {
      if (item.stack == 0) {
        accepting = true;
      } else {
        todo_.push_back({frames_[item.stack].return_to, frames_[item.stack].below});
      }
    }
    for (State to : automaton_.epsilons(item.state)) todo_.push_back({to, item.stack});
    for (const auto& call : automaton_.calls(item.state)) {
      if (!completable({call.to, item.stack})) continue;
      // Nothing is left to do in this rule after a last call: its frame would only be popped
      // through.
      const bool last = automaton_.is_end(call.to) && automaton_.byte_edges(call.to).empty() &&
                        automaton_.epsilons(call.to).empty() && automaton_.calls(call.to).empty();
      const State start = automaton_.rule_start(call.rule);
      if (last) {
        todo_.push_back({start, item.stack});
      } else if (frames_[item.stack].depth < automaton_.max_depth()) {
        todo_.push_back({start, push(item.stack, call.to)});
      }
    }
  }
  std::sort(items_.begin(), items_.end());
  return accepting;
}

LazyDfa::ConfigId LazyDfa::intern(bool accepting) {
  if (items_.empty() && !accepting) return kDead;
  const uint64_t hash = hash_bytes(std::as_bytes(std::span(items_)), accepting);
  const size_t mask = table_.size() - 1;
  size_t slot = hash & mask;
  for (; table_[slot] != kDead; slot = (slot + 1) & mask) {
    const Config& config = configs_[table_[slot]];
    if (config.hash != hash || config.accepting != accepting || config.num_items != items_.size()) {
      continue;
    }
    if (std::equal(items_.begin(), items_.end(), item_pool_.begin() + config.first_item)) {
      return table_[slot];
    }
  }
  const auto id = static_cast<ConfigId>(configs_.size());
  table_[slot] = id;
  configs_.push_back({.first_item = static_cast<uint32_t>(item_pool_.size()),
                      .num_items = static_cast<uint32_t>(items_.size()),
                      .hash = hash,
                      .accepting = accepting});
  item_pool_.insert(item_pool_.end(), items_.begin(), items_.end());
  next_.resize(next_.size() + num_classes_, kUnknown);
  work_ += num_classes_ / kTransitionsPerWork;
  if (configs_.size() * 2 > table_.size()) grow_table();
  return id;
}

void LazyDfa::grow_table() {
  table_.assign(table_.size() * 2, kDead);
  const size_t mask = table_.size() - 1;
  for (ConfigId id = 1; id < configs_.size(); ++id) {
    size_t slot = configs_[id].hash & mask;
    while (table_[slot] != kDead) slot = (slot + 1) & mask;
    table_[slot] = id;
  }
}

LazyDfa::ConfigId LazyDfa::compute_step(ConfigId from, uint8_t byte_class) {
  const Config& config = configs_[from];
  todo_.clear();
  for (uint32_t i = 0; i < config.num_items; ++i) {
    const Item item = item_pool_[config.first_item + i];
    const auto edges = automaton_.byte_edges(item.state);
    spend(1 + edges.size() / kEdgesPerWork);
    for (const auto& edge : edges) {
      if (edge.lo <= byte_class && byte_class <= edge.hi) todo_.push_back({edge.to, item.stack});
    }
  }
  const ConfigId to = todo_.empty() ? kDead : intern(close());
  next_[size_t{from} * num_classes_ + byte_class] = to;
  return to;
}

LazyDfa::ConfigId LazyDfa::adopt(const LazyDfa& other, ConfigId id) {
  std::unordered_map<StackId, StackId> stacks{{0, 0}};
  std::vector<StackId> path;
  const Config& config = other.configs_[id];
  items_.clear();
  for (uint32_t i = 0; i < config.num_items; ++i) {
    const Item item = other.item_pool_[config.first_item + i];
    path.clear();
    StackId known = item.stack;
    for (; !stacks.contains(known); known = other.frames_[known].below) path.push_back(known);
    StackId mine = stacks[known];
    for (auto it = path.rbegin(); it != path.rend(); ++it) {
      mine = push(mine, other.frames_[*it].return_to);
      stacks[*it] = mine;
    }
    items_.push_back({item.state, mine});
  }
  std::sort(items_.begin(), items_.end());
  return intern(config.accepting);
}

size_t LazyDfa::size_bytes() const {
  return item_pool_.size() * sizeof(Item) + configs_.size() * sizeof(Config) +
         (next_.size() + table_.size()) * sizeof(ConfigId) +
         frames_.size() * (sizeof(Frame) + 48);  // 48: a hash map entry
}

}  // namespace bam::constraints
