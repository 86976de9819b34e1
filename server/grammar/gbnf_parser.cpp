#include "base/error.h"
#include "server/grammar/cfg.h"
#include "server/grammar/grammar_scanner.h"

namespace bam::constraints {
namespace {

class GbnfParser : GrammarScanner {
 public:
  explicit GbnfParser(std::string_view text) : GrammarScanner(text) {}

  Cfg parse() {
    skip_space();
    while (!at_end()) {
      const size_t at = line();
      const std::string name = take_name();
      skip_space();
      if (!take(U"::=")) fail_unexpected(fmt::format("\"::=\" after the rule name \"{}\"", name));
      cfg_.define(name, parse_alternatives(0), at);
      if (!at_end() && !starts_rule()) fail_unexpected("a part of a rule");
    }
    return std::move(cfg_);
  }

 private:
  static bool is_name(char32_t c) { return is_name_letter(c) || is_decimal(c) || c == U'-'; }

  void skip_space() {
    while (!at_end()) {
      const char32_t c = peek();
      if (c == U'#') {
        while (!at_end() && peek() != U'\n') ++pos_;
      } else if (c == U' ' || c == U'\t' || c == U'\r' || c == U'\n') {
        ++pos_;
      } else {
        break;
      }
    }
  }

  std::string take_name() {
    const size_t from = pos_;
    while (is_name(peek())) ++pos_;
    if (pos_ == from) fail_unexpected("a rule name");
    return to_utf8(std::u32string_view(text_).substr(from, pos_ - from));
  }

  // A name with "::=" behind it ends the rule before; line ends mean nothing.
  bool starts_rule() {
    const size_t at = pos_;
    while (is_name(peek())) ++pos_;
    const bool named = pos_ > at;
    skip_space();
    const bool starts = named && looking_at(U"::=");
    pos_ = at;
    return starts;
  }

  Cfg::NodeId parse_alternatives(int depth) {
    if (depth > kMaxNesting) fail("groups nested too deep");
    std::vector<Cfg::NodeId> parts;
    do parts.push_back(parse_sequence(depth));
    while (take(U"|"));
    return cfg_.either(std::move(parts));
  }

  Cfg::NodeId parse_sequence(int depth) {
    std::vector<Cfg::NodeId> parts;
    for (skip_space(); !at_end() && peek() != U'|' && peek() != U')' && !starts_rule(); skip_space()) {
      parts.push_back(parse_repeats(parse_part(depth)));
    }
    return cfg_.sequence(std::move(parts));
  }

  Cfg::NodeId parse_part(int depth) {
    const size_t at = line();
    if (peek() == U'"') return parse_literal();
    if (peek() == U'[') return parse_class();
    if (take(U".")) return cfg_.set(CodepointSet::all());
    if (peek() == U'(') {
      if (looking_at(U"(=") || looking_at(U"(!")) fail("lookahead is not supported");
      ++pos_;
      const Cfg::NodeId group = parse_alternatives(depth + 1);
      if (!take(U")")) fail_unexpected("')'");
      return group;
    }
    if (peek() == U'<' || peek() == U'!') fail("references to tokens (<…>) are not supported: write the text");
    if (is_name(peek())) return cfg_.rule(take_name(), at);
    fail_unexpected("a part of a rule");
  }

  Cfg::NodeId parse_literal() {
    ++pos_;
    std::u32string text;
    while (peek() != U'"') {
      if (at_end()) fail("a text without its closing '\"'");
      text.push_back(take_character());
    }
    ++pos_;
    return cfg_.literal(to_utf8(text));
  }

  Cfg::NodeId parse_class() {
    ++pos_;
    const bool negated = take(U"^");
    std::vector<CodepointSet::Range> ranges;
    while (!take(U"]")) {
      if (at_end()) fail("a character class without ']'");
      const char32_t lo = take_character();
      char32_t hi = lo;
      if (peek() == U'-' && peek(1) != U']' && pos_ + 1 < text_.size()) {
        ++pos_;
        hi = take_character();
        if (hi < lo) fail("a range with its ends in the wrong order");
      }
      ranges.push_back({lo, hi});
    }
    CodepointSet set(std::move(ranges));
    return cfg_.set(negated ? set.complement() : std::move(set));
  }

  Cfg::NodeId parse_repeats(Cfg::NodeId part) {
    skip_space();
    if (take(U"*")) {
      part = cfg_.repeat(part, 0, kNoLimit);
    } else if (take(U"+")) {
      part = cfg_.repeat(part, 1, kNoLimit);
    } else if (take(U"?")) {
      part = cfg_.repeat(part, 0, 1);
    } else if (peek() == U'{') {
      part = parse_counted(part);
    } else {
      return part;
    }
    skip_space();
    if (peek() == U'*' || peek() == U'+' || peek() == U'?' || peek() == U'{') {
      fail("a quantifier on a quantifier: put the inner one into parentheses");
    }
    return part;
  }

  Cfg::NodeId parse_counted(Cfg::NodeId part) {
    ++pos_;
    skip_space();
    auto min = take_count();
    auto max = min;
    skip_space();
    if (take(U",")) {
      skip_space();
      max = take_count();
      if (!min && !max) fail_unexpected("a repeat count");
      if (!max) max = kNoLimit;
      skip_space();
    }
    if (!max) fail_unexpected("a repeat count");
    if (!take(U"}")) fail_unexpected("'}'");
    check_counts(min.value_or(0), *max);
    return cfg_.repeat(part, min.value_or(0), *max);
  }

  Cfg cfg_;
};

}  // namespace

void build_gbnf(std::string_view text, AutomatonBuilder& out) { GbnfParser(text).parse().build("root", out); }

void build_grammar(std::string_view text, AutomatonBuilder& out) {
  // Lark's notation could have it in a text only: "::=".
  const bool gbnf = text.find("::=") != std::string_view::npos;
  return gbnf ? build_gbnf(text, out) : build_lark(text, out);
}

}  // namespace bam::constraints
