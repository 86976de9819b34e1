#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "server/grammar/cfg.h"
#include "server/grammar/grammar_scanner.h"
#include "server/grammar/regex.h"

namespace bam::constraints {
namespace {

// Lark's library of terminals, as regular expressions.
constexpr std::array<std::pair<std::string_view, std::string_view>, 26> kCommon = {{
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"_EXP", "[eE][+-]?[0-9]+"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"NUMBER", R"(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", R"([ \t]+)"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"CR", R"(\r)"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"CPP_COMMENT", R"(//[^\n]*)"},
    {"SQL_COMMENT", R"(--[^\n]*)"},
    {"C_COMMENT", R"(/\*([^*]|\*+[^*/])*\*+/)"},
    {"_STRING_ESC_INNER", R"(([^"\\\n]|\\[^\n])*)"},
}};

CodepointSet both_cases(const CodepointSet& set) {
  std::vector<CodepointSet::Range> ranges = set.ranges();
  for (char32_t c = U'a'; c <= U'z'; ++c) {
    const char32_t upper = c - U'a' + U'A';
    if (set.contains(c)) ranges.push_back({upper, upper});
    if (set.contains(upper)) ranges.push_back({c, c});
  }
  return CodepointSet(std::move(ranges));
}

// Rules are made of terminals, between which what %ignore names may stand; terminals are made of characters.
class LarkParser : GrammarScanner {
 public:
  explicit LarkParser(std::string_view text) : GrammarScanner(text) {}

  Cfg parse() {
    for (skip_space(true); !at_end(); skip_space(true)) {
      if (take(U"%")) {
        parse_directive();
      } else {
        parse_definition();
      }
      skip_space(false);
      if (!at_end() && peek() != U'\n') fail_unexpected("the end of the line");
    }
    const Cfg::NodeId ignored = ignored_.empty() ? cfg_.empty() : cfg_.repeat(cfg_.either(ignored_), 0, kNoLimit);
    cfg_.define(kIgnored, ignored, line());
    if (!cfg_.defined("start")) fail("the grammar has no rule \"start\", which is where it begins");
    cfg_.define(kText, cfg_.sequence({cfg_.rule(kIgnored, 1), cfg_.rule("start", 1)}), 1);
    return std::move(cfg_);
  }

  static constexpr const char* kText = "%text";  // no name of the grammar's own has a '%'

 private:
  static constexpr const char* kIgnored = "%ignore";

  static bool is_name(char32_t c) { return is_name_letter(c) || is_decimal(c); }
  static bool is_terminal(const std::string& name) {
    const size_t first = name.find_first_not_of('_');
    return first != std::string::npos && name[first] >= 'A' && name[first] <= 'Z';
  }

  void skip_space(bool lines) {
    while (!at_end()) {
      const char32_t c = peek();
      if (looking_at(U"//") || c == U'#') {
        while (!at_end() && peek() != U'\n') ++pos_;
      } else if (c == U' ' || c == U'\t' || c == U'\r' || (lines && c == U'\n')) {
        ++pos_;
      } else {
        break;
      }
    }
  }

  // Inside brackets, and before '|', a line goes on below.
  void skip_within(int depth) {
    skip_space(depth > 0);
    const size_t at = pos_;
    skip_space(true);
    if (peek() != U'|') pos_ = at;
  }

  std::string take_name() {
    const size_t from = pos_;
    if (is_name_letter(peek())) {
      while (is_name(peek())) ++pos_;
    }
    if (pos_ == from) fail_unexpected("a name");
    return to_utf8(std::u32string_view(text_).substr(from, pos_ - from));
  }

  void parse_definition() {
    const size_t at = line();
    while (take(U"?") || take(U"!")) {  // how trees are shaped, which is nobody's concern here
    }
    const std::string name = take_name();
    if (peek() == U'{') fail("templates are not supported");
    if (take(U".")) {
      take(U"-");
      while (is_decimal(peek())) ++pos_;  // a priority
    }
    skip_space(false);
    if (!take(U":")) fail_unexpected(fmt::format("':' after the name \"{}\"", name));
    in_terminal_ = is_terminal(name);
    cfg_.define(name, parse_alternatives(0), at);
  }

  void parse_directive() {
    const std::string directive = take_name();
    skip_space(false);
    if (directive == "ignore") {
      in_terminal_ = true;
      ignored_.push_back(parse_alternatives(0));
    } else if (directive == "import") {
      parse_import();
    } else {
      fail(fmt::format("%{} is not supported", directive));
    }
  }

