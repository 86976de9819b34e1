#include "engine/drafter.h"

#include <algorithm>
#include <utility>

namespace bam {

namespace {

constexpr double kFirstChance = 0.5;
constexpr double kMemory = 0.85;          // of the chance, per token seen
constexpr int64_t kIndexedAnswer = 8192;  // of a longer answer, parts are forgotten

}  // namespace

Drafter::Drafter(const DraftParams& params, NgramIndex& prompt, std::vector<int32_t> ends, int64_t max_tokens)
    : most_(params.tokens),
      prompt_(prompt),
      answer_(prompt.length(), std::min(max_tokens, kIndexedAnswer)),
      ends_(std::move(ends)),
      chance_(kFirstChance) {
  proposal_.reserve(static_cast<size_t>(most_) + 1);
}

int64_t Drafter::index(std::span<const int32_t> tokens, int64_t num_prompt, int64_t limit) {
  const int64_t added = prompt_.extend(tokens, 0, num_prompt, limit);
  return added + answer_.extend(tokens, num_prompt, INT64_MAX, limit - added);
}

void Drafter::propose(std::span<const int32_t> tokens, int64_t room) {
  proposal_.clear();
  room_ = room;
  const int64_t size = static_cast<int64_t>(tokens.size());
  if (source_ < 0) source_ = answer_.find(tokens);
  if (source_ < 0) source_ = prompt_.find(tokens);
  if (source_ < 0) return;
  // One token more than can be computed along: the row behind the last guess tells whether the source goes on. Past the
  // end of the text the proposal goes on in itself: what repeats every few tokens will do so again.
  for (int64_t i = 0; i <= std::min(room, most_); ++i) {
    const int64_t at = source_ + i;
    const int32_t token = at < size ? tokens[static_cast<size_t>(at)] : proposal_[static_cast<size_t>(at - size)];
    if (std::ranges::find(ends_, token) != ends_.end()) return;
    proposal_.push_back(token);
  }
}

void Drafter::learn(std::span<const int32_t> sampled) {
  const size_t seen = std::min(sampled.size(), proposal_.size());
  size_t right = 0;
  while (right < seen && sampled[right] == proposal_[right]) ++right;
  for (size_t i = 0; i < right; ++i) chance_ = kMemory * chance_ + 1 - kMemory;
  if (right < seen) chance_ *= kMemory;
  // What came after the proposal is not known to follow the source.
  source_ = right == sampled.size() && source_ >= 0 ? source_ + static_cast<int64_t>(right) : -1;
  proposal_.clear();
}

}  // namespace bam
