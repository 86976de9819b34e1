#include "server/grammar/tool_calls.h"

#include <random>

#include <gtest/gtest.h>

#include "server/grammar/constraint.h"
#include "tests/server/grammar/constraint_testing.h"

namespace bam {
namespace {

using testing::accepts;
using testing::sample;
using testing::TestVocabulary;
using Content = ToolCallGrammar::Content;

constexpr const char* kWeather =
    R"({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer",
"minimum": 1, "maximum": 9}}, "required": ["city", "days"]})";
constexpr const char* kNothing = R"({"type": "object", "additionalProperties": false})";
const std::string kCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>";
const std::string kPing = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";

std::shared_ptr<const Constraint> compiled(const ToolCallGrammar& grammar) {
  auto result = compile_tool_calls(grammar, TestVocabulary::usual().vocabulary);
  if (!result.ok()) throw result.error();
  return std::move(result).value();
}

ToolCallGrammar grammar_of(Content content, size_t max_calls) {
  return {.tools = {{"weather", kWeather, "tools[0]"}, {"ping", kNothing, "tools[1]"}},
          .max_calls = max_calls,
          .content = content};
}

TEST(ToolCalls, RequiredCallsOnly) {
  const auto one = compiled(grammar_of(Content::kNone, 1));
  EXPECT_TRUE(accepts(*one, kCall));
  EXPECT_TRUE(accepts(*one, kPing));
  EXPECT_FALSE(accepts(*one, ""));
  EXPECT_FALSE(accepts(*one, "Sure. " + kCall));
  EXPECT_FALSE(accepts(*one, kCall + "\n" + kPing)) << "one is enough";
  EXPECT_FALSE(accepts(*one, "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(*one, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"));
  const auto two = compiled(grammar_of(Content::kNone, 2));
  EXPECT_TRUE(accepts(*two, kPing));
  EXPECT_TRUE(accepts(*two, kCall + "\n" + kPing));
  EXPECT_FALSE(accepts(*two, kCall + "\n" + kPing + "\n" + kPing));
}

TEST(ToolCalls, TextInFront) {
  const auto free = compiled(grammar_of(Content::kAnyText, 2));
  for (const std::string text :
       {"", "Hello", "a < b <tool_", "<<tool_call", "<tool_call", "<tool_cal<tool_call", "é漢😀\n"}) {
    EXPECT_TRUE(accepts(*free, text)) << text;
    EXPECT_TRUE(accepts(*free, text.ends_with("<tool_call") ? text : text + kCall)) << text;
  }
  EXPECT_TRUE(accepts(*free, "<tool_cal<" + kCall.substr(1)));
  EXPECT_FALSE(accepts(*free, "<tool_call>"));
  EXPECT_FALSE(accepts(*free, "<tool_call> no")) << "behind the marker there is a call";
  EXPECT_FALSE(accepts(*free, kCall + " and then"));
}

TEST(ToolCalls, JsonInstead) {
  ToolCallGrammar grammar = grammar_of(Content::kJsonSchema, 1);
  grammar.content_schema = R"({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]})";
  const auto schema = compiled(grammar);
  EXPECT_TRUE(accepts(*schema, R"({"x": true})"));
  EXPECT_TRUE(accepts(*schema, kCall));
  EXPECT_FALSE(accepts(*schema, "Hello"));
  EXPECT_FALSE(accepts(*schema, R"({"x": true})" + kCall));
  const auto object = compiled(grammar_of(Content::kJsonObject, 1));
  EXPECT_TRUE(accepts(*object, R"({"y": [1, {}]})"));
  EXPECT_TRUE(accepts(*object, kPing));
}

TEST(ToolCalls, EveryTextIsOne) {
  const auto calls = compiled(grammar_of(Content::kNone, 3));
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const auto text = sample(*calls, random, 400);
    ASSERT_TRUE(text);
    EXPECT_TRUE(text->starts_with("<tool_call>\n{\"name\": \"")) << *text;
    EXPECT_TRUE(text->ends_with("}\n</tool_call>")) << *text;
  }
}

TEST(ToolCalls, ErrorsNameTheFieldAndThePointer) {
  ToolCallGrammar grammar = grammar_of(Content::kAnyText, 1);
  grammar.tools[1].schema = R"({"type": "object", "properties": {"a": {"not": {}}}})";
  const auto result = compile_tool_calls(grammar, TestVocabulary::usual().vocabulary);
  ASSERT_FALSE(result.ok());
  EXPECT_STREQ(result.error().what(), "tools: tools[1]: /properties/a/not: this keyword is not supported");
}

// A reference begins at the tool's own schema.
TEST(ToolCalls, SchemasDoNotSeeEachOther) {
  ToolCallGrammar grammar = grammar_of(Content::kNone, 1);
  grammar.tools[0].schema =
      R"({"type": "object", "properties": {"v": {"$ref": "#/$defs/v"}}, "required": ["v"], "$defs": {"v": {"const": 1}}})";
  grammar.tools[1].schema =
      R"({"type": "object", "properties": {"v": {"$ref": "#/$defs/v"}}, "required": ["v"], "$defs": {"v": {"const": 2}}})";
  const auto calls = compiled(grammar);
  EXPECT_TRUE(accepts(*calls, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"v\": 1}}\n</tool_call>"));
  EXPECT_FALSE(accepts(*calls, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"v\": 2}}\n</tool_call>"));
  EXPECT_TRUE(accepts(*calls, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"v\": 2}}\n</tool_call>"));
}

}  // namespace
}  // namespace bam
