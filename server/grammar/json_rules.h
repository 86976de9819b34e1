#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace bam::constraints {

// Shared rules for JSON text. What bounds an endless output: whitespace only where pretty printers
// put it and in short runs, at most 40 digits in a row, exponents of two digits (so that every
// number is finite as a double).
class JsonRules {
 public:
  explicit JsonRules(AutomatonBuilder& out) : out_(out) {}

  RuleId any_value();
  RuleId object();
  RuleId array();
  RuleId string();
  RuleId character();  // one code point of a string, raw or escaped
  RuleId number();
  RuleId integer();

  // Returns the state behind optional whitespace.
  State space(State from);
  // One of the literals, sharing prefixes.
  void literals(std::vector<std::string> texts, State from, State to);

 private:
  RuleId space_rule();
  void add_character(State from, State to);
  void add_digits(State from, int min, int max, State to);

  AutomatonBuilder& out_;
  std::optional<RuleId> any_value_, object_, array_, string_, character_, number_, integer_, space_;
};

inline constexpr int kMaxDigits = 40;

}  // namespace bam::constraints
