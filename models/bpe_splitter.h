#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "models/sentencepiece_model.h"

namespace bam {

// Finds places where a text can be cut without changing its BPE encoding. Merges only ever build vocabulary pieces, so
// where two neighbouring characters stand side by side in no piece, nothing can be merged across the gap, and both
// sides can be encoded on their own. In practice most gaps before a space, a digit or a punctuation mark qualify.
class BpeSplitter {
 public:
  BpeSplitter() = default;
  explicit BpeSplitter(const SentencePieceModel& model);

  // The length of the first part of `text` (valid UTF-8, not empty) that can be encoded alone: up to the first safe
  // gap, or all of it.
  size_t first_part(std::string_view text) const;

 private:
  bool joined(char32_t left, char32_t right) const;
  bool may_cut_before(char32_t right) const;

  std::bitset<128 * 128> ascii_pairs_;
  std::unordered_set<uint64_t> pairs_;       // left << 32 | right, for the rest
  std::unordered_set<char32_t> characters_;  // pieces of one character
  bool byte_fallback_ = false;
};

}  // namespace bam
