// How a text calls a tool, and the constraint that makes every call a valid one:
//
//   <tool_call>
//   {"name": "get_weather", "arguments": {"city": "Paris"}}
//   </tool_call>
//
// The form that Hermes and Qwen were trained on and that their templates write. A text has calls at its end only, one
// below the other; whitespace is as shown, except inside the arguments.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/automaton.h"

namespace bam {

namespace tool_call_text {
inline constexpr std::string_view kOpen = "<tool_call>";
inline constexpr std::string_view kBeforeName = "\n{\"name\": \"";
inline constexpr std::string_view kBeforeArguments = "\", \"arguments\": ";
inline constexpr std::string_view kClose = "}\n</tool_call>";
inline constexpr std::string_view kBetween = "\n";
}  // namespace tool_call_text

struct ToolCallGrammar {
  struct Tool {
    std::string name;    // needs no escapes in JSON
    std::string schema;  // of the arguments, which are an object
    std::string where;   // the request's field that has the schema, for errors
  };
  // What the text may be instead of a call, or in front of the first one.
  enum class Content { kNone, kAnyText, kJsonObject, kJsonSchema };

  std::vector<Tool> tools;
  size_t max_calls = 1;
  Content content = Content::kNone;
  std::string content_schema;  // kJsonSchema
};

namespace constraints {

// The builder must be empty. Throws Error with the field and the JSON pointer of what cannot be honoured.
void build_tool_calls(const ToolCallGrammar& grammar, AutomatonBuilder& out);

}  // namespace constraints
}  // namespace bam
