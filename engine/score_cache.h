// Log-probabilities of whole blocks of a prompt, kept beside the block's pages: who asks for a document's scores again, or for
// those of another continuation of it, gets the very numbers that were computed the first time. The score of a token
// depends on the tokens before it only, so a block of the prefix cache and its scores have the same name. Used by the
// engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace bam {

// Of the tokens of one block; the first token of a text has none and its place is empty.
class BlockScores {
 public:
  BlockScores(int page_size, int32_t num_top);

  int32_t num_top() const { return num_top_; }
  size_t bytes() const;
  void set(size_t place, const TokenLogprobs& scores);
  // With the best num_top of the alternatives that are kept.
  TokenLogprobs get(size_t place, int32_t num_top) const;

 private:
  int32_t num_top_;  // alternatives of each token, fewer in a smaller vocabulary
  std::vector<float> logprobs_;
  std::vector<int32_t> ranks_;
  std::vector<std::pair<int32_t, float>> top_;  // [places][num_top], id -1: there are no more
};

// The blocks that have scores, by the node of the prefix cache. When the bound is reached the least recently used text goes,
// its end first: scores are of use from the beginning on.
class ScoreCache {
 public:
  void set_max_bytes(size_t bytes) { max_bytes_ = bytes; }
  bool enabled() const { return max_bytes_ > 0; }

  // Null: there are none, or with fewer alternatives. parent: the block before, -1: there is none.
  std::shared_ptr<const BlockScores> find(int32_t parent, int32_t node, int32_t num_top);
  // In place of others with fewer alternatives; not behind a block that has none, for which there was no room.
  void put(int32_t parent, int32_t node, std::shared_ptr<const BlockScores> scores);
  void drop(int32_t node) noexcept;

  size_t bytes() const { return bytes_; }
  size_t num_blocks() const { return entries_.size(); }

 private:
  struct Entry {
    int32_t node;
    std::shared_ptr<const BlockScores> scores;
  };
  using Place = std::list<Entry>::iterator;
  Place behind(int32_t parent);

  size_t max_bytes_ = 0, bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first, a text's blocks in their order
  std::unordered_map<int32_t, Place> index_;
};

// The scores of one prompt on their way to its client.
class PromptScores {
 public:
  explicit PromptScores(int32_t num_top) : num_top_(num_top) {}

  int32_t num_top() const { return num_top_; }
  // The first token whose scores have not been told.
  int64_t next() const { return next_; }

  // Leading blocks whose scores need not be computed.
  using Found = std::vector<std::shared_ptr<const BlockScores>>;
  void offer(Found found) {
    if (found.size() > found_.size()) found_ = std::move(found);
  }
  // The scores of token next(), if they were found.
  std::optional<TokenLogprobs> take_found(int page_size);
  // The scores of token next(), computed. keep: their block may be wanted again.
  void add(const TokenLogprobs& scores, int page_size, bool keep);

  // Blocks that became whole since the list was last cleared, by the caller.
  struct Block {
    int64_t index;
    std::shared_ptr<const BlockScores> scores;
  };
  std::vector<Block>& whole() { return whole_; }

 private:
  int32_t num_top_;
  int64_t next_ = 1;
  Found found_;
  std::shared_ptr<BlockScores> building_;  // of the block of next(); null: its beginning was not computed here
  std::vector<Block> whole_;
};

}  // namespace bam
