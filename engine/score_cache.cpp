#include "engine/score_cache.h"

#include <algorithm>
#include <iterator>

namespace bam {

BlockScores::BlockScores(int page_size, int32_t num_top)
    : num_top_(num_top),
      logprobs_(static_cast<size_t>(page_size)),
      ranks_(static_cast<size_t>(page_size)),
      top_(static_cast<size_t>(page_size) * static_cast<size_t>(num_top), {-1, 0.0f}) {}

size_t BlockScores::bytes() const {
  return sizeof(*this) + logprobs_.size() * (sizeof(float) + sizeof(int32_t)) + top_.size() * sizeof(top_[0]);
}

void BlockScores::set(size_t place, const TokenLogprobs& scores) {
  logprobs_[place] = scores.logprob;
  ranks_[place] = scores.rank;
  std::ranges::copy(scores.top, top_.begin() + static_cast<std::ptrdiff_t>(place * static_cast<size_t>(num_top_)));
}

TokenLogprobs BlockScores::get(size_t place, int32_t num_top) const {
  TokenLogprobs scores{logprobs_[place], ranks_[place], {}};
  const auto first = top_.begin() + static_cast<std::ptrdiff_t>(place * static_cast<size_t>(num_top_));
  const auto last = std::find_if(first, first + num_top, [](const auto& candidate) { return candidate.first < 0; });
  scores.top.assign(first, last);
  return scores;
}

ScoreCache::Place ScoreCache::behind(int32_t parent) {
  const auto it = index_.find(parent);
  return it == index_.end() ? entries_.begin() : std::next(it->second);
}

std::shared_ptr<const BlockScores> ScoreCache::find(int32_t parent, int32_t node, int32_t num_top) {
  const auto it = index_.find(node);
  if (it == index_.end() || it->second->scores->num_top() < num_top) return nullptr;
  entries_.splice(behind(parent), entries_, it->second);
  return it->second->scores;
}

void ScoreCache::put(int32_t parent, int32_t node, std::shared_ptr<const BlockScores> scores) {
  if (parent >= 0 && !index_.contains(parent)) return;
  if (find(parent, node, scores->num_top())) return;
  drop(node);
  const Place place = entries_.insert(behind(parent), {node, std::move(scores)});
  try {
    index_.emplace(node, place);
  } catch (...) {
    entries_.erase(place);
    throw;
  }
  bytes_ += place->scores->bytes();
  while (bytes_ > max_bytes_) drop(entries_.back().node);
}

void ScoreCache::drop(int32_t node) noexcept {
  const auto it = index_.find(node);
  if (it == index_.end()) return;
  bytes_ -= it->second->scores->bytes();
  entries_.erase(it->second);
  index_.erase(it);
}

std::optional<TokenLogprobs> PromptScores::take_found(int page_size) {
  const auto block = static_cast<size_t>(next_ / page_size);
  if (block >= found_.size()) return std::nullopt;
  TokenLogprobs scores = found_[block]->get(static_cast<size_t>(next_ % page_size), num_top_);
  building_.reset();
  ++next_;
  return scores;
}

void PromptScores::add(const TokenLogprobs& scores, int page_size, bool keep) {
  const int64_t place = next_ % page_size;
  if (keep && (place == 0 || next_ == 1)) building_ = std::make_shared<BlockScores>(page_size, num_top_);
  if (building_) building_->set(static_cast<size_t>(place), scores);
  if (building_ && place == page_size - 1) {
    whole_.push_back({next_ / page_size, building_});
    building_.reset();
  }
  ++next_;
}

}  // namespace bam
