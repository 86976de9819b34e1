#include "server/grammar/cfg.h"

#include <gtest/gtest.h>

#include "tests/server/grammar/constraint_testing.h"

namespace bam {
namespace {

using testing::accepts;
using testing::Driver;
using testing::sample;
using testing::TestVocabulary;

std::shared_ptr<const Constraint> grammar(const std::string& text) {
  auto result = compile_grammar(text, TestVocabulary::usual().vocabulary);
  if (!result.ok()) throw Error("{}\n{}", result.error().what(), text);
  return std::move(result).value();
}

struct Case {
  const char* grammar;
  std::vector<std::string> yes, no;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const auto constraint = grammar(c.grammar);
    for (const auto& text : c.yes) EXPECT_TRUE(accepts(*constraint, text)) << c.grammar << "\nmust accept: " << text;
    for (const auto& text : c.no) EXPECT_FALSE(accepts(*constraint, text)) << c.grammar << "\nmust reject: " << text;
  }
}

TEST(Gbnf, Syntax) {
  check({
      {R"(root ::= "yes" | "no")", {"yes", "no"}, {"", "y", "yesno", "Yes"}},
      {"# a comment\nroot ::= a b # another\na ::= \"x\"\n\nb::=[0-9]+", {"x1", "x42"}, {"x", "1"}},
      {R"(root ::= [a-c]* [^a-z\n] .)", {"1\n", "abc-z", "Zé", "漢字"}, {"", "a", "ab", "\n1"}},
      {R"(root ::= "\"" "\\" "\n\t" "\x41\u00e9\U0001F600" [\]\-\\])",
       {"\"\\\n\tAé😀]", "\"\\\n\tAé😀-"},
       {"\"\\\n\tAé😀x"}},
      {"root ::= \"a\"{2} \"b\"{1,} \"c\"{,2} \"d\"{1,2}", {"aabd", "aabbbccdd"}, {"abd", "aad", "aabcccd", "aabddd"}},
      {"root ::= (\"a\" |\n \"b\" | )\n  \"c\"\n  | d-e_2\nd-e_2 ::= \"d\"", {"ac", "bc", "c", "d"}, {"ab", "cd", ""}},
      {"root ::= item (\",\" root)?\nitem ::= [0-9]", {"1", "1,2,3,4,5,6,7,8,9"}, {"1,", ",1", "12"}},
      {"root ::= ", {""}, {"a"}},
      {"root ::= [+-]? [1-9] [-]", {"+1-", "3-"}, {"-", "+-"}},
  });
}

TEST(Gbnf, RecursionOfEveryKind) {
  check({
      // on the left, directly
      {"root ::= root \"+\" term | term\nterm ::= term \"*\" atom | atom\natom ::= [0-9]+ | \"(\" root \")\"",
       {"1", "1+2", "1+2*3*(4+5)+6", "((1))", "(1+(2*3))*4"},
       {"", "+", "1+", "(1", "1)", "1**2"}},
      // through other rules
      {"root ::= a\na ::= b \"x\" | \"a\"\nb ::= c \"y\" | \"b\"\nc ::= a \"z\" | \"c\"",
       {"a", "bx", "cyx", "azyx", "azyxzyx", "bxzyx"},
       {"", "b", "ax", "zyx", "azy"}},
      // hidden behind what may be empty
      {"root ::= e root \"x\" | \"y\"\ne ::= \"e\" | ",
       {"y", "yx", "yxxx", "eyx", "eeyxx", "eyxx"},
       {"", "x", "ey", "eeyx"}},
      // in the middle and on the right
      {"root ::= \"(\" root \")\" root |", {"", "()", "(())()", "((()())())"}, {"(", ")", "(()", "())"}},
      {"root ::= \"a\" root | \"b\"", {"b", std::string(2000, 'a') + "b"}, {"a", "ba"}},
      {"root ::= root \"a\" | \"b\"", {"b", "b" + std::string(2000, 'a')}, {"a", "ab"}},
      // in a circle that says nothing
      {"root ::= root | a | \"x\"\na ::= root | a a | \"y\"", {"x", "y", "xy", "yyxxy"}, {"", "z"}},
      {"root ::= a* b?\na ::= \"a\"?\nb ::= a a", {"", "a", "aaa"}, {"b"}},
  });
}

