#include "server/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "server/jinja/text.h"

namespace bam::jinja {
namespace {

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_name_start(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

std::string normalized_newlines(std::string_view source, bool keep_last) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!keep_last && out.ends_with('\n')) out.pop_back();
  return out;
}

void append_codepoint(std::string& out, uint32_t c) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static constexpr std::array<uint32_t, 4> kLead{0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[static_cast<size_t>(more)] | (c >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F));
}

class Lexer {
 public:
  Lexer(std::string_view source, Whitespace whitespace)
      : trims_(whitespace == Whitespace::kTrimmed), text_(normalized_newlines(source, !trims_)) {}

  std::vector<Token> run() {
    while (pos_ < text_.size()) {
      const size_t tag = find_tag(pos_);
      const char kind = tag < text_.size() ? text_[tag + 1] : '\0';
      add_text(pos_, tag, kind);
      move_to(tag);
      if (kind == '{') lex_tag("}}", Token::Kind::kPrintBegin, Token::Kind::kPrintEnd);
      if (kind == '%' && !lex_raw()) lex_tag("%}", Token::Kind::kBlockBegin, Token::Kind::kBlockEnd);
      if (kind == '#') skip_comment();
    }
    tokens_.push_back({Token::Kind::kEnd, line_, ""});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { throw Error("line {}: {}", line_, what); }
  bool at(std::string_view s, size_t pos) const { return std::string_view(text_).substr(pos, s.size()) == s; }

  size_t find_tag(size_t from) const {
    for (size_t i = text_.find('{', from); i != std::string::npos; i = text_.find('{', i + 1)) {
      if (i + 1 == text_.size()) break;
      if (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#') return i;
    }
    return text_.size();
  }

  void move_to(size_t pos) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(pos_), text_.begin() + static_cast<ptrdiff_t>(pos), '\n'));
    pos_ = pos;
  }

  // Text up to a tag, whose sign says what happens to the whitespace before it.
  void add_text(size_t from, size_t tag, char kind) {
    size_t end = tag;
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    if (kind != '\0' && sign == '-') {
      while (end > from && is_ascii_space(text_[end - 1])) --end;
    } else if (trims_ && (kind == '%' || kind == '#') && sign != '+') {
      // lstrip_blocks: blanks between the start of the line and a block are the template's own indentation.
      size_t line_start = end;
      while (line_start > from && text_[line_start - 1] != '\n' && is_ascii_space(text_[line_start - 1])) --line_start;
      const bool starts_line = line_start > from ? text_[line_start - 1] == '\n' : line_starting_;
      if (starts_line) end = line_start;
    }
    if (end > from) tokens_.push_back({Token::Kind::kText, line_, text_.substr(from, end - from)});
  }

  // Moves behind a tag's end at pos_ of `length` bytes and what it swallows; `sign` is the character before it.
  void finish_tag(size_t length, char sign, bool keeps_newline) {
    size_t end = pos_ + length;
    if (sign == '-') {
      while (end < text_.size() && is_ascii_space(text_[end])) ++end;
    } else if (trims_ && !keeps_newline && sign != '+' && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    line_starting_ = text_[end - 1] == '\n';
    move_to(end);
  }

  void skip_comment() {
    size_t start = pos_ + 2;
    if (start < text_.size() && (text_[start] == '-' || text_[start] == '+')) ++start;
    const size_t end = text_.find("#}", start);
    if (end == std::string::npos) fail("a comment without #}");
    const char sign = end > start ? text_[end - 1] : '\0';
    move_to(end);
    finish_tag(2, sign == '-' || sign == '+' ? sign : '\0', false);
  }

  // {% raw %} … {% endraw %} at pos_; false when it is another block.
  bool lex_raw() {
    const auto open = match_keyword_tag(pos_, "raw");
    if (!open) return false;
    move_to(open->name_end);
    finish_tag(open->end - open->name_end, open->end_sign, true);  // keeps the newline behind it
    for (size_t i = text_.find("{%", pos_); i != std::string::npos; i = text_.find("{%", i + 1)) {
      const auto close = match_keyword_tag(i, "endraw");
      if (!close) continue;
      add_text(pos_, i, '%');
      move_to(close->name_end);
      finish_tag(close->end - close->name_end, close->end_sign, false);
      return true;
    }
    fail("a raw block without endraw");
  }

  struct KeywordTag {
    size_t name_end, end;
    char end_sign;
  };
  // "{%", a sign, blanks, the keyword, blanks, a sign, "%}".
  std::optional<KeywordTag> match_keyword_tag(size_t tag, std::string_view keyword) const {
    size_t i = tag + 2;
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) ++i;
    while (i < text_.size() && is_ascii_space(text_[i])) ++i;
    if (!at(keyword, i)) return std::nullopt;
    KeywordTag out{.name_end = i + keyword.size(), .end = 0, .end_sign = '\0'};
    i = out.name_end;
    while (i < text_.size() && is_ascii_space(text_[i])) ++i;
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) out.end_sign = text_[i++];
    if (!at("%}", i)) return std::nullopt;
    out.end = i + 2;
    return out;
  }

  void lex_tag(std::string_view close, Token::Kind begin, Token::Kind end) {
    const bool is_print = begin == Token::Kind::kPrintBegin;
    tokens_.push_back({begin, line_, ""});
    size_t start = pos_ + 2;
    if (start < text_.size() && (text_[start] == '-' || text_[start] == '+')) ++start;
    move_to(start);
    std::string brackets;  // closing ones still expected
    while (true) {
      while (pos_ < text_.size() && is_ascii_space(text_[pos_])) move_to(pos_ + 1);
      if (pos_ >= text_.size()) fail("a tag that does not end");
      if (brackets.empty()) {
        const char c = text_[pos_];
        const bool sign = (c == '-' || (c == '+' && !is_print)) && at(close, pos_ + 1);
        if (sign || at(close, pos_)) {
          tokens_.push_back({end, line_, ""});
          finish_tag(sign ? 3 : 2, sign ? c : '\0', is_print);
          return;
        }
      }
      lex_expression_token(brackets);
    }
  }

  void lex_expression_token(std::string& brackets) {
    const char c = text_[pos_];
    if (is_name_start(c)) {
      size_t end = pos_;
      while (end < text_.size() && is_name_part(text_[end])) ++end;
      push(Token::Kind::kName, end);
    } else if (is_digit(c)) {
      lex_number();
    } else if (c == '\'' || c == '"') {
      lex_string(c);
    } else {
      lex_operator(brackets);
    }
  }

  void push(Token::Kind kind, size_t end) {
    tokens_.push_back({kind, line_, text_.substr(pos_, end - pos_)});
    move_to(end);
  }

  void lex_number() {
    auto digits = [&](size_t i) {
      while (i < text_.size() &&
             (is_digit(text_[i]) || (text_[i] == '_' && i + 1 < text_.size() && is_digit(text_[i + 1]))))
        ++i;
      return i;
    };
    size_t end = digits(pos_);
    bool is_float = false;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      end = digits(end + 1);
      is_float = true;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && is_digit(text_[exponent])) {
        end = digits(exponent);
        is_float = true;
      }
    }
    push(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, end);
    std::erase(tokens_.back().text, '_');
  }

  void lex_string(char quote) {
    std::string value;
    size_t i = pos_ + 1;
    while (true) {
      if (i >= text_.size()) fail("a string without its closing quote");
      const char c = text_[i++];
      if (c == quote) break;
      if (c == '\\' && i < text_.size()) {
        i = lex_escape(i, value);
      } else {
        value += c;
      }
    }
    tokens_.push_back({Token::Kind::kString, line_, std::move(value)});
    move_to(i);
  }

  // Python's escapes; i is behind the backslash, the result behind the escape. Unknown ones stay as they are.
  size_t lex_escape(size_t i, std::string& value) const {
    const char c = text_[i];
    static constexpr std::string_view kNames = "ntrabfv\\'\"", kValues = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t k = kNames.find(c); k != std::string_view::npos) {
      value += kValues[k];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    const size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const std::string_view hex = std::string_view(text_).substr(i + 1, width);
    const bool is_hex =
        width > 0 && hex.size() == width && hex.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (is_hex) {
      append_codepoint(value, static_cast<uint32_t>(std::stoul(std::string(hex), nullptr, 16)));
      return i + 1 + width;
    }
    if (c >= '0' && c <= '7') {
      uint32_t octal = 0;
      size_t end = i;
      for (; end < text_.size() && end < i + 3 && text_[end] >= '0' && text_[end] <= '7'; ++end) {
        octal = octal * 8 + static_cast<uint32_t>(text_[end] - '0');
      }
      append_codepoint(value, octal);
      return end;
    }
    value += '\\';
    return i;
  }

  void lex_operator(std::string& brackets) {
    static constexpr std::array<std::string_view, 6> kTwo = {"==", "!=", "<=", ">=", "//", "**"};
    static constexpr std::string_view kOne = "+-*/%~<>=.,:|()[]{};";
    for (std::string_view op : kTwo) {
      if (at(op, pos_)) return push(Token::Kind::kOperator, pos_ + 2);
    }
    const char c = text_[pos_];
    if (kOne.find(c) == std::string_view::npos) fail("an unexpected character in a tag");
    if (c == '(') brackets += ')';
    if (c == '[') brackets += ']';
    if (c == '{') brackets += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) fail(fmt::format("an unexpected '{}'", c));
      brackets.pop_back();
    }
    push(Token::Kind::kOperator, pos_ + 1);
  }

  const bool trims_;
  const std::string text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what was consumed so far ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, Whitespace whitespace) { return Lexer(source, whitespace).run(); }

}  // namespace bam::jinja
