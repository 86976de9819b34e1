#include "server/api/openai_api.h"

#include <gtest/gtest.h>

#include <cmath>

namespace bam {
namespace {

ApiResult<GenerationRequest> parse(const std::string& text, ApiKind kind = ApiKind::kCompletion) {
  return parse_generation_request(Json::parse(text), kind, {});
}

GenerationRequest accept(const std::string& text, ApiKind kind = ApiKind::kCompletion) {
  auto result = parse(text, kind);
  EXPECT_TRUE(result.ok()) << text << (result.ok() ? "" : result.error().message);
  return result.ok() ? *result : GenerationRequest{};
}

std::string with(const std::string& field, const std::string& value) {
  return R"({"prompt": "x", ")" + field + "\": " + value + "}";
}

TEST(ParseCompletion, Defaults) {
  const GenerationRequest request = accept(R"({"prompt": "hello"})");
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "hello");
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.engine.n, 1);
  EXPECT_FLOAT_EQ(request.engine.sampling.temperature, 1);
  EXPECT_EQ(request.engine.sampling.num_logprobs, -1);
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(request.ignored_fields.empty());
  EXPECT_EQ(accept(R"({"messages": [{"role": "user", "content": "hi"}]})", ApiKind::kChat).max_tokens, std::nullopt);
}

