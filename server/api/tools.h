// Tools of a chat request: what the model is told about them, what it may call, and how that is constrained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fields.h"
#include "server/grammar/tool_calls.h"
#include "server/jinja/chat_template.h"

namespace bam {

struct ConstraintSpec;

namespace limits {
inline constexpr size_t kTools = 128;
inline constexpr size_t kToolNameBytes = 128;
inline constexpr size_t kToolBytes = 256 * 1024;  // of all descriptions together
inline constexpr size_t kToolCalls = 16;          // of one reply
inline constexpr size_t kMessageToolCalls = 128;
}  // namespace limits

struct ToolUse {
  enum class Choice : uint8_t { kNone, kAuto, kRequired };
  struct Tool {
    std::string name;
    std::string schema;  // of the arguments
    std::string where;   // the field that has it
    bool callable = true;
  };
  Choice choice = Choice::kNone;
  bool parallel = true;
  std::vector<Tool> tools;
  Json definitions;  // for the template, as the request has them

  // The reply may have calls.
  bool active() const { return choice != Choice::kNone; }
};

// `tools`, `tool_choice` and `parallel_tool_calls`; the other constraint of the request is known already.
ToolUse read_tools(FieldReader& in, const ConstraintSpec& constraint);

// `tool_calls`, `tool_call_id` and `name` of one message.
void read_tool_fields(FieldReader& fields, ChatMessage& message);

// What the text of the reply may be; `constraint` is what a reply without calls has to follow.
ToolCallGrammar tool_call_grammar(const ToolUse& use, const ConstraintSpec& constraint);

// For a template that does not know tools: descriptions, calls and answers become text of the messages that it does
// know. No message gets a role that the request has not.
void write_out_tools(const ChatTemplate& chat_template, const ToolUse& use, std::vector<ChatMessage>& messages);

}  // namespace bam
