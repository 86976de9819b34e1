#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

// What a reply gained of one tool call.
struct ToolCallDelta {
  int32_t index = 0;
  std::string id, name;   // in the first delta of a call only
  std::string arguments;  // JSON, piece by piece
};

// Finds the calls in a growing text of the form that server/grammar/tool_calls.h constrains it to. Nothing of a marker,
// or of what could become one, is ever part of the content.
class ToolCallReader {
 public:
  // only_calls: no text may stand before them, so the beginning of a marker is one, even where the text was cut off.
  explicit ToolCallReader(bool only_calls = false) : only_calls_(only_calls) {}

  // Whole characters. Returns what of the text is content; calls are appended to `calls`.
  std::string push(std::string_view text, std::vector<ToolCallDelta>& calls);
  // The text ended: what could have become a marker is content after all.
  std::string flush();

  // Calls that are complete, and nothing after them.
  bool ended_with_calls() const { return num_calls_ > 0 && state_ == State::kContent; }

 private:
  enum class State : uint8_t { kContent, kName, kArguments, kClose };
  bool advance(std::string& content, std::vector<ToolCallDelta>& calls);

  bool only_calls_;
  State state_ = State::kContent;
  std::string held_;
  int32_t num_calls_ = 0;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// Nine letters and digits: the one form that all templates accept.
std::string new_tool_call_id();

}  // namespace bam
