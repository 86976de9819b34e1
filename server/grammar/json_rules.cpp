#include "server/grammar/json_rules.h"

#include <algorithm>

#include "server/grammar/codepoints.h"

namespace bam::constraints {
namespace {

constexpr int kMaxIndentSpaces = 32;
constexpr int kMaxIndentTabs = 8;

void hex_digit(AutomatonBuilder& out, State from, State to) {
  out.bytes(from, '0', '9', to);
  out.bytes(from, 'A', 'F', to);
  out.bytes(from, 'a', 'f', to);
}

}  // namespace

// " " or a line break with its indentation.
RuleId JsonRules::space_rule() {
  if (space_) return *space_;
  space_ = out_.add_rule();
  const State start = out_.start(*space_), end = out_.end(*space_);
  out_.byte(start, ' ', end);
  auto indent = [&](State line, char c, int count) {
    for (int i = 0; i < count; ++i) {
      const State next = out_.add_state();
      out_.byte(line, c, next);
      out_.epsilon(next, end);
      line = next;
    }
  };
  const State line = out_.add_state();
  out_.byte(start, '\n', line);
  out_.epsilon(line, end);
  indent(line, ' ', kMaxIndentSpaces);
  indent(line, '\t', kMaxIndentTabs);
  return *space_;
}

State JsonRules::space(State from) {
  const State next = out_.add_state();
  out_.epsilon(from, next);
  out_.call(from, space_rule(), next);
  return next;
}

void JsonRules::literals(std::vector<std::string> texts, State from, State to) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  std::vector<State> path{from};  // states after each byte of the previous text
  std::string_view previous;
  for (const std::string& text : texts) {
    size_t shared = 0;
    while (shared < std::min(text.size(), previous.size()) && text[shared] == previous[shared]) {
      ++shared;
    }
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(out_.add_state());
      out_.byte(path[i], text[i], path[i + 1]);
    }
    out_.epsilon(path.back(), to);
    previous = text;
  }
}

void JsonRules::add_character(State from, State to) {
  static const CodepointSet kRaw =
      CodepointSet({{0x20, kMaxCodepoint}}).minus(CodepointSet({{'"', '"'}, {'\\', '\\'}}));
  emit(kRaw, TextEncoding::kUtf8, out_, from, to);
  const State escape = out_.add_state();
  out_.byte(from, '\\', escape);
  for (char c : std::string_view("\"\\/bfnrt")) out_.byte(escape, c, to);

  // \uXXXX: anything but a surrogate, or a high one followed by a low one.
  const State u = out_.add_state(), after_d = out_.add_state(), high = out_.add_state();
  const State last3 = out_.add_state(), last2 = out_.add_state(), last1 = out_.add_state();
  out_.byte(escape, 'u', u);
  out_.bytes(u, '0', '9', last3);
  for (char base : {'A', 'a'}) {
    const auto a = static_cast<uint8_t>(base), d = static_cast<uint8_t>(base + 3);
    out_.bytes(u, a, static_cast<uint8_t>(a + 2), last3);
    out_.bytes(u, static_cast<uint8_t>(a + 4), static_cast<uint8_t>(a + 5), last3);
    out_.bytes(u, d, d, after_d);
  }
  hex_digit(out_, last3, last2);
  hex_digit(out_, last2, last1);
  hex_digit(out_, last1, to);
  out_.bytes(after_d, '0', '7', last2);
  out_.bytes(after_d, '8', '9', high);
  out_.bytes(after_d, 'A', 'B', high);
  out_.bytes(after_d, 'a', 'b', high);
  const State high1 = out_.add_state(), high2 = out_.add_state(), low = out_.add_state();
  const State low_d = out_.add_state();
  hex_digit(out_, high, high1);
  hex_digit(out_, high1, high2);
  out_.literal(high2, "\\u", low);
  for (char d : {'D', 'd'}) out_.byte(low, d, low_d);
  out_.bytes(low_d, 'C', 'F', last2);
  out_.bytes(low_d, 'c', 'f', last2);
}

