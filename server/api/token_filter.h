// Constraints on single tokens, for any grammar or none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/token_constraint.h"
#include "models/tokenizer.h"

namespace bam {

struct TokenFilter {
  std::vector<int32_t> allowed;                  // empty: all
  std::vector<std::vector<int32_t>> bad_tokens;  // the last token of each is not allowed behind the others
};

// A word as tokens, at the beginning of a text and in its middle, with a blank before it and without.
std::vector<std::vector<int32_t>> spellings(const Tokenizer& tokenizer, const std::string& word);

// What both allow. `grammar` may be null.
std::shared_ptr<const TokenConstraint> filtered_constraint(std::shared_ptr<const TokenConstraint> grammar,
                                                           TokenFilter filter);

}  // namespace bam
