// PTX text as words. Names keep their dots: "ld.global.u32", "%tid.x", ".reg".
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ptx {

class ParseError : public std::runtime_error {
 public:
  ParseError(int line, const std::string& what) : std::runtime_error("ptx:" + std::to_string(line) + ": " + what) {}
};

struct Token {
  enum class Kind : uint8_t { kName, kNumber, kString, kPunctuation, kEnd };
  Kind kind = Kind::kEnd;
  std::string_view text;
  uint64_t bits = 0;  // kNumber
  int line = 0;

  bool is(std::string_view what) const { return kind != Kind::kString && text == what; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text, int line = 1) : text_(text), line_(line) { advance(); }

  const Token& peek() const { return token_; }
  Token take();
  // The next one must be `what`.
  void expect(std::string_view what);
  // Takes it if it is there.
  bool accept(std::string_view what);
  // Up to the brace that closes the one just taken, without looking at what is between.
  void skip_braces();
  // Offset behind the token that was taken last.
  size_t taken() const { return taken_; }
  [[noreturn]] void fail(const std::string& what) const { throw ParseError(token_.line, what); }

 private:
  void advance();
  void skip_blanks();
  void read_number();

  std::string_view text_;
  size_t at_ = 0;
  size_t taken_ = 0;
  int line_;
  Token token_;
};

}  // namespace ptx
