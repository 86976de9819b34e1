// The pages of all stages of a pipeline: one KvCache per stage, and sequences that have a block table in each. With one
// stage it is that stage's cache and nothing else. A prefix is usable as far as every stage has it; pages are taken in all
// stages or in none. Used by the engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/kv_cache.h"

namespace bam {

// The pages of one sequence. Filled and emptied by StagedKv; everyone else only reads.
struct StagedBlocks {
  std::string salt;                // set before the first use
  std::vector<BlockTable> stages;  // [stages], empty before the first use
  // Names this stay in the cache: another one after every release(). 0: there is none.
  uint64_t id = 0;

  int64_t num_pages() const;  // in all stages
  int64_t num_pages(int stage) const { return stages.empty() ? 0 : stages[static_cast<size_t>(stage)].num_pages; }
};

class StagedKv {
 public:
  struct Stage {
    KvGeometry geometry;
    int64_t num_pages = 0;
  };
  StagedKv(std::vector<Stage> stages, bool prefix_cache, uint64_t fingerprint);
  StagedKv(KvGeometry geometry, int64_t num_pages, bool prefix_cache, uint64_t fingerprint);

  int num_stages() const { return static_cast<int>(stages_.size()); }
  KvCache& stage(int index) { return *stages_[static_cast<size_t>(index)]; }
  const KvCache& stage(int index) const { return *stages_[static_cast<size_t>(index)]; }
  int page_size() const { return stage(0).geometry().page_size(); }
  int num_groups() const;  // of all stages
  // The stage that is full first.
  int tightest() const { return tightest_; }
  bool prefix_enabled() const { return prefix_enabled_; }
  // Of the first stage; see PrefixCache.
  void record_events(KvEventLog* log);
  uint64_t num_evicted() const;

  // As of KvCache, in all stages; reserved_pages: [stages].
  std::optional<int64_t> admit(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t max_cached,
                               int64_t final_tokens, std::span<const int64_t> reserved_pages);
  bool grow(StagedBlocks& blocks, int64_t num_computed, int64_t num_tokens);
  int64_t commit(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t num_computed);
  void fork(StagedBlocks& from, StagedBlocks& to);
  void release(StagedBlocks& blocks);
  void quarantine(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t from_block);

  // The first stage keeps them; see KvCache.
  void set_score_bytes(size_t bytes);
  const ScoreCache& scores() const { return stage(0).prefix().scores(); }
  PromptScores::Found find_scores(StagedBlocks& blocks, std::span<const int32_t> tokens, int32_t num_top);
  void keep_scores(const StagedBlocks& blocks, const PromptScores::Block& block) {
    stage(0).keep_scores(blocks.stages.front(), block);
  }

  // Whether a stay has not ended yet.
  bool is_live(uint64_t id) const { return live_.contains(id); }
  // Stays that ended since the list was last cleared, by the caller. Only kept with several stages, whose ranks hold
  // copies of block tables.
  std::vector<uint64_t>& ended() { return ended_; }

  // For saving: [stages] the nodes of as many blocks of `tokens` as all stages can be continued from.
  std::vector<std::vector<int32_t>> cached_chains(const std::string& salt, std::span<const int32_t> tokens);

  // Forgets all pages, in caches of these sizes; no sequence may have any. Whoever holds nodes or pages across such a loss
  // must notice it by the generation.
  void reset(const std::vector<Stage>& stages);
  uint64_t generation() const { return generation_; }

  std::string check_integrity() const;

 private:
  BlockTable& table(StagedBlocks& blocks, int stage) { return blocks.stages[static_cast<size_t>(stage)]; }
  void prepare(StagedBlocks& blocks) const;
  // Of max_cached tokens, those that all stages have.
  int64_t common_prefix(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t max_cached);
  uint64_t begin_stay();
  void end_stay(StagedBlocks& blocks);

  bool prefix_enabled_;
  uint64_t fingerprint_;
  size_t score_bytes_ = 0;
  std::vector<std::unique_ptr<KvCache>> stages_;
  int tightest_ = 0;
  uint64_t next_id_ = 1, generation_ = 0;
  std::unordered_set<uint64_t> live_;
  std::vector<uint64_t> ended_;
  KvEventLog* log_ = nullptr;
};

}  // namespace bam
