#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"
#include "server/grammar/json_rules.h"
#include "server/grammar/schema_merge.h"

namespace bam::constraints {

// Translates a JSON schema. Subschemas are written in place, except where they repeat or recurse:
// $ref targets, array items and merged schemas become rules, each once. A schema that nothing
// satisfies simply adds no path; the automaton drops what leads there.
class SchemaCompiler {
 public:
  SchemaCompiler(const Json& root, AutomatonBuilder& out);
  // The root rule of an empty builder: one JSON text, perhaps with a blank in front.
  void run();
  // The value alone, as a rule beside others.
  RuleId add();

 private:
  // A rule that is still to be written. The schema lives in root_ or in merged_.
  struct Pending {
    const Json* schema;
    std::string at;
    RuleId rule;
  };

  // schema_compiler.cpp: what is common to all types. `at` is the schema's JSON pointer.
  void add_value(const Json& schema, State from, State to, const std::string& at);
  bool add_combined(const Json& schema, State from, State to, const std::string& at);
  void add_enumeration(const Json& schema, State from, State to, const std::string& at);
  void add_literal(const Json& value, State from, State to);
  void add_type(const std::string& type, const Json& schema, State from, State to, const std::string& at);
  const Json& resolve(const std::string& ref) const;
  RuleId rule_of_ref(const std::string& ref, const std::string& at);
  RuleId rule_of_merged(Json schema, const std::string& at);
  RuleId rule_of(const Json& schema, const std::string& at);

  // schema_types.cpp: one type each.
  void add_object(const Json& schema, State from, State to, const std::string& at);
  void add_extra_properties(const std::vector<std::u32string>& declared, const Json& extra, State empty, State some,
                            const std::string& at);
  void add_array(const Json& schema, State from, State to, const std::string& at);
  void add_string(const Json& schema, State from, State to, const std::string& at);
  void add_number(const Json& schema, bool integer, State from, State to, const std::string& at);

  const Json& root_;
  AutomatonBuilder& out_;
  JsonRules rules_;
  SchemaMerger merger_;
  std::map<std::string, RuleId> ref_rules_;     // by canonical reference
  std::map<std::string, RuleId> merged_rules_;  // by the merged schema's text
  std::deque<Json> merged_;
  std::deque<Pending> pending_;
};

// "/properties/a~1b": the pointer of a member.
std::string pointer_to(const std::string& at, std::string_view key);
[[noreturn]] void fail_at(const std::string& at, std::string_view what);
// A non-negative integer keyword of at most `limit`; nullopt when absent. Throws Error at its
// pointer.
std::optional<uint32_t> count_keyword(const Json& schema, const char* keyword, uint32_t limit, const std::string& at);

}  // namespace bam::constraints
