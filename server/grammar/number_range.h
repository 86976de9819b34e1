#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/grammar/automaton.h"

namespace bam::constraints {

// A decimal number as its digits: no rounding, any size.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // no leading zeros but a lone one
  std::string fraction;     // no trailing zeros

  // A JSON number; nullopt when it has more than 40 digits on either side of the point.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> min, max;
  bool integer = false;
};

// Adds the decimal spellings (no exponent, at most 40 digits on either side of the point) of the
// numbers in the range as paths between two states. An empty range adds none.
void emit(const NumberRange& range, AutomatonBuilder& out, State from, State to);

}  // namespace bam::constraints
