// Constrained output: what a client may ask the generated text to look like, compiled to a Constraint.
//
// The text is what the generated tokens contribute byte by byte, exactly as a client sees it. Every constraint is a
// pushdown automaton over bytes, made deterministic lazily: linear time, no backtracking, bounded memory. Control tokens
// are never allowed, EOS only where the text may end, and no allowed token leads to a dead end. README.md
// lists the supported regex syntax and JSON Schema keywords.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/grammar/machine.h"
#include "server/grammar/tool_calls.h"
#include "server/grammar/vocabulary.h"

namespace bam {

using ConstraintResult = Result<std::shared_ptr<const Constraint>>;

// All are thread-safe and keep what they need of the vocabulary alive. The result is a
// prototype in its initial state: use it through clone_initial(). Clones share one cache of
// automaton states and token masks.

// Any JSON object, nested at most 64 deep.
ConstraintResult compile_json_object(const ConstraintVocabulary& vocabulary);
// JSON text that satisfies the schema. The error names the keyword that cannot be honoured by JSON
// pointer.
ConstraintResult compile_json_schema(const std::string& schema_json, const ConstraintVocabulary& vocabulary);
// Text that matches the pattern as a whole.
ConstraintResult compile_regex(const std::string& pattern, const ConstraintVocabulary& vocabulary);
// Exactly one of the choices.
ConstraintResult compile_choice(const std::vector<std::string>& choices, const ConstraintVocabulary& vocabulary);

// Text of a context-free grammar in GBNF or Lark's notation, with at most 256 rules open at once.
ConstraintResult compile_grammar(const std::string& grammar, const ConstraintVocabulary& vocabulary);

// Texts that may or must call tools, in the form of tool_calls.h.
ConstraintResult compile_tool_calls(const ToolCallGrammar& grammar, const ConstraintVocabulary& vocabulary);

}  // namespace bam
