#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/grammar/cfg.h"

namespace bam::constraints {

// What the readers of GBNF and Lark share: a position in the text, lines for messages, quoted characters.
class GrammarScanner {
 protected:
  // Throws Error when the text is too long or not UTF-8.
  explicit GrammarScanner(std::string_view text);

  static constexpr int kMaxNesting = 100;

  bool at_end() const { return pos_ >= text_.size(); }
  char32_t peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : U'\0'; }
  bool looking_at(std::u32string_view s) const { return std::u32string_view(text_).substr(pos_, s.size()) == s; }
  bool take(std::u32string_view s);
  size_t line() const;
  [[noreturn]] void fail(std::string_view what) const;
  // "unexpected 'x'" or "unexpected end".
  [[noreturn]] void fail_unexpected(std::string_view wanted) const;

  // Digits; nullopt when there are none. Beyond kMaxRepeat they are an error.
  std::optional<uint32_t> take_count();
  // The bounds of a repeat, checked.
  void check_counts(uint32_t min, uint32_t max) const;
  // One character of a quoted text or a class, `\n`, `\x41`, `\u00e9` and the like included.
  char32_t take_character();

  std::u32string text_;
  size_t pos_ = 0;

 private:
  mutable size_t counted_to_ = 0, line_ = 1;  // so that many questions about the line take one pass
};

bool is_name_letter(char32_t c);
bool is_decimal(char32_t c);

}  // namespace bam::constraints
