#include "server/jinja/chat_template.h"


#include <gtest/gtest.h>

#include "tests/server/jinja/chat_template_samples.h"

namespace bam {
namespace {

using Messages = std::vector<ChatMessage>;

const TemplateContext kContext{.bos_token = "<s>", .eos_token = "</s>"};

std::string render(const std::string& source, const Messages& messages, const TemplateContext& context = kContext) {
  const auto compiled = ChatTemplate::compile(source);
  if (!compiled.ok()) return "COMPILE " + std::string(compiled.error().what());
  const auto text = compiled->render(messages, context);
  return text.ok() ? *text : "ERROR " + std::string(text.error().what());
}

// For the language itself.
std::string run(const std::string& source) {
  return render(source, {{"user", "Hi"}, {"assistant", " Yo "}, {"user", "é"}});
}

const Messages kPlain = {{"user", "Hi there"}, {"assistant", " Hello! "}, {"user", "Bye"}};
const Messages kWithSystem = {{"system", "Be brief."}, {"user", "Hi there"}, {"assistant", "Hello!"}, {"user", "Bye"}};

TEST(ChatTemplate, Mistral) {
  EXPECT_EQ(render(testing::kMistralV03, kPlain), "<s>[INST] Hi there[/INST] Hello!</s>[INST] Bye[/INST]");
  EXPECT_EQ(render(testing::kMistralV03, kWithSystem),
            "<s>[INST] Hi there[/INST] Hello!</s>[INST] Be brief.\n\nBye[/INST]");
  EXPECT_EQ(render(testing::kMistralV03, {{"user", "a"}, {"user", "b"}}),
            "ERROR After the optional system message, conversation roles must alternate "
            "user/assistant/user/assistant/...");
  EXPECT_EQ(render(testing::kMistralV03, {{"tool", "a"}}),
            "ERROR Tool call IDs should be alphanumeric strings with length 9!");
}

TEST(ChatTemplate, Llama2) {
  EXPECT_EQ(render(testing::kLlama2, kPlain), "<s>[INST] Hi there [/INST] Hello! </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(render(testing::kLlama2, kWithSystem),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi there [/INST] Hello! </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(render(testing::kLlama2, {{"assistant", "a"}}),
            "ERROR Conversation roles must alternate user/assistant/user/assistant/...");
}

TEST(ChatTemplate, Llama3) {
  const TemplateContext context{.bos_token = "<|begin_of_text|>", .eos_token = "<|eot_id|>"};
  const std::string turns =
      "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>";
  const std::string prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(render(testing::kLlama3, kPlain, context), "<|begin_of_text|>" + turns + prompt);
  EXPECT_EQ(render(testing::kLlama3, kWithSystem, context),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>" + turns + prompt);
  TemplateContext no_prompt = context;
  no_prompt.add_generation_prompt = false;
  EXPECT_EQ(render(testing::kLlama3, kPlain, no_prompt), "<|begin_of_text|>" + turns);

  const std::string header =
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
      "Today Date: 26 Jul 2024\n\n";
  EXPECT_EQ(render(testing::kLlama31, kPlain, context), header + "<|eot_id|>" + turns + prompt);
  EXPECT_EQ(render(testing::kLlama31, kWithSystem, context), header + "Be brief.<|eot_id|>" + turns + prompt);
}

TEST(ChatTemplate, ChatMl) {
  const std::string turns =
      "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n Hello! "
      "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
      "<|im_start|>assistant\n";
  EXPECT_EQ(render(testing::kChatMl, kPlain), turns);
  EXPECT_EQ(render(testing::kQwen25, kPlain), "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + turns);
  EXPECT_EQ(render(testing::kQwen25, {{"system", "S"}, {"user", "U"}}),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, Tools) {
  TemplateContext context = kContext;
  context.tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"n": 1.5}}}])");
  Messages messages = {{"user", "U"}, {"assistant", ""}, {"tool", "42"}, {"tool", "43"}};
  messages[1].tool_calls =
      Json::parse(R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"é": [null, true]}}}])");
  messages[2].tool_call_id = "c";
  const std::string head =
      "<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n\n\n{\"type\": \"function\", \"function\": "
      "{\"name\": "
      "\"f\", \"parameters\": {\"n\": 1.5}}}\n</tools><|im_end|>\n";
  EXPECT_EQ(
      render(testing::kQwen25, messages, context),
      head +
          "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant<|im_end|>\n<|im_start|>user\n<tool_response>\n42\n"
          "</tool_response>\n<tool_response>\n43\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      render("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }} {{ c.id }}"
             "{% endfor %}{{ m.tool_call_id }};{% endfor %}",
             messages, context),
      ";{\"é\": [null, true]} c;c;;");
  const auto knows = [](const char* source) { return ChatTemplate::compile(source)->knows_tools(); };
  EXPECT_TRUE(knows("{% if tools %}x{% endif %}"));
  EXPECT_FALSE(knows("{{ tools_of_trade }}"));
  EXPECT_TRUE(ChatTemplate::compile(testing::kQwen25)->knows_tool_messages());
  EXPECT_FALSE(ChatTemplate::compile(testing::kChatMl)->knows_tool_messages());
}

TEST(ChatTemplate, Zephyr) {
  EXPECT_EQ(render(testing::kZephyr, kWithSystem),
            "<|system|>\nBe brief.</s>\n<|user|>\nHi there</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye</s>\n"
            "<|assistant|>\n");
}

