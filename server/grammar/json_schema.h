#pragma once

#include <string>

#include "server/grammar/automaton.h"

namespace bam::constraints {

inline constexpr size_t kMaxSchemaBytes = 256 * 1024;

// Adds a root rule (the builder must be empty) for the JSON texts that satisfy the schema. Throws
// Error with the JSON pointer of the keyword that cannot be honoured.
void build_json_schema(const std::string& schema_json, AutomatonBuilder& out);
// The same as a rule of its own, without whitespace around it.
RuleId add_json_schema(const std::string& schema_json, AutomatonBuilder& out);

}  // namespace bam::constraints
