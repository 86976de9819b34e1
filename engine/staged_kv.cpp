#include "engine/staged_kv.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace bam {

int64_t StagedBlocks::num_pages() const {
  int64_t pages = 0;
  for (const BlockTable& table : stages) pages += table.num_pages;
  return pages;
}

StagedKv::StagedKv(std::vector<Stage> stages, bool prefix_cache, uint64_t fingerprint)
    : prefix_enabled_(prefix_cache), fingerprint_(fingerprint) {
  reset(stages);
}

StagedKv::StagedKv(KvGeometry geometry, int64_t num_pages, bool prefix_cache, uint64_t fingerprint)
    : StagedKv(std::vector<Stage>{{std::move(geometry), num_pages}}, prefix_cache, fingerprint) {}

void StagedKv::reset(const std::vector<Stage>& stages) {
  BAM_CHECK(!stages.empty() && live_.empty());
  stages_.clear();
  ended_.clear();
  tightest_ = 0;
  int64_t fewest = -1;
  for (const Stage& stage : stages) {
    BAM_CHECK(stage.geometry.page_size() == stages.front().geometry.page_size());
    const int64_t tokens = stage.geometry.max_tokens(stage.num_pages);
    if (fewest < 0 || tokens < fewest) tightest_ = num_stages();
    fewest = fewest < 0 ? tokens : std::min(fewest, tokens);
    stages_.push_back(std::make_unique<KvCache>(stage.geometry, stage.num_pages, prefix_enabled_, fingerprint_));
  }
  stage(0).set_score_bytes(score_bytes_);
  ++generation_;
  if (!log_) return;
  log_->cleared();
  stage(0).record_events(log_);
}

void StagedKv::record_events(KvEventLog* log) {
  log_ = log;
  stage(0).record_events(log);
}

void StagedKv::set_score_bytes(size_t bytes) {
  score_bytes_ = bytes;
  stage(0).set_score_bytes(bytes);
}

PromptScores::Found StagedKv::find_scores(StagedBlocks& blocks, std::span<const int32_t> tokens, int32_t num_top) {
  prepare(blocks);
  return stage(0).find_scores(table(blocks, 0), tokens, num_top);
}

int StagedKv::num_groups() const {
  int groups = 0;
  for (const auto& stage : stages_) groups += stage->geometry().num_groups();
  return groups;
}

uint64_t StagedKv::num_evicted() const {
  uint64_t pages = 0;
  for (const auto& stage : stages_) pages += stage->num_evicted();
  return pages;
}

void StagedKv::prepare(StagedBlocks& blocks) const {
  if (blocks.stages.size() == stages_.size()) return;
  std::vector<BlockTable> tables(stages_.size());
  for (BlockTable& table : tables) table.salt = blocks.salt;
  blocks.stages = std::move(tables);  // all of them or none
}

// All that needs memory for the end of a stay is taken at its beginning.
uint64_t StagedKv::begin_stay() {
  if (num_stages() > 1) {
    const size_t most = ended_.size() + live_.size() + 1;
    if (ended_.capacity() < most) ended_.reserve(2 * most);
  }
  live_.insert(next_id_);
  return next_id_++;
}

void StagedKv::end_stay(StagedBlocks& blocks) {
  if (blocks.id == 0) return;
  live_.erase(blocks.id);
  if (num_stages() > 1) ended_.push_back(blocks.id);
  blocks.id = 0;
}

int64_t StagedKv::common_prefix(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t max_cached) {
  int64_t common = max_cached;
  // A shorter prefix may not be usable where a longer one is: windows end elsewhere.
  for (int agreed = 0, s = 0; agreed < num_stages(); s = (s + 1) % num_stages()) {
    const int64_t usable = stage(s).usable_tokens(table(blocks, s), tokens, common);
    agreed = usable == common ? agreed + 1 : 1;
    common = usable;
  }
  return common;
}

std::optional<int64_t> StagedKv::admit(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t max_cached,
                                       int64_t final_tokens, std::span<const int64_t> reserved_pages) {
  BAM_CHECK(blocks.id == 0);
  prepare(blocks);
  if (num_stages() > 1) max_cached = common_prefix(blocks, tokens, max_cached);
  const uint64_t id = begin_stay();
  std::optional<int64_t> cached;
  int admitted = 0;
  const auto undo = [&] {
    for (int s = 0; s < admitted; ++s) stage(s).release(table(blocks, s));
    live_.erase(id);
  };
  try {
    for (; admitted < num_stages(); ++admitted) {
      cached = stage(admitted).admit(table(blocks, admitted), tokens, max_cached, final_tokens,
                                     reserved_pages[static_cast<size_t>(admitted)]);
      if (!cached) break;
      BAM_CHECK(num_stages() == 1 || *cached == max_cached);
    }
  } catch (...) {
    undo();
    throw;
  }
  if (!cached) {
    undo();
    return std::nullopt;
  }
  blocks.id = id;
  return cached;
}

bool StagedKv::grow(StagedBlocks& blocks, int64_t num_computed, int64_t num_tokens) {
  if (num_stages() == 1) return stage(0).grow(table(blocks, 0), num_computed, num_tokens);
  for (int s = 0; s < num_stages(); ++s) {
    if (stage(s).pages_to_grow(table(blocks, s), num_computed, num_tokens) > stage(s).num_available()) return false;
  }
  // What a stage took before another one ran out of memory is not lost: it has it when it is asked again.
  for (int s = 0; s < num_stages(); ++s) stage(s).grow(table(blocks, s), num_computed, num_tokens);
  return true;
}

int64_t StagedKv::commit(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t num_computed) {
  int64_t released = 0;
  for (int s = 0; s < num_stages(); ++s) released += stage(s).commit(table(blocks, s), tokens, num_computed);
  return released;
}

void StagedKv::fork(StagedBlocks& from, StagedBlocks& to) {
  BAM_CHECK(to.id == 0);
  to.salt = from.salt;
  prepare(to);
  const uint64_t id = begin_stay();
  int forked = 0;
  try {
    for (; forked < num_stages(); ++forked) stage(forked).fork(table(from, forked), table(to, forked));
  } catch (...) {
    for (int s = 0; s < forked; ++s) stage(s).release(table(to, s));
    live_.erase(id);
    throw;
  }
  to.id = id;
}

void StagedKv::release(StagedBlocks& blocks) {
  end_stay(blocks);
  if (blocks.stages.empty()) return;
  for (int s = 0; s < num_stages(); ++s) stage(s).release(table(blocks, s));
}

void StagedKv::quarantine(StagedBlocks& blocks, std::span<const int32_t> tokens, int64_t from_block) {
  prepare(blocks);
  for (int s = 0; s < num_stages(); ++s) stage(s).quarantine(table(blocks, s), tokens, from_block);
  release(blocks);
}

std::vector<std::vector<int32_t>> StagedKv::cached_chains(const std::string& salt, std::span<const int32_t> tokens) {
  StagedBlocks blocks;
  blocks.salt = salt;
  prepare(blocks);
  const int64_t common = common_prefix(blocks, tokens, static_cast<int64_t>(tokens.size()));
  std::vector<std::vector<int32_t>> chains;
  for (const auto& stage : stages_) {
    chains.push_back(stage->cached_chain(salt, tokens.first(static_cast<size_t>(common))));
  }
  return chains;
}

std::string StagedKv::check_integrity() const {
  for (int s = 0; s < num_stages(); ++s) {
    std::string problem = stage(s).check_integrity();
    if (problem.empty()) continue;
    return num_stages() == 1 ? problem : fmt::format("stage {}: {}", s, problem);
  }
  return {};
}

}  // namespace bam
