// Which page holds which keys of which sequence. Knows page ids only, not the memory behind them, so schedules can be
// tested without a model. Used by the engine thread only.
//
//   block table of one sequence, page_size 64, 300 tokens computed, reach of group 1 = 100 keys:
//
//                 block 0   block 1   block 2   block 3   block 4
//     group 0        7         9        12        30        41      unbounded: keeps all
//     group 1        -         -        13        31        42      "-": released, queries no longer reach it
//                                                              ^ partly filled, private to the sequence
//
// Full blocks are published in the prefix cache as they fill up; a page leaves the table when the reach has passed it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/block_pool.h"
#include "engine/kv_geometry.h"
#include "engine/prefix_cache.h"
#include "kernels/table_history.h"

namespace bam {

// The pages of one sequence. Filled and emptied by KvCache; everyone else only reads.
struct BlockTable {
  std::string salt;              // set before the first use
  std::vector<int32_t> entries;  // [groups][stride] page ids or kNoPage
  int64_t stride = 0;
  int64_t num_blocks = 0;  // blocks with pages, counted from 0 (old ones may be released)
  int64_t num_pages = 0;   // entries that are not kNoPage
  int64_t num_full = 0;    // blocks already published and checked against the reach
  TableHistory history;    // of entries

 private:
  friend class KvCache;
  std::vector<int64_t> first_live;    // [groups] blocks below are released
  std::vector<Hash128> hashes;        // of the full blocks of known tokens; kept while preempted
  int32_t node = PrefixCache::kNone;  // pinned: the last published block, or the root
  bool publishing = true;
  bool tail_shared = false;  // a fork may still share the partly filled block
};

struct PageCopy {
  int32_t from = kNoPage, to = kNoPage;
};

class KvCache {
 public:
  KvCache(KvGeometry geometry, int64_t num_pages, bool prefix_cache, uint64_t fingerprint);

  const KvGeometry& geometry() const { return geometry_; }
  const BlockPool& pool() const { return pool_; }
  int64_t num_available() const { return pool_.num_available(); }

  // Starts a sequence of which `tokens` are known: takes over cached pages for at most max_cached tokens and returns
  // how many tokens need not be computed. nullopt, with nothing changed, unless pages for final_tokens tokens are
  // available beside `reserved_pages` others.
  std::optional<int64_t> admit(BlockTable& table, std::span<const int32_t> tokens, int64_t max_cached,
                               int64_t final_tokens, int64_t reserved_pages);

  // How many of `tokens`, at most max_cached, need not be computed by a sequence that is admitted now.
  int64_t usable_tokens(BlockTable& table, std::span<const int32_t> tokens, int64_t max_cached);

  // Pages that grow() would take.
  int64_t pages_to_grow(const BlockTable& table, int64_t num_computed, int64_t num_tokens) const;
  // Makes room to write tokens [num_computed, num_tokens). False, with nothing changed, when pages are missing.
  // Splits a tail shared with a fork: see pending_copies().
  bool grow(BlockTable& table, int64_t num_computed, int64_t num_tokens);
  // Copies to carry out, in order, before the next forward call; cleared by the caller.
  std::vector<PageCopy>& pending_copies() { return copies_; }

  // `tokens` = all known tokens, of which the first num_computed are in the cache: publishes blocks that became full
  // and releases what is out of reach. Returns the number of pages released that way.
  int64_t commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);

  // `to` shares every page of `from`; whoever writes the partly filled block first gets a copy.
  void fork(BlockTable& from, BlockTable& to);
  // Gives everything back; published pages stay cached, newest blocks are evicted first.
  void release(BlockTable& table);
  // Removes every cached block of this sequence's known tokens from from_block on, then releases the table.
  void quarantine(BlockTable& table, std::span<const int32_t> tokens, int64_t from_block);

  // The scores of leading blocks of `tokens` that are kept with at least num_top alternatives.
  PromptScores::Found find_scores(BlockTable& table, std::span<const int32_t> tokens, int32_t num_top);
  // Keeps them with a block that is published.
  void keep_scores(const BlockTable& table, const PromptScores::Block& block);
  void set_score_bytes(size_t bytes) { prefix_.scores().set_max_bytes(prefix_enabled_ ? bytes : 0); }

  // For saving: nodes of the blocks of `tokens` that can be continued from; see PrefixCache.
  std::vector<int32_t> cached_chain(const std::string& salt, std::span<const int32_t> tokens);
  const PrefixCache& prefix() const { return prefix_; }
  // For restoring: the nodes of all whole blocks of `tokens`, created where they are missing; fewer if a hash collides.
  std::vector<int32_t> insert_chain(const std::string& salt, std::span<const int32_t> tokens);
  // Between the two, the nodes of a chain stay; its pages may still be evicted.
  void pin_chain(std::span<const int32_t> chain);
  void unpin_chain(std::span<const int32_t> chain);
  // Pages with one reference, or nullopt when that many are not available.
  std::optional<std::vector<int32_t>> allocate_pages(int64_t count);
  void release_pages(std::span<const int32_t> pages);
  // Publishes a page as that of a block and drops the caller's reference; if there is one already, that one stays.
  void adopt_page(int32_t node, int group, int32_t page);

  bool prefix_enabled() const { return prefix_enabled_; }
  void record_events(KvEventLog* log) { prefix_.record_events(log); }
  uint64_t num_evicted() const { return num_evicted_; }
  std::string check_integrity() const;

 private:
  size_t slot(const BlockTable& table, int group, int64_t block) const {
    return static_cast<size_t>(group) * static_cast<size_t>(table.stride) + static_cast<size_t>(block);
  }
  std::span<const int32_t> block_tokens(std::span<const int32_t> tokens, int64_t block) const;
  void extend_hashes(BlockTable& table, std::span<const int32_t> tokens);
  // Fills chain_ with the cached nodes of the leading blocks.
  void walk(BlockTable& table, std::span<const int32_t> tokens, int64_t max_blocks);
  // The most leading blocks of chain_ whose pages are all there that later queries can reach.
  int64_t usable_blocks() const;
  int32_t allocate_page();
  void reserve_blocks(BlockTable& table, int64_t blocks);
  bool publish_block(BlockTable& table, std::span<const int32_t> tokens, int64_t block);
  int64_t release_out_of_reach(BlockTable& table, int64_t num_computed);
  int64_t shared_tail_pages(const BlockTable& table, int64_t num_computed) const;
  void split_tail(BlockTable& table, int64_t num_computed);

  KvGeometry geometry_;
  BlockPool pool_;
  PrefixCache prefix_;
  bool prefix_enabled_;
  std::vector<PageCopy> copies_;
  std::vector<int32_t> chain_;  // scratch of walk()
  uint64_t num_evicted_ = 0;
};

}  // namespace bam
