#include "server/grammar/machine.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace bam::constraints {
namespace {

constexpr size_t kMaxCacheBytes = size_t{8} << 20;
// Nodes of the vocabulary's trie that are passed in the time of one unit of work.
constexpr uint64_t kTrieNodesPerWork = 8;

}  // namespace

struct Machine::Cache {
  explicit Cache(const Automaton& automaton) : dfa(automaton, kMaxStepWork) {}
  size_t size_bytes() const { return dfa.size_bytes() + mask_bytes; }

  LazyDfa dfa;
  std::unordered_map<LazyDfa::ConfigId, Mask> masks;
  size_t mask_bytes = 0;
};

Machine::Machine(const AutomatonBuilder& builder, std::shared_ptr<const TokenTrie> trie)
    : automaton_(builder, trie->spells), trie_(std::move(trie)) {
  try {
    cache_ = std::make_shared<Cache>(automaton_);
  } catch (const LazyDfa::OutOfWork&) {
    throw Error("too expensive: the first token alone takes more than {} steps of the automaton", kMaxStepWork);
  }
}

Machine::Cursor Machine::start() const {
  const std::lock_guard lock(mutex_);
  Cursor cursor;
  cursor.cache = cache_;
  cursor.config = cache_->dfa.initial();
  return cursor;
}

size_t Machine::cache_bytes() const {
  const std::lock_guard lock(mutex_);
  return cache_->size_bytes();
}

void Machine::join_current_cache(Cursor& cursor) const {
  if (cursor.cache == cache_) return;
  cursor.config = cache_->dfa.adopt(cursor.cache->dfa, cursor.config);
  cursor.cache = cache_;
}

void Machine::renew_if_full(Cursor& cursor) const {
  if (cache_->size_bytes() <= kMaxCacheBytes) return;
  cache_ = std::make_shared<Cache>(automaton_);
  join_current_cache(cursor);
}

template <typename Work>
bool Machine::charge(Cursor& cursor, Work what) const {
  join_current_cache(cursor);
  LazyDfa& dfa = cache_->dfa;
  const uint64_t total = kMaxBurstWork + cursor.num_tokens * kMaxWorkPerToken;
  const uint64_t step_left = kMaxStepWork - std::min(kMaxStepWork, cursor.step_work);
  const uint64_t left = total - std::min(total, cursor.work);
  const uint64_t before = dfa.work();
  dfa.limit_work(before + std::min(step_left, left));
  try {
    what(dfa);
  } catch (const LazyDfa::OutOfWork&) {
    cursor.failure = step_left <= left ? fmt::format(
                                             "the constraint is too expensive: more than {} automaton steps for "
                                             "one token",
                                             kMaxStepWork)
                                       : fmt::format(
                                             "the constraint is too expensive: more than {} automaton steps for "
                                             "{} tokens",
                                             total, cursor.num_tokens);
  }
  cursor.work += dfa.work() - before;
  cursor.step_work += dfa.work() - before;
  return cursor.failure.empty();
}

void Machine::fill_mask(LazyDfa& dfa, LazyDfa::ConfigId config, Mask& mask) const {
  const TokenTrie& trie = *trie_;
  const TokenTrie::Node* nodes = trie.nodes.data();
  const uint32_t num_nodes = trie.num_nodes();
  std::vector<LazyDfa::ConfigId> path(trie.max_depth + 1, LazyDfa::kDead);
  path[0] = config;
  uint64_t visited = 0;
  for (uint32_t i = 0; i < num_nodes; ++visited) {
    const TokenTrie::Node& node = nodes[i];
    const LazyDfa::ConfigId next = dfa.step(path[node.depth], node.byte);
    if (next == LazyDfa::kDead) {
      i = node.skip;
      continue;
    }
    path[node.depth + 1] = next;
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) {
      const auto token = static_cast<uint32_t>(trie.tokens[t]);
      mask[token / 32] |= 1u << (token % 32);
    }
    ++i;
  }
  dfa.spend(visited / kTrieNodesPerWork);
}

const Machine::Mask* Machine::mask_of(Cursor& cursor) const {
  join_current_cache(cursor);
  const auto known = cache_->masks.find(cursor.config);
  if (known != cache_->masks.end()) return &known->second;
  Mask mask((trie_->token_bytes.size() + 31) / 32, 0);
  if (!charge(cursor, [&](LazyDfa& dfa) { fill_mask(dfa, cursor.config, mask); })) return nullptr;
  renew_if_full(cursor);
  cache_->mask_bytes += mask.size() * sizeof(uint32_t) + 64;  // 64: the hash map's entry
  return &cache_->masks.try_emplace(cursor.config, std::move(mask)).first->second;
}

void Machine::allowed_tokens(Cursor& cursor, std::span<uint32_t> allowed) const {
  const std::lock_guard lock(mutex_);
  if (!cursor.failure.empty()) return;
  bool may_end = cursor.ended;
  if (!cursor.ended) {
    const Mask* mask = mask_of(cursor);
    if (!mask) return;
    std::copy_n(mask->begin(), std::min(mask->size(), allowed.size()), allowed.begin());
    may_end = cursor.cache->dfa.accepting(cursor.config);
  }
  if (!may_end) return;
  for (int32_t id : trie_->eos_ids) {
    if (id >= 0 && static_cast<size_t>(id) / 32 < allowed.size()) {
      allowed[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
}

void Machine::accept(Cursor& cursor, int32_t token) const {
  const std::lock_guard lock(mutex_);
  const bool known = token >= 0 && static_cast<size_t>(token) < trie_->token_bytes.size();
  const std::string* bytes = known ? &trie_->token_bytes[static_cast<size_t>(token)] : nullptr;
  if (cursor.ended || !cursor.failure.empty() || bytes == nullptr || bytes->empty()) {
    cursor.ended = true;
    return;
  }
  LazyDfa::ConfigId config = LazyDfa::kDead;
  const bool done = charge(cursor, [&](LazyDfa& dfa) {
    config = cursor.config;
    for (char c : *bytes) config = dfa.step(config, static_cast<uint8_t>(c));
  });
  if (!done) return;
  ++cursor.num_tokens;
  cursor.step_work = 0;
  cursor.config = config;
  if (config == LazyDfa::kDead) cursor.ended = true;
  renew_if_full(cursor);
}

bool Machine::mask_known(const Cursor& cursor) const {
  const std::lock_guard lock(mutex_);
  if (cursor.ended || !cursor.failure.empty()) return true;
  return cursor.cache == cache_ && cache_->masks.contains(cursor.config);
}

bool Machine::finished(const Cursor& cursor) const {
  const std::lock_guard lock(mutex_);
  if (!cursor.failure.empty()) return false;
  return cursor.ended || cursor.cache->dfa.exhausted(cursor.config);
}

}  // namespace bam::constraints
