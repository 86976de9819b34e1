#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace bam::constraints {

// Keywords that say nothing about which values are valid: annotations and containers of
// definitions.
bool is_annotation(std::string_view keyword);
// The schema without annotations and without one more keyword.
Json assertions_without(const Json& schema, std::string_view keyword);

// Finds one schema that accepts what two accept, as far as single keywords can express it.
class SchemaMerger {
 public:
  // Gives the schema that a $ref names, or throws.
  using ResolveRef = std::function<const Json&(const std::string& ref)>;
  explicit SchemaMerger(ResolveRef resolve) : resolve_(std::move(resolve)) {}

  // $ref and allOf inside either are looked through. Throws Error naming the keyword that cannot be
  // merged, and when all merging for one schema together takes too long.
  Json merge(const Json& a, const Json& b) { return merge_flat(flatten(a, 0), flatten(b, 0)); }
  // The schema with its $ref and allOf replaced by what they stand for.
  Json flatten(const Json& schema) { return flatten(schema, 0); }

 private:
  Json flatten(const Json& schema, int depth);
  Json merge_flat(const Json& a, const Json& b);

  ResolveRef resolve_;
  size_t work_ = 0;
};

}  // namespace bam::constraints
