#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bam::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,        // outside of tags, whitespace control already applied
    kBlockBegin,  // {%
    kBlockEnd,
    kPrintBegin,  // {{
    kPrintEnd,
    kName,
    kString,  // text: the value
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  int line;
  std::string text;

  bool is(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
};

// Jinja's lexer with trim_blocks, lstrip_blocks and without keep_trailing_newline. Throws Error with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace bam::jinja
