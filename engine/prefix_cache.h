// Content-addressed index of full KV blocks. A block is page_size tokens over all groups; its node holds one page per
// group, some of which may be absent (evicted, or freed because the prior's reach had passed them).
//
//   root(salt) ── block 0 ── block 1 ── block 2          nodes found by a chained 128-bit hash, then verified:
//                        └── block 1' ── block 2'        same parent node and same tokens, so that a hash collision
//                                                        can cost a hit but never give wrong text
//
// A node lives as long as it has a page, a child or a pin. Used by the engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "engine/block_pool.h"
#include "engine/kv_events.h"
#include "engine/score_cache.h"

namespace bam {

Hash128 hash_chain(const Hash128& parent, std::span<const int32_t> tokens);

class PrefixCache {
 public:
  static constexpr int32_t kNone = -1;

  // unbounded[g]: group g needs all its pages for a hit, not only the newest ones.
  PrefixCache(BlockPool& pool, int page_size, std::vector<bool> unbounded, uint64_t fingerprint);

  // The start of every chain of one salt.
  Hash128 root_hash(std::string_view salt) const;
  int32_t find_root(std::string_view salt) const;  // kNone: nothing cached
  int32_t insert_root(std::string_view salt);

  // The child of `parent` with these page_size tokens; hash = hash_chain(parent's hash, tokens).
  int32_t find(int32_t parent, const Hash128& hash, std::span<const int32_t> tokens) const;
  // Like find, but creates it. kNone when another block has the same hash. A new node must get a page, child or pin
  // before the next eviction.
  int32_t insert(int32_t parent, const Hash128& hash, std::span<const int32_t> tokens);

  int32_t page(int32_t node, int group) const { return pages_[slot(node, group)]; }
  bool has_all_unbounded(int32_t node) const {
    return nodes_[static_cast<size_t>(node)].num_unbounded == num_unbounded_;
  }
  int32_t parent(int32_t node) const { return nodes_[static_cast<size_t>(node)].parent; }

  // Publishes a used page; the node must not have one for this group.
  void set_page(int32_t node, int group, int32_t page);
  // The pool evicted this owner's page.
  void forget(PageOwner owner);
  // Drops all pages of a node from the cache (quarantine). The node itself may disappear.
  void unpublish_node(int32_t node);

  void pin(int32_t node) { ++nodes_[static_cast<size_t>(node)].refs; }
  void unpin(int32_t node);

  // Log-probabilities of blocks; those of a node that disappears or is unpublished are dropped.
  ScoreCache& scores() { return scores_; }
  const ScoreCache& scores() const { return scores_; }

  size_t num_nodes() const { return index_.size(); }
  // Tells `log` of every block that becomes usable or stops being so; null: nobody.
  void record_events(KvEventLog* log) { log_ = log; }
  // The hashes that the events so far leave an observer with.
  std::vector<uint64_t> usable_hashes() const;
  std::string check_integrity() const;

 private:
  struct Node {
    Hash128 hash;
    int32_t parent = kNone;
    int32_t refs = 0;  // children + pins
    int32_t num_pages = 0;
    int32_t num_unbounded = 0;  // of these, in unbounded groups
    bool live = false;
    std::vector<int32_t> content;  // tokens; of a root: the salt's bytes
  };
  struct HashKey {
    size_t operator()(const Hash128& h) const { return static_cast<size_t>(h.lo); }
  };

  size_t slot(int32_t node, int group) const {
    return static_cast<size_t>(node) * num_groups_ + static_cast<size_t>(group);
  }
  int32_t lookup(int32_t parent, const Hash128& hash, std::span<const int32_t> content) const;
  int32_t create(int32_t parent, const Hash128& hash, std::span<const int32_t> content);
  // A hit may continue from this block.
  bool usable(const Node& node) const { return node.num_pages > 0 && node.num_unbounded == num_unbounded_; }
  void tell(const Node& node, bool was_usable);
  void drop_page(int32_t node, int group);
  void collect(int32_t node);  // removes it and its ancestors when nothing needs them

  BlockPool& pool_;
  int page_size_;
  size_t num_groups_;
  std::vector<bool> unbounded_;
  int32_t num_unbounded_ = 0;
  uint64_t fingerprint_;
  std::vector<Node> nodes_;
  std::vector<int32_t> pages_;  // [nodes][groups]
  std::vector<int32_t> free_nodes_;
  std::unordered_map<Hash128, int32_t, HashKey> index_;
  ScoreCache scores_;
  KvEventLog* log_ = nullptr;
};

}  // namespace bam