TEST(ParseCompletion, ServerDefaultsYieldToTheRequest) {
  const SamplingDefaults defaults{.temperature = 0.5f, .top_p = 0.8f, .top_k = 7};
  const auto request =
      parse_generation_request(Json::parse(R"({"prompt": "x", "top_p": 0.9})"), ApiKind::kCompletion, defaults);
  EXPECT_FLOAT_EQ(request->engine.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(request->engine.sampling.top_p, 0.9f);
  EXPECT_EQ(request->engine.sampling.top_k, 7);
}

TEST(ParseCompletion, PromptForms) {
  EXPECT_EQ(accept(R"({"prompt": ["a", "b"]})").prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(accept(R"({"prompt": [1, 2, 3]})").prompts.at(0)),
            (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(accept(R"({"prompt": [[1], [2, 3]]})").prompts.size(), 2u);
  for (const char* prompt : {"null", "[]", "5", "{}", "true", "[true]", "[{}]", "[1, \"a\"]", "[1.5]", "[-1]", "[1e10]",
                             "[[1, null]]", "[[[1]]]"}) {
    const auto result = parse(std::string(R"({"prompt": )") + prompt + "}");
    ASSERT_FALSE(result.ok()) << prompt;
    EXPECT_EQ(result.error().status, 400);
    EXPECT_EQ(result.error().param, "prompt");
  }
  EXPECT_FALSE(parse("{}").ok());
  std::string many = "[";
  for (size_t i = 0; i <= limits::kPrompts; ++i) many += i ? ",\"a\"" : "\"a\"";
  EXPECT_NE(parse(R"({"prompt": )" + many + "]}").error().message.find("1025"), std::string::npos);
}

// Every numeric field: what is accepted, and hostile values that must name the field in a 400.
struct NumericField {
  const char* name;
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

TEST(ParseCompletion, NumericFieldsRefuseHostileValues) {
  const std::vector<NumericField> fields = {
      {"max_tokens", {"1", "100", "5.0"}, {"-1", "1.5", "1e30", "99999999999999999999"}},
      {"max_completion_tokens", {"1"}, {"-1", "0.5", "1e30"}},
      {"temperature", {"0", "2", "1e-3"}, {"-0.1", "101", "1e300"}},
      {"top_p", {"1", "0.1"}, {"0", "-1", "1.01", "1e300"}},
      {"top_k", {"-1", "0", "50"}, {"-2", "2.5", "1e12"}},
      {"min_p", {"0", "0.5"}, {"1", "-0.1", "2"}},
      {"seed", {"0", "-5", "9223372036854775807"}, {"1.5", "1e300", "9223372036854775808"}},
      {"n", {"1", "16"}, {"0", "17", "-1", "1.5"}},
      {"best_of", {"1"}, {"0", "2", "17", "1.5"}},
      {"presence_penalty", {"-2", "2"}, {"-2.1", "2.1", "1e300"}},
      {"frequency_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"repetition_penalty", {"1.1"}, {"0", "-1", "1e9"}},
      {"repeat_penalty", {"1.1"}, {"0", "-1", "1e9"}},
      {"min_tokens", {"0", "16"}, {"-1", "17", "1.5", "1e30"}},
      {"logprobs", {"0", "20"}, {"-1", "21", "1.5", "1e9"}},
      {"prompt_logprobs", {"0", "20"}, {"-1", "21", "1.5"}},
      {"priority", {"-2147483648", "2147483647"}, {"2147483648", "-2147483649", "0.5"}},
      {"timeout", {"0.5", "10"}, {"0", "-1", "1e9"}},
      {"truncate_prompt_tokens", {"-1", "1"}, {"0", "-2", "1.5"}},
  };
  for (const NumericField& field : fields) {
    for (const char* value : field.good) EXPECT_TRUE(parse(with(field.name, value)).ok()) << field.name << " " << value;
    std::vector<const char*> bad = field.bad;
    for (const char* value : {"\"1\"", "true", "[]", "{}", "[1]", "\"NaN\""}) bad.push_back(value);
    for (const char* value : bad) {
      const auto result = parse(with(field.name, value));
      ASSERT_FALSE(result.ok()) << field.name << " " << value;
      EXPECT_EQ(result.error().status, 400);
      EXPECT_EQ(result.error().param, field.name) << value;
    }
    EXPECT_TRUE(parse(with(field.name, "null")).ok()) << field.name;
  }
}

TEST(ParseCompletion, BooleansAndStringsAreStrict) {
  for (const char* name : {"stream", "echo", "ignore_eos", "include_stop_str_in_output", "return_token_ids",
                           "return_progress", "add_special_tokens"}) {
    for (const char* value : {"1", "\"true\"", "[]"}) {
      const auto result = parse(with(name, value));
      ASSERT_FALSE(result.ok()) << name << value;
      EXPECT_EQ(result.error().param, name);
    }
  }
  for (const char* name : {"model", "cache_salt", "request_id"}) {
    EXPECT_EQ(parse(with(name, "5")).error().param, name);
  }
  EXPECT_FALSE(parse(with("request_id", "\"a b\"")).ok());
  EXPECT_FALSE(parse(with("request_id", "\"\"")).ok());
  EXPECT_TRUE(parse(with("request_id", "\"a-B_3.x:y\"")).ok());
}

TEST(ParseCompletion, StopStrings) {
  EXPECT_EQ(accept(with("stop", "\"END\"")).stop, std::vector<std::string>{"END"});
  EXPECT_EQ(accept(with("stop", R"(["a", "b"])")).stop.size(), 2u);
  for (const char* value : {"5", "[5]", "\"\"", "[\"\"]", "{}"})
    EXPECT_EQ(parse(with("stop", value)).error().param, "stop");
  std::string many = "[\"0\"";
  for (int i = 1; i < 17; ++i) many += ",\"" + std::to_string(i) + "\"";
  EXPECT_FALSE(parse(with("stop", many + "]")).ok());
  EXPECT_FALSE(parse(with("stop", "\"" + std::string(1025, 'x') + "\"")).ok());
}

TEST(ParseCompletion, LogitBiasForms) {
  using Bias = std::vector<std::pair<int32_t, float>>;
  EXPECT_EQ(accept(with("logit_bias", R"({"15": -1.5})")).engine.sampling.logit_bias, (Bias{{15, -1.5f}}));
  EXPECT_EQ(accept(with("logit_bias", "[[15, 2]]")).engine.sampling.logit_bias, (Bias{{15, 2.0f}}));
  EXPECT_EQ(accept(with("logit_bias", R"({"x": 1, " the": -2})")).text_bias,
            (std::vector<std::pair<std::string, float>>{{"x", 1.0f}, {" the", -2.0f}}));
  EXPECT_EQ(accept(with("logit_bias", R"([["15", 1]])")).text_bias.at(0).first, "15") << "in a list it is a text";
  EXPECT_EQ(accept(with("logit_bias", "[[15, false]]")).engine.sampling.logit_bias.at(0).second, -INFINITY);
  EXPECT_NE(parse(with("logit_bias", R"({"5": 1, "77": 1000})")).error().message.find("77"), std::string::npos);
  EXPECT_NE(parse(with("logit_bias", R"({"-8": 1})")).error().message.find("-8"), std::string::npos);
  for (const char* value :
       {R"({"": 1})", R"({"-1": 1})", R"([["", 1]])", R"({"1": true})", R"({"1": "a"})", R"({"1": 101})",
        R"({"1.5": 1})", "[[1]]", "[1]", "5", "\"a\"", R"({"99999999999": 1})", "[[1, 2, 3]]"}) {
    EXPECT_EQ(parse(with("logit_bias", value)).error().param, "logit_bias") << value;
  }
  std::string many = "{";
  for (int i = 0; i < 1025; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_FALSE(parse(with("logit_bias", many + "}")).ok());
}

TEST(ParseCompletion, EchoAndLogprobs) {
  const GenerationRequest request = accept(R"({"prompt": [1], "echo": true, "max_tokens": 0, "logprobs": 3})");
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.engine.sampling.num_prompt_logprobs, 3);
  EXPECT_EQ(parse(with("max_tokens", "0")).error().param, "max_tokens");
  EXPECT_FALSE(parse(R"({"prompt": "x", "stream": true, "prompt_logprobs": 1})").ok());
}

TEST(ParseCompletion, UnknownFieldsAreNamedAndUserIsNot) {
  const GenerationRequest request =
      accept(R"({"prompt": "x", "user": "u", "mystery": 1, "store": false, "n": null, "audio": null})");
  EXPECT_EQ(request.ignored_fields, (std::vector<std::string>{"mystery", "store"}));
}

TEST(ParseCompletion, SuffixIsRefusedWithAReason) {
  EXPECT_NE(parse(with("suffix", "\"end\"")).error().message.find("left to right"), std::string::npos);
  EXPECT_TRUE(parse(with("suffix", "\"\"")).ok());
}

TEST(ParseCompletion, Constraints) {
  using Kind = ConstraintSpec::Kind;
  EXPECT_EQ(accept(with("response_format", R"({"type": "text"})")).constraint.kind, Kind::kNone);
  EXPECT_EQ(accept(with("response_format", R"({"type": "json_object"})")).constraint.kind, Kind::kJsonObject);
  const auto schema = accept(with(
      "response_format", R"({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}})"));
  EXPECT_EQ(schema.constraint.kind, Kind::kJsonSchema);
  EXPECT_EQ(schema.constraint.text, R"({"type":"object"})");
  const std::string ordered = R"({"type":"object","properties":{"zeta":{"type":"null"},"alpha":{"type":"null"}}})";
  EXPECT_EQ(accept(with("guided_json", ordered)).constraint.text, ordered) << "properties are written in this order";
  EXPECT_EQ(accept(with("regex", "\"a+\"")).constraint.text, "a+");
  EXPECT_EQ(accept(with("guided_regex", "\"a+\"")).constraint.kind, Kind::kRegex);
  EXPECT_EQ(accept(with("structured_outputs", R"({"choice": ["a"]})")).constraint.choices.size(), 1u);
  for (const char* text :
       {R"({"prompt": "x", "regex": "a", "choice": ["b"]})",
        R"({"prompt": "x", "response_format": {"type": "xml"}})",
        R"({"prompt": "x", "response_format": {"type": "json_schema"}})",
        R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}})",
        R"({"prompt": "x", "response_format": "json"})",
        R"({"prompt": "x", "choice": []})",
        R"({"prompt": "x", "choice": [""]})",
        R"({"prompt": "x", "choice": "a"})",
        R"({"prompt": "x", "regex": 5})",
        R"({"prompt": "x", "structured_outputs": {"grammar": 1}})",
        R"({"prompt": "x", "structured_outputs": {"structural_tag": "x"}})",
        R"({"prompt": "x", "structural_tag": {}})",
        R"({"prompt": "x", "structured_outputs": {"whitespace_pattern": " "}})",
        R"({"prompt": "x", "guided_whitespace_pattern": " "})",
        R"({"prompt": "x", "grammar": "a", "guided_grammar": "b"})",
        R"({"prompt": "x", "grammar_lazy": true})",
        R"({"prompt": "x", "allowed_token_ids": []})",
        R"({"prompt": "x", "allowed_token_ids": ["a"]})",
        R"({"prompt": "x", "bad_words": [""]})",
        R"({"prompt": "x", "bad_words": "a"})",
        R"({"prompt": "x", "response_format": {"type": "text", "regex": "a"}})",
        R"({"prompt": "x", "response_format": {"type": "text", "schema": {}}})",
        R"({"prompt": "x", "guided_new": 1})",
        R"({"prompt": "x", "response_format": {"type": "json_schema", "schema": {}, "json_schema": {"schema": {}}}})",
        R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {}, "regex": "a"}}})",
        R"({"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]})",
        R"({"prompt": "x", "tool_choice": "required"})",
        R"({"prompt": "x", "format": "json"})"}) {
    const auto result = parse(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().status, 400);
  }
  EXPECT_FALSE(parse(with("regex", "\"" + std::string(8193, 'a') + "\"")).ok());
}

