#include "server/grammar/machine.h"

#include <algorithm>
#include <unordered_map>

namespace bam::constraints {
namespace {

constexpr size_t kMaxCacheBytes = size_t{8} << 20;
// Automaton states looked at for one token mask, beyond a visit of every trie node. Sane grammars
// stay far below; a hostile one gets a mask without some of the longer tokens instead of the engine
// thread.
constexpr uint64_t kMaxMaskWork = 2'000'000;

}  // namespace

struct Machine::Cache {
  explicit Cache(const Automaton& automaton) : dfa(automaton) {}
  size_t size_bytes() const { return dfa.size_bytes() + mask_bytes; }

  LazyDfa dfa;
  std::unordered_map<LazyDfa::ConfigId, Mask> masks;
  size_t mask_bytes = 0;
};

Machine::Machine(const AutomatonBuilder& builder, std::shared_ptr<const TokenTrie> trie)
    : automaton_(builder, trie->spells), trie_(std::move(trie)), cache_(std::make_shared<Cache>(automaton_)) {}

Machine::Cursor Machine::start() const {
  const std::lock_guard lock(mutex_);
  return {.cache = cache_, .config = cache_->dfa.initial(), .ended = false};
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

void Machine::fill_mask(LazyDfa& dfa, LazyDfa::ConfigId config, Mask& mask) const {
  const TokenTrie& trie = *trie_;
  const TokenTrie::Node* nodes = trie.nodes.data();
  const uint32_t num_nodes = trie.num_nodes();
  auto allow_tokens_at = [&](uint32_t node) {
    for (uint32_t t = nodes[node].first_token; t < nodes[node + 1].first_token; ++t) {
      const auto token = static_cast<uint32_t>(trie.tokens[t]);
      mask[token / 32] |= 1u << (token % 32);
    }
  };
  std::vector<LazyDfa::ConfigId> path(trie.max_depth + 1, LazyDfa::kDead);
  path[0] = config;
  // The single bytes come first: with them alone every text can be finished.
  for (uint32_t i = 0; i < num_nodes; i = nodes[i].skip) {
    if (dfa.step(config, nodes[i].byte) != LazyDfa::kDead) allow_tokens_at(i);
  }
  const uint64_t work_limit = dfa.work() + kMaxMaskWork;
  for (uint32_t i = 0; i < num_nodes && dfa.work() < work_limit;) {
    const TokenTrie::Node& node = nodes[i];
    const LazyDfa::ConfigId next = dfa.step(path[node.depth], node.byte);
    if (next == LazyDfa::kDead) {
      i = node.skip;
      continue;
    }
    path[node.depth + 1] = next;
    allow_tokens_at(i);
    ++i;
  }
}

const Machine::Mask& Machine::mask_of(Cursor& cursor) const {
  join_current_cache(cursor);
  const auto known = cache_->masks.find(cursor.config);
  if (known != cache_->masks.end()) return known->second;
  Mask mask((trie_->token_bytes.size() + 31) / 32, 0);
  fill_mask(cache_->dfa, cursor.config, mask);
  renew_if_full(cursor);
  const size_t bytes = mask.size() * sizeof(uint32_t) + 64;  // 64: the hash map's entry
  const auto [it, added] = cache_->masks.try_emplace(cursor.config, std::move(mask));
  cache_->mask_bytes += bytes;
  return it->second;
}

void Machine::allowed_tokens(Cursor& cursor, std::span<uint32_t> allowed) const {
  const std::lock_guard lock(mutex_);
  bool may_end = cursor.ended;
  if (!cursor.ended) {
    const Mask& mask = mask_of(cursor);
    std::copy_n(mask.begin(), std::min(mask.size(), allowed.size()), allowed.begin());
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
  if (cursor.ended || bytes == nullptr || bytes->empty()) {
    cursor.ended = true;
    return;
  }
  join_current_cache(cursor);
  LazyDfa::ConfigId config = cursor.config;
  for (char c : *bytes) config = cache_->dfa.step(config, static_cast<uint8_t>(c));
  cursor.config = config;
  if (config == LazyDfa::kDead) cursor.ended = true;
  renew_if_full(cursor);
}

bool Machine::finished(const Cursor& cursor) const {
  const std::lock_guard lock(mutex_);
  return cursor.ended || cursor.cache->dfa.exhausted(cursor.config);
}

}  // namespace bam::constraints
