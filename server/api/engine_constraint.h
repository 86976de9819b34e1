// Joins the grammars, which know bytes and automata, with the tokenizer and the constraint that the engine calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/token_constraint.h"
#include "models/tokenizer.h"
#include "server/grammar/constraint.h"

namespace bam {

// What each token of the tokenizer adds to a text. Control tokens add nothing and are never allowed.
ConstraintVocabulary constraint_vocabulary(const Tokenizer& tokenizer, std::vector<int32_t> eos_ids);

std::shared_ptr<const TokenConstraint> engine_constraint(const Constraint& prototype);

}  // namespace bam
