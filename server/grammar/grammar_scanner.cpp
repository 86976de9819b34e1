#include "server/grammar/grammar_scanner.h"

#include <algorithm>

#include "base/error.h"
#include "server/grammar/regex.h"

namespace bam::constraints {

GrammarScanner::GrammarScanner(std::string_view text) {
  if (text.size() > kMaxGrammarBytes) {
    throw Error("the grammar has {} bytes, at most {} are allowed", text.size(), kMaxGrammarBytes);
  }
  auto codepoints = to_codepoints(text);
  if (!codepoints) throw Error("the grammar is not valid UTF-8");
  text_ = *std::move(codepoints);
}

bool GrammarScanner::take(std::u32string_view s) {
  if (!looking_at(s)) return false;
  pos_ += s.size();
  return true;
}

size_t GrammarScanner::line() const {
  if (pos_ < counted_to_) counted_to_ = 0, line_ = 1;
  for (; counted_to_ < std::min(pos_, text_.size()); ++counted_to_) line_ += text_[counted_to_] == U'\n';
  return line_;
}

void GrammarScanner::fail(std::string_view what) const { throw Error("line {}: {}", line(), what); }

void GrammarScanner::fail_unexpected(std::string_view wanted) const {
  if (at_end()) fail(fmt::format("the grammar ends where {} is expected", wanted));
  fail(fmt::format("unexpected '{}' where {} is expected", to_utf8({&text_[pos_], 1}), wanted));
}

std::optional<uint32_t> GrammarScanner::take_count() {
  if (!is_decimal(peek())) return std::nullopt;
  uint32_t value = 0;
  for (; is_decimal(peek()); ++pos_) value = std::min<uint32_t>(value * 10 + (peek() - U'0'), 1'000'000);
  if (value > kMaxRepeat) fail(fmt::format("a repeat count above {}", kMaxRepeat));
  return value;
}

void GrammarScanner::check_counts(uint32_t min, uint32_t max) const {
  if (min > max) fail("a repeat with its bounds in the wrong order");
}

char32_t GrammarScanner::take_character() {
  const char32_t c = text_[pos_++];
  if (c != U'\\') return c;
  if (at_end()) fail("a '\\' with nothing after it");
  const char32_t kind = text_[pos_++];
  int digits = 0;
  switch (kind) {
    case U'n': return U'\n';
    case U't': return U'\t';
    case U'r': return U'\r';
    case U'f': return U'\f';
    case U'v': return U'\v';
    case U'b': return U'\b';
    case U'0': return U'\0';
    case U'x': digits = 2; break;
    case U'u': digits = 4; break;
    case U'U': digits = 8; break;
    default:
      if (is_name_letter(kind) || is_decimal(kind)) fail(fmt::format("unknown escape \\{}", static_cast<char>(kind)));
      return kind;
  }
  char32_t value = 0;
  for (int i = 0; i < digits; ++i, ++pos_) {
    const char32_t d = peek() | 0x20;  // lower case; digits stay what they are
    const bool letter = d >= U'a' && d <= U'f';
    if (!is_decimal(peek()) && !letter) fail("a malformed hexadecimal escape");
    if (value > kMaxCodepoint) fail("a code point above U+10FFFF");
    value = value * 16 + (letter ? d - U'a' + 10 : peek() - U'0');
  }
  if (value > kMaxCodepoint) fail("a code point above U+10FFFF");
  if (value >= 0xD800 && value <= 0xDFFF) fail("half of a surrogate pair");
  return value;
}

bool is_name_letter(char32_t c) { return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || c == U'_'; }
bool is_decimal(char32_t c) { return c >= U'0' && c <= U'9'; }

}  // namespace bam::constraints