TEST(ParseChat, MessagesAndContentParts) {
  const auto chat = [](const std::string& messages) {
    return parse("{\"messages\": " + messages + "}", ApiKind::kChat);
  };
  EXPECT_EQ(chat(R"([{"role": "user", "content": "hi"}])")->messages.at(0).content, "hi");
  EXPECT_EQ(chat(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])")
                ->messages.at(0)
                .content,
            "ab");
  EXPECT_EQ(chat(R"([{"role": "assistant", "content": null}])")->messages.at(0).content, "");
  for (const char* messages :
       {"[]", "null", "5", "[5]", "[{}]", R"([{"role": 5}])", R"([{"role": "user", "content": 5}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "user", "content": [{"type": "text"}]}])", R"([{"role": "function", "content": "x"}])",
        R"([{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}])",
        R"([{"role": "tool", "tool_call_id": 5}])",
        R"([{"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "tool_calls": [{}]}])"}) {
    EXPECT_FALSE(chat(messages).ok()) << messages;
  }
  EXPECT_NE(chat(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])")
                .error()
                .message.find("text only"),
            std::string::npos);
}

TEST(ParseChat, Tools) {
  const std::string f = R"({"type": "function", "function": {"name": "f"}})";
  const std::string g = R"({"type": "function", "function": {"name": "g", "parameters": {"properties": {"a": {}}}}})";
  const auto chat = [&](const std::string& fields) {
    return parse(R"({"messages": [{"role": "user", "content": "x"}], "tools": [)" + f + ", " + g + "]" + fields + "}",
                 ApiKind::kChat);
  };
  using Choice = ToolUse::Choice;
  EXPECT_EQ(chat("")->tools.choice, Choice::kAuto);
  EXPECT_EQ(chat("")->tools.tools.at(0).schema, R"({"type":"object","additionalProperties":false})");
  EXPECT_EQ(chat("")->tools.tools.at(1).schema, R"({"properties":{"a":{}},"type":"object"})");
  EXPECT_EQ(chat(R"(, "tool_choice": "none")")->tools.choice, Choice::kNone);
  EXPECT_EQ(chat(R"(, "tool_choice": "required")")->tools.choice, Choice::kRequired);
  const auto named = chat(R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_EQ(named->tools.choice, Choice::kRequired);
  EXPECT_FALSE(named->tools.tools.at(0).callable);
  EXPECT_TRUE(named->tools.tools.at(1).callable);
  const auto allowed =
      chat(R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [)" + f + "]}}");
  EXPECT_EQ(allowed->tools.choice, Choice::kAuto);
  EXPECT_FALSE(allowed->tools.tools.at(1).callable);
  for (const char* choice : {R"("sometimes")", "5", "{}", R"({"type": "function", "function": {"name": "h"}})",
                             R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})"}) {
    EXPECT_EQ(chat(std::string(R"(, "tool_choice": )") + choice).error().param, "tool_choice") << choice;
  }
  EXPECT_FALSE(chat(R"(, "parallel_tool_calls": false)")->tools.parallel);
  EXPECT_EQ(chat(R"(, "regex": "a")").error().param, "tools");
  EXPECT_TRUE(chat(R"(, "regex": "a", "tool_choice": "none")").ok());
  EXPECT_TRUE(chat(R"(, "response_format": {"type": "json_object"})").ok());
}

