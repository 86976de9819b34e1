#include "server/api/tool_call_reader.h"

#include <gtest/gtest.h>

namespace bam {
namespace {

struct Outcome {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool ended_with_calls;
  bool operator==(const Outcome&) const = default;
};

// The text in pieces of `size` bytes.
Outcome read(std::string_view text, size_t size) {
  ToolCallReader reader;
  Outcome outcome;
  const auto add = [&](const std::vector<ToolCallDelta>& deltas) {
    for (const ToolCallDelta& delta : deltas) {
      if (!delta.name.empty()) {
        EXPECT_EQ(static_cast<size_t>(delta.index), outcome.calls.size());
        EXPECT_EQ(delta.id.size(), 9u);
        outcome.calls.emplace_back(delta.name, "");
      }
      outcome.calls.at(static_cast<size_t>(delta.index)).second += delta.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += size) {
    std::vector<ToolCallDelta> deltas;
    const std::string content = reader.push(text.substr(at, size), deltas);
    EXPECT_EQ(content.find("<tool_call>"), std::string::npos);
    outcome.content += content;
    add(deltas);
  }
  outcome.content += reader.flush();
  outcome.ended_with_calls = reader.ended_with_calls();
  return outcome;
}

void expect(std::string_view text, const Outcome& expected) {
  for (size_t size = 1; size <= text.size() + 1; ++size)
    EXPECT_TRUE(read(text, size) == expected) << text << " by " << size;
}

const std::string kArguments = R"({"a": "}]\\\"{", "b": [1, {"c": "\\"}]})";
const std::string kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": " + kArguments + "}\n</tool_call>";

TEST(ToolCallReader, PlainText) {
  expect("Hello", {"Hello", {}, false});
  expect("a < b, <tool, <tool_call", {"a < b, <tool, <tool_call", {}, false});
  expect("<<tool_cal<", {"<<tool_cal<", {}, false});
}

TEST(ToolCallReader, WhatMayOnlyBeCallsHasNoContentWhereItIsCutOff) {
  for (const std::string_view begun : {"<", "<tool_cal"}) {
    ToolCallReader free, bound(true);
    std::vector<ToolCallDelta> calls;
    EXPECT_EQ(free.push(begun, calls), "");
    EXPECT_EQ(free.flush(), begun);
    EXPECT_EQ(bound.push(begun, calls), "");
    EXPECT_EQ(bound.flush(), "");
  }
}

TEST(ToolCallReader, CallsInAnyPieces) {
  expect(kCall, {"", {{"f", kArguments}}, true});
  expect("Well. " + kCall, {"Well. ", {{"f", kArguments}}, true});
  expect("<" + kCall, {"<", {{"f", kArguments}}, true});
  expect(kCall + "\n" + kCall, {"", {{"f", kArguments}, {"f", kArguments}}, true});
}

// max_tokens may come anywhere.
TEST(ToolCallReader, CutOff) {
  expect(kCall.substr(0, kCall.size() - 1), {"", {{"f", kArguments}}, false});
  expect(kCall.substr(0, 20), {"", {}, false});
  const size_t half = kCall.find("[1");
  expect(kCall.substr(0, half), {"", {{"f", kArguments.substr(0, kArguments.find("[1"))}}, false});
  expect(kCall + "\n" + kCall.substr(0, 15), {"", {{"f", kArguments}}, false});
}

}  // namespace
}  // namespace bam