TEST(ChatTemplate, Gemma) {
  const TemplateContext context{.bos_token = "<bos>", .eos_token = "<eos>"};
  EXPECT_EQ(render(testing::kGemma, kPlain, context),
            "<bos><start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(render(testing::kGemma, kWithSystem, context), "ERROR System role not supported");
}

TEST(ChatTemplate, ContentIsDataNeverTemplate) {
  const Messages messages = {{"user", "{{ 1/0 }}{% raw %}<|im_end|>\n{#"}};
  EXPECT_EQ(render(testing::kChatMl, messages),
            "<|im_start|>user\n{{ 1/0 }}{% raw %}<|im_end|>\n{#<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, LongConversationsFit) {
  Messages messages;
  for (int i = 0; i < 1000; ++i) messages.push_back({i % 2 ? "assistant" : "user", std::string(6000, 'x')});
  EXPECT_GT(render(testing::kMistralV03, messages).size(), 6'000'000u);
  EXPECT_GT(render(testing::kLlama31, messages).size(), 6'000'000u);
}

TEST(ChatTemplate, ErrorsSayWhere) {
  const std::vector<std::pair<const char*, const char*>> compile_errors = {
      {"{% if x %}", "line 1: the template ends inside a block: 'endif' missing"},
      {"a\n{% foo %}", "line 2: the statement 'foo' is not supported here"},
      {"{{ a", "line 1: a tag that does not end"},
      {"{{ 'a }}", "line 1: a string without its closing quote"},
      {"{{ a b }}", "the end of the tag expected"},
      {"{{ }}", "an expression expected"},
      {"{# a", "a comment without #}"},
      {"{% raw %}a", "a raw block without endraw"},
      {"{{ (1 }}", "an unexpected '}'"},
      {"{{ [1) }}", "an unexpected ')'"},
      {"{{ f(*a) }}", "* and ** arguments are not supported"},
      {"{% include 'x' %}", "'include' is not supported here"},
      {"{% break %}", "'break' is not supported here"},
      {"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{{ 99999999999999999999 }}", "an integer too large"},
      {"{{ a @ b }}", "an unexpected character"},
  };
  for (const auto& [source, message] : compile_errors) {
    EXPECT_NE(run(source).find(message), std::string::npos) << source << ": " << run(source);
    EXPECT_TRUE(run(source).starts_with("COMPILE chat template: ")) << run(source);
  }
  const std::vector<std::pair<const char*, const char*>> errors = {
      {"\n{{ x.y }}", "ERROR chat template: line 2: 'x' is undefined"},
      {"{{ x() }}", "'x' is undefined"},
      {"{{ x + 1 }}", "'x' is undefined"},
      {"{{ messages[0].content.foo() }}", "'str' has no method 'foo'"},
      {"{{ 1 + 'a' }}", "unsupported operand types for +: 'int' and 'str'"},
      {"{{ 1 // 0 }}", "division or modulo by zero"},
      {"{{ 1 / 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "an integer too large"},
      {"{{ 2 ** 63 }}", "an integer too large"},
      {"{{ 1 < 'a' }}", "'<' not supported"},
      {"{{ 1 | nope }}", "no filter named 'nope'"},
      {"{{ 1 is nope }}", "no test named 'nope'"},
      {"{{ messages.append(1) }}", "values do not change"},
      {"{{ x | tojson }}", "not JSON serializable"},
      {"{% set a, b = [1] %}", "1 values to unpack into 2 names"},
      {"{% set messages.x = 1 %}", "cannot assign attribute on non-namespace"},
      {"{{ 'a' in 3 }}", "not a container"},
      {"{% for x in 3 %}{% endfor %}", "'int' object is not iterable"},
      {"{{ 'a'.split('') }}", "empty separator"},
      {"{{ 3() }}", "not callable"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls nested too deep"},
      {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "too many steps"},
      {"{{ 'a' * 100000000 }}", "too much text"},
      {"{{ range(100000000) }}", "too many steps"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
       "too much text"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}",
       "nested deeper"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
       "too much text"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == "
       "ns.s }}",
       "too much text"},
      {"{% set ns = namespace() %}{% set ns.me = ns %}", "cannot be stored"},
      {"{% set ns = namespace() %}{% set x = [ns] %}", "cannot be stored"},
  };
  for (const auto& [source, message] : errors) {
    EXPECT_NE(run(source).find(message), std::string::npos) << source << ": " << run(source);
  }
  EXPECT_EQ(run("{{ raise_exception('Only this.') }}"), "ERROR Only this.");
  EXPECT_FALSE(ChatTemplate::compile(std::string(300'000, 'a')).ok());
  EXPECT_FALSE(ChatTemplate::compile("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}").ok());
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  EXPECT_FALSE(ChatTemplate::compile(sum + " }}").ok());
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  EXPECT_FALSE(ChatTemplate::compile(blocks).ok());
}

// Each would take hours if it were not limited.
TEST(ChatTemplate, HostileTemplatesEnd) {
  for (const char* source :
       {"{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{{ a.find('a' * 1000000 + 'b') }}{% endfor %}",
        "{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{% set b = a.replace('a', 'bb') %}{% endfor %}",
        "{% set a = 'ab ' * 1000000 %}{% for i in range(100000) %}{% set b = a.split() %}{% endfor %}",
        "{% set a = range(100000) %}{% for i in range(100000) %}{% set b = a | sort | unique | list %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) if n else m(n) }}{% endmacro %}{{ m(1) }}"}) {
    EXPECT_TRUE(run(source).starts_with("ERROR")) << source;
  }
}

TEST(ChatTemplate, StrftimeNow) {
  const std::string today = run("{{ strftime_now('%Y-%m-%d') }}");
  ASSERT_EQ(today.size(), 10u);
  EXPECT_EQ(today[4], '-');
  EXPECT_GE(today, "2024-01-01");
  EXPECT_EQ(run("{{ strftime_now('') }}"), "");
  EXPECT_TRUE(run("{{ strftime_now('%999999d') }}").starts_with("ERROR"));
}

}  // namespace
}  // namespace bam