TEST(ParseChat, MessagesOfTools) {
  const auto request =
      parse(R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function":
      {"name": "f", "arguments": "{\"a\": 1}"}}, {"function": {"name": "g", "arguments": "{"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "42"}]})",
            ApiKind::kChat);
  ASSERT_TRUE(request.ok()) << request.error().message;
  const ChatMessage& caller = request->messages.at(0);
  EXPECT_EQ(caller.tool_calls[0]["function"]["arguments"], Json::parse(R"({"a": 1})"));
  EXPECT_EQ(caller.tool_calls[1]["function"]["arguments"], "{") << "what a reply was cut off at stays a text";
  EXPECT_EQ(request->messages.at(1).tool_call_id, "c1");

  // A template that knows nothing of them gets texts.
  const auto chat_template = ChatTemplate::compile("{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}");
  ToolUse use{.choice = ToolUse::Choice::kAuto,
              .definitions = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])")};
  std::vector<ChatMessage> messages = {{"user", "Go."}, caller, request->messages.at(1), {"tool", "43"}};
  write_out_tools(*chat_template, use, messages);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_TRUE(messages[0].content.starts_with("You can call these tools:\n{\"name\":\"f\"}\n")) << messages[0].content;
  EXPECT_TRUE(messages[0].content.ends_with("\nGo."));
  EXPECT_TRUE(messages[1].content.starts_with(
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>\n<tool_call>"));
  EXPECT_EQ(messages[2].role, "user");
  EXPECT_EQ(messages[2].content, "<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response>");
  // One that knows them gets them as they are.
  const auto knowing =
      ChatTemplate::compile("{% if tools %}{% for m in messages %}{{ m.tool_calls }}{% endfor %}{% endif %}");
  std::vector<ChatMessage> untouched = {caller, {"tool", "43"}};
  write_out_tools(*knowing, use, untouched);
  EXPECT_EQ(untouched[1].role, "tool");
  EXPECT_EQ(untouched[0].content, "");
}

TEST(ParseChat, ToolsAndLogprobs) {
  const auto chat = [](const std::string& field) {
    return parse(R"({"messages": [{"role": "user", "content": "x"}], )" + field + "}", ApiKind::kChat);
  };
  EXPECT_EQ(chat(R"("tools": [{"type": "function"}])").error().param, "tools[0].function");
  EXPECT_EQ(chat(R"("tools": [{"type": "web_search"}])").error().param, "tools[0].type");
  EXPECT_EQ(chat(R"("functions": [{}])").error().param, "functions");
  EXPECT_EQ(chat(R"("tool_choice": "required")").error().param, "tool_choice");
  EXPECT_TRUE(chat(R"("tools": [], "tool_choice": "none")").ok());
  EXPECT_EQ(chat(R"("logprobs": true, "top_logprobs": 5)")->engine.sampling.num_logprobs, 5);
  EXPECT_EQ(chat(R"("logprobs": true)")->engine.sampling.num_logprobs, 0);
  EXPECT_EQ(chat(R"("top_logprobs": 5)").error().param, "top_logprobs");
  EXPECT_EQ(chat(R"("logprobs": 5)").error().param, "logprobs");
  EXPECT_FALSE(chat(R"("max_tokens": 0)").ok());
}

TEST(ParseChat, StreamOptions) {
  const auto request = parse(R"({"messages": [{"role": "user", "content": "x"}], "stream": true,
                                 "stream_options": {"include_usage": true, "continuous_usage_stats": true}})",
                             ApiKind::kChat);
  EXPECT_TRUE(request->include_usage && request->continuous_usage_stats);
  EXPECT_EQ(parse(with("stream_options", "{}")).error().param, "stream_options");
  EXPECT_EQ(parse(R"({"prompt": "x", "stream": true, "stream_options": {"include_usage": 1}})").error().param,
            "stream_options.include_usage");
}

TEST(ParseCompletion, Drafts) {
  const DraftParams usual;
  const auto draft = [](const std::string& value) { return parse(with("draft", value)); };
  EXPECT_EQ(draft("null")->engine.draft.tokens, usual.tokens);
  EXPECT_EQ(draft("{}")->engine.draft.ngram, usual.ngram);
  EXPECT_EQ(draft(R"({"tokens": 0})")->engine.draft.tokens, 0);
  const auto both = draft(R"({"tokens": 32, "ngram": 1})");
  EXPECT_EQ(both->engine.draft.tokens, 32);
  EXPECT_EQ(both->engine.draft.ngram, 1);
  EXPECT_EQ(draft(R"({"tokens": 33})").error().param, "draft.tokens");
  EXPECT_EQ(draft(R"({"ngram": 0})").error().param, "draft.ngram");
  EXPECT_EQ(draft(R"({"ngram": 9})").error().param, "draft.ngram");
  EXPECT_EQ(draft("4").error().param, "draft");
}

}  // namespace
}  // namespace bam
