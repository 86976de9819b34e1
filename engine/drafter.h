// Guesses how a text goes on, by looking where its last tokens stood before: in the prompt or in the answer itself. A
// step then computes the rows of the guess along with the one that is due and samples on as long as the guess was
// right. Rows do not depend on each other's company and draws only on their index, so the tokens are those that come
// without a guess. One per sequence; engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ngram_index.h"
#include "engine/request.h"

namespace bam {

class Drafter {
 public:
  // params: tokens > 0. prompt: shared by all choices, outlives the drafter. ends: tokens that may end the text, never
  // guessed. max_tokens: of the answer.
  Drafter(const DraftParams& params, NgramIndex& prompt, std::vector<int32_t> ends, int64_t max_tokens);

  // Makes more of the text findable, at most `limit` tokens of it; returns how many. num_prompt of `tokens` are the
  // prompt.
  int64_t index(std::span<const int32_t> tokens, int64_t num_prompt, int64_t limit);
  // Guesses what follows `tokens`; the text has room for `room` guesses and the token behind them.
  void propose(std::span<const int32_t> tokens, int64_t room);
  // May be computed along.
  std::span<const int32_t> proposal() const {
    return std::span(proposal_).first(std::min(proposal_.size(), static_cast<size_t>(std::min(room_, most_))));
  }
  // The chance that a token of the proposal is right if those before it are, judged by how former proposals fared,
  // computed along or not: looking costs nothing.
  double chance() const { return chance_; }
  // What was sampled where the proposal had been made.
  void learn(std::span<const int32_t> sampled);

 private:
  int64_t most_;
  int64_t room_ = 0;
  NgramIndex& prompt_;
  NgramIndex answer_;
  std::vector<int32_t> ends_;
  std::vector<int32_t> proposal_;
  int64_t source_ = -1;  // where the proposal was copied from; goes on while it is right
  double chance_;
};

}  // namespace bam
