#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "server/grammar/regex.h"
#include "server/grammar/regex_ast.h"

namespace bam::constraints {
namespace {

using Kind = RegexAst::Kind;
constexpr int kMaxGroupDepth = 100;

const CodepointSet& digits() {
  static const CodepointSet set({{'0', '9'}});
  return set;
}
const CodepointSet& word_characters() {
  static const CodepointSet set({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}});
  return set;
}
const CodepointSet& spaces() {
  static const CodepointSet set({{'\t', '\r'}, {' ', ' '}});
  return set;
}
const CodepointSet& line_ends() {
  static const CodepointSet set({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  return set;
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

int hex_value(char32_t c) {
  if (is_digit(c)) return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
  return -1;
}

class Parser {
 public:
  explicit Parser(std::u32string_view text) : text_(text) {}

  RegexAst parse() {
    ast_.root = parse_alternatives(0);
    if (!at_end()) fail("unmatched ')'", pos_);
    return std::move(ast_);
  }

 private:
  [[noreturn]] static void fail(std::string_view what, size_t offset) {
    throw Error("{} at offset {} of the pattern", what, offset);
  }
  bool at_end() const { return pos_ >= text_.size(); }
  char32_t peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : U'\0'; }
  bool looking_at(std::u32string_view s) const { return text_.substr(pos_, s.size()) == s; }
  bool take(std::u32string_view s) {
    if (!looking_at(s)) return false;
    pos_ += s.size();
    return true;
  }
  uint32_t offset() const { return static_cast<uint32_t>(pos_); }

  uint32_t add_set(CodepointSet set, uint32_t at) {
    ast_.sets.push_back(std::move(set));
    return ast_.add({.kind = Kind::kSet, .offset = at, .set = static_cast<uint32_t>(ast_.sets.size() - 1)});
  }

  uint32_t parse_alternatives(int depth) {
    if (depth > kMaxGroupDepth) fail("groups nested too deep", pos_);
    RegexAst::Node node{.kind = Kind::kAlternate, .offset = offset()};
    bool has_empty = false;
    do {
      const uint32_t child = parse_sequence(depth);
      // Many empty alternatives say no more than one.
      if (ast_.nodes[child].kind == Kind::kEmpty && std::exchange(has_empty, true)) continue;
      node.children.push_back(child);
    } while (take(U"|"));
    if (node.children.size() == 1) return node.children[0];
    return ast_.add(std::move(node));
  }

  uint32_t parse_sequence(int depth) {
    RegexAst::Node node{.kind = Kind::kConcat, .offset = offset()};
    while (!at_end() && peek() != '|' && peek() != ')') {
      const uint32_t atom = parse_atom(depth);
      node.children.push_back(parse_quantifier(atom));
    }
    if (node.children.empty()) node.kind = Kind::kEmpty;
    if (node.children.size() == 1) return node.children[0];
    return ast_.add(std::move(node));
  }

  uint32_t parse_atom(int depth) {
    const uint32_t at = offset();
    const char32_t c = peek();
    switch (c) {
      case '(': return parse_group(depth);
      case '[': return parse_class();
      case '\\': return parse_escape();
      case '.': ++pos_; return add_set(line_ends().complement(), at);
      case '^': ++pos_; return ast_.add({.kind = Kind::kBegin, .offset = at});
      case '$': ++pos_; return ast_.add({.kind = Kind::kEnd, .offset = at});
      case '*':
      case '+':
      case '?': fail("a quantifier with nothing to repeat", pos_);
      case '{':
        if (read_counts()) fail("a quantifier with nothing to repeat", at);
        break;
      default: break;
    }
    ++pos_;
    return add_set(CodepointSet({{c, c}}), at);
  }

  uint32_t parse_group(int depth) {
    const size_t at = pos_;
    ++pos_;
    if (peek() == '?') {
      if (looking_at(U"?=") || looking_at(U"?!")) fail("lookahead is not supported", at);
      if (looking_at(U"?<=") || looking_at(U"?<!")) fail("lookbehind is not supported", at);
      if (take(U"?P<") || take(U"?<")) {
        while (!at_end() && peek() != '>') ++pos_;
        if (!take(U">")) fail("a group name without '>'", at);
      } else if (!take(U"?:")) {
        fail("only (…), (?:…) and named groups are supported, not inline flags or other (?…)", at);
      }
    }
    const uint32_t inner = parse_alternatives(depth + 1);
    if (!take(U")")) fail("a group without ')'", at);
    return inner;
  }

  // {m} {m,} {m,n} at the current position; the position only moves when it is one.
  std::optional<std::pair<uint32_t, uint32_t>> read_counts() {
    const size_t at = pos_;
    ++pos_;
    if (peek() == ',' && is_digit(peek(1))) fail("write {0,n} instead of {,n}", at);
    const auto min = read_number();
    std::optional<uint32_t> max = min;
    if (min && take(U",")) max = peek() == '}' ? kNoLimit : read_number();
    if (!min || !max || !take(U"}")) {
      pos_ = at;
      return std::nullopt;
    }
    if (*min > kMaxRepeat || (*max != kNoLimit && *max > kMaxRepeat)) {
      fail(fmt::format("a repeat count above {}", kMaxRepeat), at);
    }
    if (*min > *max) fail("a repeat with its bounds in the wrong order", at);
    return std::pair(*min, *max);
  }

  std::optional<uint32_t> read_number() {
    if (!is_digit(peek())) return std::nullopt;
    uint32_t value = 0;
    for (; is_digit(peek()); ++pos_) value = std::min<uint32_t>(value * 10 + (peek() - '0'), 1'000'000);
    return value;
  }

  uint32_t parse_quantifier(uint32_t atom) {
    const uint32_t at = offset();
    uint32_t min = 0, max = kNoLimit;
    if (take(U"?")) {
      max = 1;
    } else if (take(U"+")) {
      min = 1;
    } else if (!take(U"*")) {
      if (peek() != '{') return atom;
      const auto counts = read_counts();
      if (!counts) return atom;
      std::tie(min, max) = *counts;
    }
    const Kind kind = ast_.nodes[atom].kind;
    if (kind == Kind::kBegin || kind == Kind::kEnd) fail("a repeated anchor", at);
    if (peek() == '+') fail("possessive quantifiers are not supported", pos_);
    take(U"?");  // lazy: the same set of texts
    const char32_t next = peek();
    if (next == '*' || next == '+' || next == '?') fail("a quantifier on a quantifier", pos_);
    if (max == 0) return ast_.add({.kind = Kind::kEmpty, .offset = at});
    return ast_.add({.kind = Kind::kRepeat, .offset = at, .min = min, .max = max, .children = {atom}});
  }

  uint32_t parse_escape() {
    const uint32_t at = offset();
    char32_t c = 0;
    if (const CodepointSet* set = read_class_escape()) return add_set(*set, at);
    c = read_character_escape(/*in_class=*/false);
    return add_set(CodepointSet({{c, c}}), at);
  }

  // \d \D \w \W \s \S, else null and nothing is read.
  const CodepointSet* read_class_escape() {
    static const CodepointSet not_digits = digits().complement();
    static const CodepointSet not_word = word_characters().complement();
    static const CodepointSet not_spaces = spaces().complement();
    const CodepointSet* set = nullptr;
    switch (peek(1)) {
      case 'd': set = &digits(); break;
      case 'D': set = &not_digits; break;
      case 'w': set = &word_characters(); break;
      case 'W': set = &not_word; break;
      case 's': set = &spaces(); break;
      case 'S': set = &not_spaces; break;
      default: return nullptr;
    }
    pos_ += 2;
    return set;
  }

  char32_t read_character_escape(bool in_class) {
    const size_t at = pos_;
    ++pos_;
    if (at_end()) fail("a '\\' with nothing after it", at);
    const char32_t c = text_[pos_++];
    switch (c) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'x': return read_hex(2, at);
      case 'u': return read_unicode(at);
      case '0':
        if (is_digit(peek())) fail("octal escapes are not supported", at);
        return '\0';
      case 'b':
        if (in_class) return '\b';
        [[fallthrough]];
      case 'B': fail("word boundaries are not supported", at);
      case 'p':
      case 'P': fail("Unicode property classes are not supported", at);
      case 'k': fail("backreferences are not supported", at);
      case 'A':
      case 'Z':
      case 'z': fail("use ^ and $ instead of \\A and \\Z", at);
      default: break;
    }
    if (is_digit(c)) fail("backreferences are not supported", at);
    if (is_letter(c)) fail(fmt::format("unknown escape \\{}", static_cast<char>(c)), at);
    return c;
  }

  char32_t read_hex(int size, size_t at) {
    char32_t value = 0;
    if (take(U"{")) {
      int count = 0;
      for (; hex_value(peek()) >= 0 && count < 8; ++pos_, ++count) {
        value = value * 16 + static_cast<char32_t>(hex_value(peek()));
      }
      if (count == 0 || !take(U"}")) fail("a malformed hexadecimal escape", at);
    } else {
      for (int i = 0; i < size; ++i, ++pos_) {
        if (hex_value(peek()) < 0) fail("a malformed hexadecimal escape", at);
        value = value * 16 + static_cast<char32_t>(hex_value(peek()));
      }
    }
    if (value > kMaxCodepoint) fail("a code point above U+10FFFF", at);
    return value;
  }

  // \uHHHH, also as a pair of surrogates, or \u{H…}.
  char32_t read_unicode(size_t at) {
    char32_t c = read_hex(4, at);
    if (c >= 0xD800 && c <= 0xDBFF && take(U"\\u")) {
      const char32_t low = read_hex(4, at);
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair", at);
      return 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c >= 0xD800 && c <= 0xDFFF) fail("half of a surrogate pair", at);
    return c;
  }

  uint32_t parse_class() {
    const uint32_t at = offset();
    ++pos_;
    const bool negated = take(U"^");
    if (peek() == ']') fail("an empty character class (write \\] for the bracket)", at);
    std::vector<CodepointSet::Range> ranges;
    while (!take(U"]")) {
      if (at_end()) fail("a character class without ']'", at);
      if (looking_at(U"[:")) fail("POSIX classes are not supported", pos_);
      if (peek() == '\\') {
        if (const CodepointSet* set = read_class_escape()) {
          if (peek() == '-' && peek(1) != ']') fail("a range that starts with a class", pos_);
          ranges.insert(ranges.end(), set->ranges().begin(), set->ranges().end());
          continue;
        }
      }
      const char32_t lo = read_class_character();
      char32_t hi = lo;
      if (peek() == '-' && peek(1) != ']' && pos_ + 1 < text_.size()) {
        ++pos_;
        if (peek() == '\\' && read_class_escape()) fail("a range that ends with a class", pos_);
        hi = read_class_character();
        if (hi < lo) fail("a range with its ends in the wrong order", pos_);
      }
      ranges.push_back({lo, hi});
    }
    CodepointSet set(std::move(ranges));
    return add_set(negated ? set.complement() : std::move(set), at);
  }

  char32_t read_class_character() {
    if (peek() == '\\') return read_character_escape(/*in_class=*/true);
    return text_[pos_++];
  }

  std::u32string_view text_;
  size_t pos_ = 0;
  RegexAst ast_;
};

}  // namespace

RegexAst parse_regex(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error("the pattern has {} bytes, at most {} are allowed", pattern.size(), kMaxPatternBytes);
  }
  const auto text = to_codepoints(pattern);
  if (!text) throw Error("the pattern is not valid UTF-8");
  return Parser(*text).parse();
}

}  // namespace bam::constraints
