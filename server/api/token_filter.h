// Constraints on single tokens, for any grammar or none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/token_constraint.h"
#include "models/tokenizer.h"

namespace bam {

// Words that may not come, with a blank before them and without: whatever tokens spell one of them from a token's first
// byte to a token's last.
class BadWords {
 public:
  BadWords(const Tokenizer& tokenizer, const std::vector<std::string>& words);

  struct Ending {
    size_t begin;                 // behind so many bytes of the word
    std::vector<int32_t> tokens;  // these have the rest
  };
  struct Word {
    std::string text;
    std::vector<Ending> endings;
  };
  const std::vector<Word>& words() const { return words_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  size_t longest() const { return longest_; }

 private:
  const Tokenizer& tokenizer_;
  std::vector<Word> words_;
  size_t longest_ = 0;
};

struct TokenFilter {
  std::vector<int32_t> allowed;  // empty: all
  BadWords bad_words;
};

// What both allow. `grammar` may be null.
std::shared_ptr<const TokenConstraint> filtered_constraint(std::shared_ptr<const TokenConstraint> grammar,
                                                           TokenFilter filter);

}  // namespace bam