  // %import common.NAME, %import common.NAME -> OTHER, %import common (NAME, NAME)
  void parse_import() {
    if (take_name() != "common") fail("only \"common\" can be imported");
    const auto import = [this](const std::string& name) {
      const size_t at = line();
      const auto known = std::find_if(kCommon.begin(), kCommon.end(), [&](const auto& e) { return e.first == name; });
      if (known == kCommon.end()) fail(fmt::format("\"common\" has no terminal {}", name));
      skip_space(false);
      std::string alias = name;
      if (take(U"->")) {
        skip_space(false);
        alias = take_name();
      }
      cfg_.define(alias, cfg_.pattern(compile_pattern(known->second, RegexMatch::kWhole)), at);
    };
    if (take(U".")) return import(take_name());
    skip_space(false);
    if (!take(U"(")) fail_unexpected("'.' or '('");
    do {
      skip_space(true);
      import(take_name());
      skip_space(true);
    } while (take(U","));
    if (!take(U")")) fail_unexpected("')'");
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
    for (skip_within(depth);; skip_within(depth)) {
      const char32_t c = peek();
      if (at_end() || c == U'\n' || c == U'|' || c == U')' || c == U']') break;
      if (take(U"->")) {  // the name of an alternative's tree
        skip_space(false);
        take_name();
        skip_within(depth);
        break;
      }
      parts.push_back(parse_repeats(parse_part(depth)));
    }
    return cfg_.sequence(std::move(parts));
  }

  Cfg::NodeId parse_part(int depth) {
    const size_t at = line();
    if (take(U"(")) {
      const Cfg::NodeId group = parse_alternatives(depth + 1);
      if (!take(U")")) fail_unexpected("')'");
      return group;
    }
    if (take(U"[")) {
      const Cfg::NodeId group = parse_alternatives(depth + 1);
      if (!take(U"]")) fail_unexpected("']'");
      return cfg_.repeat(group, 0, 1);
    }
    if (peek() == U'"') return lexeme(parse_text());
    if (peek() == U'/') return lexeme(parse_pattern());
    const std::string name = take_name();
    if (peek() == U'{') fail("templates are not supported");
    return is_terminal(name) ? lexeme(cfg_.rule(name, at)) : cfg_.rule(name, at);
  }

  Cfg::NodeId lexeme(Cfg::NodeId part) {
    return in_terminal_ ? part : cfg_.sequence({part, cfg_.rule(kIgnored, line())});
  }

  std::u32string take_text() {
    if (!take(U"\"")) fail_unexpected("a text in '\"'");
    std::u32string text;
    while (peek() != U'"') {
      if (at_end() || peek() == U'\n') fail("a text without its closing '\"'");
      text.push_back(take_character());
    }
    ++pos_;
    return text;
  }

  // "text", "text"i, "a".."z"
  Cfg::NodeId parse_text() {
    const std::u32string text = take_text();
    if (take(U"..")) {
      const std::u32string last = take_text();
      if (text.size() != 1 || last.size() != 1) fail("a range needs one character on each side");
      if (last[0] < text[0]) fail("a range with its ends in the wrong order");
      return cfg_.set(CodepointSet({{text[0], last[0]}}));
    }
    if (!take(U"i")) return cfg_.literal(to_utf8(text));
    std::vector<Cfg::NodeId> characters;
    for (char32_t c : text) characters.push_back(cfg_.set(both_cases(CodepointSet({{c, c}}))));
    return cfg_.sequence(std::move(characters));
  }

  // /pattern/flags
  Cfg::NodeId parse_pattern() {
    ++pos_;
    std::u32string pattern;
    while (peek() != U'/') {
      if (at_end() || peek() == U'\n') fail("a pattern without its closing '/'");
      if (peek() == U'\\' && peek(1) == U'/')
        ++pos_;
      else if (peek() == U'\\')
        pattern.push_back(text_[pos_++]);
      if (at_end()) fail("a pattern without its closing '/'");
      pattern.push_back(text_[pos_++]);
    }
    ++pos_;
    bool any_case = false;
    for (; is_name_letter(peek()); ++pos_) {
      if (peek() == U'u') continue;  // Unicode, always
      if (peek() != U'i') fail("only the flag i of a pattern is supported");
      any_case = true;
    }
    // The complement of a class would have to be taken after its case was widened.
    if (any_case && pattern.find(U"[^") != std::u32string::npos)
      fail("the flag i with a negated class is not supported");
    try {
      CodepointNfa nfa = compile_pattern(to_utf8(pattern), RegexMatch::kWhole);
      if (any_case) std::transform(nfa.sets.begin(), nfa.sets.end(), nfa.sets.begin(), both_cases);
      return cfg_.pattern(std::move(nfa));
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  Cfg::NodeId parse_repeats(Cfg::NodeId part) {
    if (take(U"*")) return cfg_.repeat(part, 0, kNoLimit);
    if (take(U"+")) return cfg_.repeat(part, 1, kNoLimit);
    if (take(U"?")) return cfg_.repeat(part, 0, 1);
    const size_t at = pos_;
    skip_space(false);
    if (!take(U"~")) {
      pos_ = at;
      return part;
    }
    skip_space(false);
    const auto min = take_count();
    auto max = min;
    skip_space(false);
    if (take(U"..")) {
      skip_space(false);
      max = take_count();
    }
    if (!min || !max) fail_unexpected("a repeat count");
    check_counts(*min, *max);
    return cfg_.repeat(part, *min, *max);
  }

  Cfg cfg_;
  bool in_terminal_ = false;
  std::vector<Cfg::NodeId> ignored_;
};

}  // namespace

void build_lark(std::string_view text, AutomatonBuilder& out) {
  LarkParser(text).parse().build(LarkParser::kText, out);
}

}  // namespace bam::constraints