TEST(Gbnf, JsonWrittenAsAGrammar) {
  const auto json = grammar(R"gbnf(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf");
  for (const char* text : {"{}", R"({"a": [1, 2.5, {"b": null}], "é": "\u00e9\n"})", "{\n  \"x\": true\n}"}) {
    EXPECT_TRUE(accepts(*json, text)) << text;
  }
  for (const char* text : {"[]", "{\"a\"}", "{\"a\":01}", "{,}"}) EXPECT_FALSE(accepts(*json, text)) << text;
}

TEST(Gbnf, ErrorsNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"root ::= a\nb ::= \"x\"", "line 1: the rule \"a\" is not defined"},
      {"main ::= \"x\"", "no rule \"root\""},
      {"root ::= \"x\"\n\nroot ::= \"y\"", "line 3: the rule \"root\" is defined twice"},
      {"root ::= \"x", "line 1: a text without its closing"},
      {"root ::= [a-z", "a character class without ']'"},
      {"root ::= [z-a]", "wrong order"},
      {"root ::= (\"a\"", "the grammar ends where ')' is expected"},
      {"root ::= \"a\")", "unexpected ')'"},
      {"root ::= \"a\"\n  ::= \"b\"", "line 2: unexpected ':'"},
      {"root ::= \"a\"{5,2}", "wrong order"},
      {"root ::= \"a\"{5000}", "a repeat count above 4096"},
      {"root ::= \"a\"{}", "a repeat count is expected"},
      {"root ::= \"a\"**", "a quantifier on a quantifier"},
      {"root ::= *", "unexpected '*'"},
      {"root ::= \"\\q\"", "unknown escape \\q"},
      {"root ::= \"\\xZZ\"", "malformed hexadecimal"},
      {"root ::= \"\\UFFFFFFFF\"", "above U+10FFFF"},
      {"root ::= \"\\uD800\"", "surrogate"},
      {"root ::= <[1]>", "references to tokens"},
      {"root ::= root \"a\"", "no text can satisfy it"},
      {"root ::= \"(\" root", "no text can satisfy it"},
      {"root ::= \xFF", "not valid UTF-8"},
      {"root ::= " + std::string(200, '('), "nested too deep"},
      {std::string(70'000, ' ') + "root ::= \"a\"", "at most 65536"},
      {"root ::= ((\"a\"{4000}){4000}){4000}", "too large"},
  };
  for (const auto& [text, message] : cases) {
    const auto result = compile_grammar(text, TestVocabulary::usual().vocabulary);
    ASSERT_FALSE(result.ok()) << text.substr(0, 100);
    EXPECT_NE(std::string(result.error().what()).find(message), std::string::npos) << text.substr(0, 100) << "\n"
                                                                                   << result.error().what();
  }
}

