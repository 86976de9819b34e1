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

// kTrimmed: trim_blocks, lstrip_blocks and no trailing newline, as chat templates are read. kPlain: none of them, and
// keep_trailing_newline, as the templates of evaluation tasks are.
enum class Whitespace : uint8_t { kTrimmed, kPlain };

// Throws Error with the line.
std::vector<Token> tokenize(std::string_view source, Whitespace whitespace = Whitespace::kTrimmed);

}  // namespace bam::jinja
