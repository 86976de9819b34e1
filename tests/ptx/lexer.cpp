#include "tests/ptx/lexer.h"

#include <charconv>

namespace ptx {

namespace {

bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' || c == '.';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool continues_name(char c) { return starts_name(c) || is_digit(c); }

}  // namespace

Token Lexer::take() {
  const Token token = token_;
  taken_ = at_;
  advance();
  return token;
}

void Lexer::expect(std::string_view what) {
  if (!token_.is(what)) fail("expected " + std::string(what) + ", found " + std::string(token_.text));
  take();
}

bool Lexer::accept(std::string_view what) {
  if (!token_.is(what)) return false;
  take();
  return true;
}

void Lexer::skip_braces() {
  for (int depth = 1; depth > 0;) {
    const Token token = take();
    if (token.kind == Token::Kind::kEnd) fail("a brace is never closed");
    if (token.is("{")) ++depth;
    if (token.is("}")) --depth;
  }
}

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (text_.substr(at_, 2) == "/*") {
      const size_t end = text_.find("*/", at_);
      if (end == std::string_view::npos) throw ParseError(line_, "a comment is never closed");
      for (; at_ < end + 2; ++at_) line_ += text_[at_] == '\n';
    } else {
      return;
    }
  }
}

// Decimal, 0x..., 0f<8 hex digits>, 0d<16 hex digits>.
void Lexer::read_number() {
  const size_t begin = at_;
  int base = 10;
  if (text_[at_] == '0' && at_ + 1 < text_.size() &&
      std::string_view("xXfFdD").find(text_[at_ + 1]) != std::string_view::npos) {
    base = 16;
    at_ += 2;
  }
  const char* first = text_.data() + at_;
  const auto result = std::from_chars(first, text_.data() + text_.size(), token_.bits, base);
  if (result.ec != std::errc()) throw ParseError(line_, "not a number");
  at_ = static_cast<size_t>(result.ptr - text_.data());
  if (at_ < text_.size() && text_[at_] == 'U') ++at_;
  token_.kind = Token::Kind::kNumber;
  token_.text = text_.substr(begin, at_ - begin);
}

void Lexer::advance() {
  skip_blanks();
  token_ = {Token::Kind::kEnd, {}, 0, line_};
  if (at_ >= text_.size()) return;
  const size_t begin = at_;
  const char c = text_[at_];
  if (is_digit(c)) return read_number();
  if (starts_name(c)) {
    while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    token_.kind = Token::Kind::kName;
  } else if (c == '"') {
    at_ = text_.find('"', at_ + 1);
    if (at_ == std::string_view::npos) throw ParseError(line_, "a string is never closed");
    ++at_;
    token_.kind = Token::Kind::kString;
    token_.text = text_.substr(begin + 1, at_ - begin - 2);
    return;
  } else {
    ++at_;
    token_.kind = Token::Kind::kPunctuation;
  }
  token_.text = text_.substr(begin, at_ - begin);
}

}  // namespace ptx