RuleId JsonRules::character() {
  if (character_) return *character_;
  character_ = out_.add_rule();
  add_character(out_.start(*character_), out_.end(*character_));
  return *character_;
}

RuleId JsonRules::string() {
  if (string_) return *string_;
  string_ = out_.add_rule();
  const State inside = out_.add_state();
  out_.byte(out_.start(*string_), '"', inside);
  add_character(inside, inside);
  out_.byte(inside, '"', out_.end(*string_));
  return *string_;
}

// min to max digits.
void JsonRules::add_digits(State from, int min, int max, State to) {
  for (int i = 0; i < max; ++i) {
    if (i >= min) out_.epsilon(from, to);
    const State next = out_.add_state();
    out_.bytes(from, '0', '9', next);
    from = next;
  }
  out_.epsilon(from, to);
}

RuleId JsonRules::integer() {
  if (integer_) return *integer_;
  integer_ = out_.add_rule();
  const State start = out_.start(*integer_), end = out_.end(*integer_);
  const State minus = out_.add_state(), more = out_.add_state();
  out_.byte(start, '0', end);
  out_.byte(start, '-', minus);
  out_.bytes(start, '1', '9', more);
  out_.bytes(minus, '1', '9', more);
  add_digits(more, 0, kMaxDigits - 1, end);
  return *integer_;
}

RuleId JsonRules::number() {
  if (number_) return *number_;
  number_ = out_.add_rule();
  const State start = out_.start(*number_), end = out_.end(*number_);
  const State unsigned_start = out_.add_state(), more = out_.add_state(), whole = out_.add_state();
  out_.epsilon(start, unsigned_start);
  out_.byte(start, '-', unsigned_start);
  out_.byte(unsigned_start, '0', whole);
  out_.bytes(unsigned_start, '1', '9', more);
  add_digits(more, 0, kMaxDigits - 1, whole);
  const State point = out_.add_state(), mantissa = out_.add_state();
  out_.byte(whole, '.', point);
  add_digits(point, 1, kMaxDigits, mantissa);
  out_.epsilon(whole, mantissa);
  out_.epsilon(mantissa, end);
  const State exponent_sign = out_.add_state(), exponent = out_.add_state();
  for (char e : {'e', 'E'}) out_.byte(mantissa, e, exponent_sign);
  out_.epsilon(exponent_sign, exponent);
  for (char sign : {'+', '-'}) out_.byte(exponent_sign, sign, exponent);
  add_digits(exponent, 1, 2, end);
  return *number_;
}

RuleId JsonRules::any_value() {
  if (any_value_) return *any_value_;
  any_value_ = out_.add_rule();
  const State start = out_.start(*any_value_), end = out_.end(*any_value_);
  literals({"true", "false", "null"}, start, end);
  for (RuleId rule : {string(), number(), object(), array()}) out_.call(start, rule, end);
  return *any_value_;
}

RuleId JsonRules::object() {
  if (object_) return *object_;
  object_ = out_.add_rule();
  const State open = out_.add_state(), key = out_.add_state(), colon = out_.add_state();
  const State value = out_.add_state(), after = out_.add_state(), comma = out_.add_state();
  out_.byte(out_.start(*object_), '{', open);
  out_.byte(open, '}', out_.end(*object_));
  out_.epsilon(space(open), key);
  out_.call(key, string(), colon);
  out_.byte(colon, ':', value);
  out_.call(space(value), any_value(), after);
  out_.byte(after, ',', comma);
  out_.epsilon(space(comma), key);
  out_.byte(space(after), '}', out_.end(*object_));
  return *object_;
}

RuleId JsonRules::array() {
  if (array_) return *array_;
  array_ = out_.add_rule();
  const State open = out_.add_state(), item = out_.add_state(), after = out_.add_state();
  const State comma = out_.add_state();
  out_.byte(out_.start(*array_), '[', open);
  out_.byte(open, ']', out_.end(*array_));
  out_.epsilon(space(open), item);
  out_.call(item, any_value(), after);
  out_.byte(after, ',', comma);
  out_.epsilon(space(comma), item);
  out_.byte(space(after), ']', out_.end(*array_));
  return *array_;
}

}  // namespace bam::constraints