TEST(Lark, Syntax) {
  check({
      {"start: \"yes\" | \"no\"", {"yes", "no"}, {"", "yesno"}},
      {"start: A b+\n// comment\nA: \"x\"i\nb: /[0-9]{2}/", {"x12", "X1234"}, {"x", "x1", "xx12"}},
      {"?start: sum\n?sum: product\n    | sum \"+\" product -> add\nproduct: NUM ~ 1..2 [\"!\"]\nNUM: \"0\"..\"9\"",
       {"1", "12+3!", "1+2+3"},
       {"123", "+", "1+"}},
      {"start: item~3\nitem.2: (\"a\" |\n  \"b\")\n", {"aba", "bbb"}, {"ab", "abab"}},
      {"start: \"a\" \"b\"*\n%ignore \" \"\n%ignore /,+/", {"a", " a b ,,b ", "abb"}, {"b", "a;b"}},
      {"start: SIGNED_INT (\",\" ESCAPED_STRING)*\n%import common.SIGNED_INT\n%import common (ESCAPED_STRING, WS -> "
       "SPACE)\n"
       "%ignore SPACE",
       {"-12", "3, \"a\\\"b\" ,\"\""},
       {"", "1,", "1.5"}},
      {"start: /ab|c/i \"\\n\"", {"AB\n", "aB\n", "C\n"}, {"ab", "abc\n"}},
      {"start: _x\n_x: \"1\" [_x]", {"1", "111"}, {""}},
      {"start: WORD\nWORD: LETTER+\nLETTER: \"a\"..\"c\"\n%ignore \" \"", {"abc", " ab "}, {"a b", ""}},
  });
}

TEST(Lark, ErrorsNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"begin: \"a\"", "no rule \"start\""},
      {"start: a\n", "line 1: the rule \"a\" is not defined"},
      {"start: \"a\"\nstart: \"b\"", "line 2: the rule \"start\" is defined twice"},
      {"start: \"a\" %import", "line 1: unexpected '%'"},
      {"%import python.NAME\nstart: NAME", "only \"common\""},
      {"%import common.NOTHING\nstart: NOTHING", "has no terminal NOTHING"},
      {"%declare A\nstart: A", "%declare is not supported"},
      {"a{x}: x\nstart: a{\"b\"}", "templates are not supported"},
      {"start: /(?=a)/", "line 1: lookahead is not supported"},
      {"start: /a/s", "only the flag i"},
      {"start: /[^a]/i", "negated class"},
      {"start: \"ab\"..\"c\"", "one character"},
      {"start \"a\"", "':' after the name"},
      {"start: \"a\" ~ x", "a repeat count is expected"},
      {"just some words", "':' after the name"},
      {"", "no rule \"start\""},
  };
  for (const auto& [text, message] : cases) {
    const auto result = compile_grammar(text, TestVocabulary::usual().vocabulary);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(std::string(result.error().what()).find(message), std::string::npos) << text << "\n"
                                                                                   << result.error().what();
  }
}

// Ambiguity that multiplies with every level ends in an error, when it is compiled or when it is followed.
TEST(Grammar, HostileOnesEndWithinTheirBudget) {
  std::string tower = "root ::= r0\n";
  for (int i = 0; i < 60; ++i)
    tower += fmt::format("r{} ::= r{} \"x\" | r{} \"y\" | r{} \"z\"\n", i, i + 1, i + 1, i + 1);
  tower += "r60 ::= \"a\"\n";
  std::string cycle = "root ::= r0\n";
  for (int i = 0; i < 900; ++i) cycle += fmt::format("r{} ::= r{} \"x\" | [a-c] | \"q{}\"\n", i, (i + 1) % 900, i);
  const std::vector<std::string> grammars = {tower, cycle, "root ::= s\ns ::= s s s | s s | \"a\" | ",
                                             "root ::= a* \"b\"\na ::= b | \"a\" root\nb ::= \"a\" a b | \"a\""};
  int failed = 0;
  for (const auto& text : grammars) {
    const auto result = compile_grammar(text, TestVocabulary::usual().vocabulary);
    if (!result.ok()) {
      ++failed;
      EXPECT_NE(std::string(result.error().what()).find("too "), std::string::npos) << result.error().what();
      continue;
    }
    Driver driver(**result, TestVocabulary::usual());
    for (int i = 0; i < 300 && driver.allows('a'); ++i) driver.accept('a');
    const Constraint& constraint = driver.constraint();
    EXPECT_LE(constraint.work(), constraints::kMaxBurstWork + 301 * (constraints::kMaxWorkPerToken + 1000));
  }
  EXPECT_GE(failed, 1);
}

}  // namespace
}  // namespace bam
