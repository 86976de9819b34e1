#include "server/grammar/json_schema.h"

#include <chrono>

#include <gtest/gtest.h>

#include "tests/server/grammar/constraint_testing.h"

namespace bam {
namespace {

using testing::accepts;
using testing::sample;
using testing::TestVocabulary;

std::shared_ptr<const Constraint> schema(const std::string& text) {
  auto result = compile_json_schema(text, TestVocabulary::usual().vocabulary);
  if (!result.ok()) throw result.error();
  return std::move(result).value();
}

struct Case {
  const char* schema;
  std::vector<std::string> valid, invalid;
};

void check(const std::vector<Case>& cases) {
  for (const auto& c : cases) {
    SCOPED_TRACE(c.schema);
    const auto constraint = schema(c.schema);
    for (const auto& text : c.valid) EXPECT_TRUE(accepts(*constraint, text)) << text;
    for (const auto& text : c.invalid) EXPECT_FALSE(accepts(*constraint, text)) << text;
  }
}

TEST(JsonSchema, Types) {
  check({
      {R"({"type":"string"})", {R"("")", R"("a\u00e9é")", R"( "x")"}, {"a", "\"", "1"}},
      {R"({"type":"integer"})", {"0", "-5", "1234567890123456789"}, {"1.0", "01", "-0", "1e3", ""}},
      {R"({"type":"number"})", {"0", "-0.5", "1e10", "3.25E-7"}, {"1.", ".5", "1e100", "NaN"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
      {R"({"type":"null"})", {"null", "\nnull"}, {"None", "null "}},
      {R"({"type":["string","null"]})", {R"("a")", "null"}, {"1"}},
      {R"({"type":["integer","number"]})", {"1", "1.5"}, {"\"\""}},
      {R"({})", {"1", "[{\"a\":[]}]", "\"\""}, {"", "[1,]"}},
      {R"(true)", {"1", "{}"}, {"tru"}},
      {R"({"description":"only annotations","title":"t","default":3})", {"1", "{}"}, {""}},
      {R"({"type":"object"})", {"{}", R"({"a":{"b":1}})"}, {"[]"}},
      {R"({"type":"array"})", {"[]", "[1, [2]]"}, {"{}"}},
  });
}

TEST(JsonSchema, Objects) {
  check({
      {R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]})",
       {R"({"name":"a","age":1})", R"({"name": "a", "age": 1})", "{\n  \"name\": \"a\",\n  \"age\": 1\n}"},
       {R"({"age":1,"name":"a"})", R"({"name":"a"})", "{}", R"({"name":"a","age":1,"x":1})",
        R"({"name":"a","age":1,})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"required":["b"]})",
       {R"({"b":null})", R"({"a":null,"b":null})", R"({"b":null,"c":null})", R"({"a":null,"b":null,"c":null})"},
       {"{}", R"({"a":null})", R"({"a":null,"c":null})", R"({,"b":null})", R"({"b":null,})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}}})", {"{}", R"({"a":null})"}, {R"({"b":1})"}},
      {R"({"properties":{"a":{"type":"null"}}})", {"{}", R"({"a":null})"}, {"1"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"a":1})", R"({"a":1, "b":2})"},
       {R"({"a":"x"})"}},
      {R"({"type":"object","properties":{"ab":{"type":"string"},"é\"":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"ab":"x","c":1})", R"({"a":1})", R"({"abc":1,"b":2,"":3,"é":4,"\n":5})", R"({"é\"":null})"},
       {R"({"ab":1})", R"({"ab":"x","ab":1})", R"({"é\"":1})", R"({"a\u0062":1})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":true,"required":["a"]})",
       {R"({"a":null})", R"({"a":null,"z":[1]})"},
       {"{}", R"({"z":1})"}},
      {R"({"type":"object","required":["x"]})", {R"({"x":1})", R"({"x":[],"y":2})"}, {"{}", R"({"y":1})"}},
      {R"({"type":"object","properties":{"a":false,"b":true}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
      {R"({"type":"object","properties":{"a":{},"b":{}},"required":["a"],"minProperties":1,"maxProperties":2,"additionalProperties":false})",
       {R"({"a":1})"},
       {"{}"}},
      {R"({"type":"object","properties":{},"additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
  });
}

TEST(JsonSchema, Arrays) {
  check({
      {R"({"type":"array","items":{"type":"integer"}})",
       {"[]", "[1]", "[1, 2,3]", "[\n  1,\n  2\n]"},
       {"[\"a\"]", "[1,]", "[,1]"}},
      {R"({"type":"array","items":{"type":"null"},"minItems":2,"maxItems":3})",
       {"[null,null]", "[null,null,null]"},
       {"[]", "[null]", "[null,null,null,null]"}},
      {R"({"type":"array","items":{"type":"null"},"minItems":1})", {"[null]", "[null,null,null]"}, {"[]"}},
      {R"({"type":"array","items":{"type":"null"},"maxItems":1})", {"[]", "[null]"}, {"[null,null]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems":[{"type":"string"},{"type":"integer"}]})",
       {"[]", R"(["a"])", R"(["a",1])"},
       {"[1]", R"(["a",1,2])"}},
      {R"({"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"minItems":2})",
       {R"(["a",1])", R"(["a",1,2,3])"},
       {"[]", R"(["a"])", R"(["a","b"])"}},
      {R"({"prefixItems":[{"type":"string"}],"items":false})", {"[]", R"(["a"])"}, {R"(["a",1])"}},
      {R"({"type":"array","items":[{"type":"string"},{"type":"integer"}],"minItems":2})", {R"(["a",1])"}, {R"(["a"])"}},
      {R"({"prefixItems":[{"type":"null"}],"minItems":3})", {R"([null,1,"x"])"}, {"[null]", "[1,1,1]"}},
  });
}

TEST(JsonSchema, Strings) {
  check({
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("é漢")", R"("😀\n\u0041")", R"("\ud83d\ude00a")"},
       {R"("a")", R"("abcd")", R"("😀")"}},
      {R"({"type":"string","minLength":1})", {R"("a")", R"("abcabc")"}, {R"("")"}},
      {R"({"type":"string","maxLength":0})", {R"("")"}, {R"("a")"}},
      {R"({"type":"string","pattern":"^[a-z]+$"})", {R"("abc")"}, {R"("")", R"("aB")", R"("a1")"}},
      {R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")", R"("\nb\"")"}, {R"("a")", R"("")"}},
      {R"({"type":"string","pattern":"^a|b$"})", {R"("a1")", R"("1b")"}, {R"("1a")", R"("b1")"}},
      {R"({"type":"string","pattern":"^\"\\\\\\n$"})", {R"("\"\\\n")"}, {R"("a")"}},
      {R"({"type":"string","pattern":"^a+$","minLength":2,"maxLength":3})",
       {R"("aa")", R"("aaa")"},
       {R"("a")", R"("aaaa")"}},
      {R"({"type":"string","pattern":"a","maxLength":2})", {R"("a")", R"("xa")", R"("ay")"}, {R"("xay")", R"("")"}},
      {R"({"type":"string","pattern":"^a*$","minLength":3})", {R"("aaa")", R"("aaaaaa")"}, {R"("aa")"}},
  });
}

TEST(JsonSchema, Formats) {
  check({
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")", R"("2023-04-30")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2023-04-31")", R"("2023-13-01")", R"("2023-00-01")",
        R"("23-01-01")"}},
      {R"({"type":"string","format":"time"})",
       {R"("23:59:59Z")", R"("00:00:00.123+02:00")"},
       {R"("24:00:00Z")", R"("12:00:00")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T12:00:00Z")"},
       {R"("2024-02-29")", R"("2024-02-29 12:00:00Z")"}},
      {R"({"type":"string","format":"duration"})",
       {R"("P1Y2M3D")", R"("PT5M")", R"("P3W")", R"("P1DT12H")"},
       {R"("P")", R"("PT")", R"("1D")"}},
      {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
      {R"({"type":"string","format":"ipv4"})",
       {R"("192.168.0.255")", R"("0.0.0.0")"},
       {R"("256.1.1.1")", R"("1.2.3")", R"("01.2.3.4")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::")", R"("2001:db8::1")", R"("1:2:3:4:5:6:7:8")"},
       {R"(":::")", R"("1:2:3:4:5:6:7:8:9")", R"("12345::")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@example.org")"}, {R"("a")", R"("@b.c")", R"("a..b@c.de")"}},
      {R"({"type":"string","format":"hostname"})", {R"("example.org")", R"("a")"}, {R"("-a.b")", R"("a..b")"}},
      {R"({"type":"string","format":"uri"})", {R"("https://example.org/a?b=c%20d")"}, {R"("example")"}},
      {R"({"type":"string","format":"color","maxLength":3})", {R"("red")"}, {R"("green")"}},
      {R"({"type":"string","format":"color","pattern":"^r"})", {R"("red")"}, {R"("green")"}},
      {R"({"type":"string","format":"uuid","maxLength":40})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {}},
  });
}

TEST(JsonSchema, NumericRanges) {
  check({
      {R"({"type":"integer","minimum":0,"maximum":100})", {"0", "7", "99", "100"}, {"-1", "101", "007", "1000"}},
      {R"({"type":"integer","minimum":-5,"maximum":17})", {"-5", "-1", "0", "17"}, {"-6", "18", "-0"}},
      {R"({"type":"integer","minimum":98,"maximum":1203})",
       {"98", "99", "100", "999", "1000", "1199", "1203"},
       {"97", "1204", "9"}},
      {R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":3})", {"1", "2"}, {"0", "3"}},
      {R"({"type":"integer","minimum":1.5,"maximum":3.5})", {"2", "3"}, {"1", "4"}},
      {R"({"type":"integer","minimum":-10,"maximum":-3})", {"-10", "-3"}, {"-2", "-11", "3"}},
      {R"({"type":"integer","minimum":1000})", {"1000", "99999999999"}, {"999", "-1000"}},
      {R"({"type":"integer","maximum":-1000})", {"-1000", "-12345"}, {"-999", "1000"}},
      {R"({"type":"integer","minimum":0,"exclusiveMinimum":true})", {"1"}, {"0"}},
      {R"({"type":"integer","minimum":5,"exclusiveMinimum":3})", {"5"}, {"4"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "1", "0.5", "1.0", "0.000"},
       {"1.01", "-0.1", "2", "1e0", "-0"}},
      {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})",
       {"0.1", "0.999", "0.001"},
       {"0", "1", "1.0", "0.0", "-0"}},
      {R"({"type":"number","minimum":-1.25,"maximum":10.5})",
       {"-1.25", "-1.2", "-0.5", "0", "9.99", "10.5", "10.50", "10"},
       {"-1.26", "-1.3", "10.51", "11", "-2"}},
      {R"({"type":"number","minimum":0.05})", {"0.05", "0.1", "12345.678"}, {"0.04", "0", "-1", "0.0499"}},
      {R"({"type":"number","minimum":1e3,"maximum":1.5e3})", {"1000", "1500.0", "1234.5"}, {"999.9", "1500.01"}},
  });
}

// Every integer near the bounds of many ranges, against plain comparison.
TEST(JsonSchema, IntegerRangesAgreeWithComparison) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const int64_t scale = std::vector<int64_t>{20, 1000, 100'000}[random() % 3];
    int64_t lo = static_cast<int64_t>(random() % (2 * scale)) - scale, hi = lo + static_cast<int64_t>(random() % scale);
    const auto constraint = schema(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", lo, hi));
    for (int64_t base : {lo, hi, int64_t{0}, (lo + hi) / 2, lo * 10, hi / 10}) {
      for (int64_t v = base - 12; v <= base + 12; ++v) {
        ASSERT_EQ(accepts(*constraint, std::to_string(v)), lo <= v && v <= hi) << v << " in " << lo << ".." << hi;
      }
    }
  }
}

TEST(JsonSchema, EnumAndConst) {
  check({
      {R"({"enum":["a","ab",1,null,true,1.5]})",
       {R"("a")", R"("ab")", "1", "null", "true", "1.5"},
       {"2", R"("b")", "1.0"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"const":"x\ny"})", {R"("x\ny")"}, {R"("x")"}},
      {R"({"const":{"a":[1,{"b":null}],"c":"d"}})",
       {R"({"a":[1,{"b":null}],"c":"d"})", R"({"a": [1, {"b": null}], "c": "d"})"},
       {R"({"a":[1]})"}},
      {R"({"enum":[[],{}]})", {"[]", "{}"}, {"[1]"}},
      {R"({"enum":["a","b"],"const":"b"})", {R"("b")"}, {R"("a")"}},
  });
}

TEST(JsonSchema, Combinations) {
  check({
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("a")"}, {"null"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},
                    {"type":"object","properties":{"k":{"const":"b"},"y":{"type":"null"}},"required":["k","y"]}]})",
       {R"({"k":"a","x":1})", R"({"k":"b","y":null})"},
       {R"({"k":"a","y":null})", R"({"k":"b","x":1})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"null"}},"required":["b"]}]})",
       {R"({"a":1,"b":null})"},
       {R"({"a":1})", R"({"b":null})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {"{}"}},
      {R"({"allOf":[{"type":"integer","minimum":0},{"minimum":3,"maximum":9},{"maximum":5}]})", {"3", "5"}, {"2", "6"}},
      {R"({"allOf":[{"type":["string","null"]},{"type":["null","integer"]}]})", {"null"}, {"1", R"("a")"}},
      {R"({"allOf":[{"$ref":"#/$defs/a"}],"description":"as pydantic writes it","$defs":{"a":{"enum":["x"]}}})",
       {R"("x")"},
       {R"("y")"}},
      {R"({"allOf":[{"properties":{"a":{"minimum":1}}},{"properties":{"a":{"type":"integer","maximum":2}}}],"type":"object","required":["a"]})",
       {R"({"a":1})", R"({"a":2})"},
       {R"({"a":0})", R"({"a":3})"}},
      {R"({"anyOf":[{"type":"string"}],"oneOf":[{"maxLength":2},{"minLength":4}]})",
       {R"("a")", R"("abcd")"},
       {R"("abc")", "1"}},
  });
}

TEST(JsonSchema, References) {
  check({
      {R"({"$defs":{"n":{"type":"integer"}},"type":"array","items":{"$ref":"#/$defs/n"}})", {"[1,2]"}, {"[null]"}},
      {R"({"definitions":{"a b/~":{"type":"null"}},"$ref":"#/definitions/a%20b~1~0"})", {"null"}, {"1"}},
      {R"({"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["v","next"]})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
       {R"({"v":1,"next":{"v":2}})"}},
      {R"({"$defs":{"t":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}},"required":["kids"]}},"$ref":"#/$defs/t"})",
       {R"({"kids":[]})", R"({"kids":[{"kids":[]},{"kids":[{"kids":[]}]}]})"},
       {R"({"kids":[{}]})"}},
      {R"({"$defs":{"p":{"type":"object","properties":{"a":{"type":"null"}}}},"$ref":"#/$defs/p","required":["a"]})",
       {R"({"a":null})"},
       {"{}"}},
      // Merging recursive schemas gives a recursive schema.
      {R"({"$defs":{"a":{"type":"object","properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}}},
                    "b":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]}},"required":["x"]}},
           "allOf":[{"$ref":"#/$defs/a"},{"required":["x"]}]})",
       {R"({"x":null})", R"({"x":{"x":{}}})"},
       {"{}"}},
  });
}

// As Zod, Pydantic and others write them.
TEST(JsonSchema, KeywordsThatRestrictNothing) {
  check({
      {R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"null"}})",
       {R"({"a":null})"},
       {R"({"a":1})"}},
      {R"({"type":"object","propertyNames":{},"unevaluatedProperties":true,"dependentRequired":{},"patternProperties":{},
           "properties":{"a":{"type":"null"}},"required":["a"]})",
       {R"({"a":null})"},
       {"{}"}},
      {R"({"type":"integer","multipleOf":1})", {"3"}, {"0.5"}},
      {R"({"type":"array","uniqueItems":false,"unevaluatedItems":{},"items":{"type":"null"}})",
       {"[null,null]"},
       {"[1]"}},
      {R"({"type":"boolean","if":{"const":true}})", {"true", "false"}, {"null"}},
      {R"({"type":"boolean","then":{"const":true},"else":{"const":null}})", {"true", "false"}, {"null"}},
  });
}

TEST(JsonSchema, ErrorsNameTheKeyword) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "/properties/a/not: this keyword is not supported"},
      {R"({"if":{},"then":{}})", "/if: "},
      {R"({"if":{},"else":false})", "/if: "},
      {R"({"type":"array","uniqueItems":true})", "/uniqueItems: "},
      {R"({"type":"array","contains":{}})", "/contains: "},
      {R"({"type":"object","patternProperties":{"a":{}}})", "/patternProperties: "},
      {R"({"type":"object","propertyNames":{"pattern":"a"}})", "/propertyNames: "},
      {R"({"type":"object","propertyNames":false})", "/propertyNames: "},
      {R"({"type":"object","unevaluatedProperties":false})", "/unevaluatedProperties: "},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})", "/dependentRequired: "},
      {R"({"type":"number","multipleOf":1})", "/multipleOf: "},
      {R"({"type":"object","minProperties":1})", "/minProperties: "},
      {R"({"type":"object","maxProperties":1})", "/maxProperties: "},
      {R"({"type":"integer","multipleOf":3})", "/multipleOf: "},
      {R"({"type":"number","minimum":"3"})", "/minimum: must be a number"},
      {R"({"type":"number","minimum":1e60})", "/minimum: must be a number"},
      {R"s({"type":"string","pattern":"(?=a)"})s", "/pattern: lookahead is not supported"},
      {R"({"type":"string","pattern":3})", "/pattern: must be a string"},
      {R"({"type":"string","format":5})", "/format: must be a string"},
      {R"({"type":"string","format":"date","pattern":"a"})", "/format: not supported beside pattern"},
      {R"({"type":"string","maxLength":1000000})", "/maxLength: above the limit"},
      {R"({"type":"string","maxLength":-1})", "/maxLength: must be a non-negative integer"},
      {R"({"type":"string","pattern":"^(a|b)*$","maxLength":60000})", "/pattern: too large together with the length"},
      {R"({"type":"array","maxItems":1000000})", "/maxItems: above the limit"},
      {R"({"type":"thing"})", "/type: not a JSON type name"},
      {R"({"items":{"$ref":"http://x/y"}})", "/items/$ref: only references into the same schema"},
      {R"({"$ref":"#/nowhere"})", "/$ref: the reference \"#/nowhere\" leads nowhere"},
      {R"({"$ref":"#foo"})", "/$ref: references to anchors"},
      {R"({"$ref":"#"})", "refers to itself directly"},
      {R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"})",
       "refers to itself directly"},
      {R"({"allOf":[{"$ref":"#"},{"type":"null"}]})", "/allOf: a reference that refers to itself directly"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}],"type":"string"})",
       "/allOf: cannot merge two different values of \"pattern\""},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
       "/allOf: cannot merge \"additionalProperties\""},
      {R"({"allOf":[]})", "/allOf: must be a non-empty array"},
      {R"({"anyOf":{}})", "/anyOf: must be a non-empty array"},
      {R"({"enum":[]})", "/enum: must be a non-empty array"},
      {R"({"enum":["a"],"minLength":2})", "/minLength: this keyword is not supported beside enum"},
      {R"({"properties":[]})", "/properties: must be an object"},
      {R"({"type":"object","required":"a"})", "/required: must be an array"},
      {R"({"type":"object","properties":{"a":3}})", "/properties/a: a schema must be an object"},
      {R"(false)", "no text can satisfy it"},
      {R"({"type":"integer","minimum":5,"maximum":3})", "no text can satisfy it"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "no text can satisfy it"},
      {R"({"type":"object","properties":{"self":{"$ref":"#"}},"required":["self"]})", "no text can satisfy it"},
      {R"({"type":)", "not valid JSON"},
      {R"([1])", "the schema: a schema must be an object"},
  };
  for (const auto& [text, message] : cases) {
    const auto result = compile_json_schema(text, TestVocabulary::usual().vocabulary);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(std::string(result.error().what()).find(message), std::string::npos)
        << text << ": " << result.error().what();
  }
}

TEST(JsonSchema, HostileSchemasEndInAnError) {
  auto refused = [](const std::string& text) {
    return !compile_json_schema(text, TestVocabulary::usual().vocabulary).ok();
  };
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_TRUE(refused(deep));
  EXPECT_TRUE(refused(std::string(300'000, ' ') + "{}"));
  // Doubling through allOf: 2^40 merges if taken literally.
  std::string defs;
  for (int i = 0; i < 30; ++i) {
    defs += fmt::format(R"("d{}":{{"allOf":[{{"$ref":"#/$defs/d{}"}},{{"$ref":"#/$defs/d{}"}}]}},)", i, i + 1, i + 1);
  }
  EXPECT_TRUE(refused("{\"$defs\":{" + defs + R"("d30":{"type":"integer"}},"$ref":"#/$defs/d0"})"));
  // Nested counts multiply.
  std::string nested = R"({"type":"null"})";
  for (int i = 0; i < 5; ++i) nested = R"({"type":"array","minItems":9000,"maxItems":9999,"items":)" + nested + "}";
  refused(nested);  // either answer is fine, but one must come: taken literally it is 10^20 items
  EXPECT_TRUE(refused(R"({"type":"array","prefixItems":[)" + [] {
    std::string parts;
    for (int i = 0; i < 30; ++i) parts += R"({"type":"string","pattern":"^.{0,4000}$"},)";
    return parts;
  }() + R"({"type":"null"}]})"));
}

// A value counts by its size: 20,000 branches beside one large text are 2 GB of copies.
TEST(JsonSchema, MergingIsCountedInBytes) {
  std::string branches = "{}";
  for (int i = 0; i < 20'000; ++i) branches += ",{}";
  const auto result =
      compile_json_schema("{\"const\":\"" + std::string(100'000, 'x') + "\",\"anyOf\":[" + branches + "]}",
                          TestVocabulary::usual().vocabulary);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(std::string(result.error().what()).find("too many references"), std::string::npos) << result.error().what();
}

// Think first, then answer: properties are written in the order of the schema's text, wherever they come from.
TEST(JsonSchema, PropertiesKeepTheirOrder) {
  const std::vector<Case> cases = {
      {R"({"type":"object","properties":{"thought":{"type":"string"},"answer":{"type":"integer"}},
           "required":["answer","thought"]})",
       {R"({"thought":"a","answer":1})"},
       {R"({"answer":1,"thought":"a"})"}},
      {R"({"type":"object","properties":{"z":{"type":"object","properties":{"y":{"type":"null"},"x":{"type":"null"}},
           "required":["x","y"]},"a":{"type":"null"}},"required":["a","z"]})",
       {R"({"z":{"y":null,"x":null},"a":null})"},
       {R"({"a":null,"z":{"y":null,"x":null}})", R"({"z":{"x":null,"y":null},"a":null})"}},
      {R"({"$ref":"#/$defs/step","$defs":{"step":{"type":"object","properties":{"why":{"type":"null"},"do":{"type":"null"}},
           "required":["why","do"]}}})",
       {R"({"why":null,"do":null})"},
       {R"({"do":null,"why":null})"}},
      {R"({"allOf":[{"$ref":"#/$defs/base"},{"properties":{"m":{"type":"null"}},"required":["m"]}],
           "properties":{"a":{"type":"null"}},"required":["a"],
           "$defs":{"base":{"type":"object","properties":{"z":{"type":"null"}},"required":["z"]}}})",
       {R"({"z":null,"m":null,"a":null})"},
       {R"({"a":null,"z":null,"m":null})", R"({"a":null,"m":null,"z":null})"}},
      {R"({"properties":{"z":{"type":"null"}},"required":["z","a"],"allOf":[{"properties":{"a":{"type":"null"}}}]})",
       {R"({"z":null,"a":null})"},
       {R"({"a":null,"z":null})"}},
  };
  for (const auto& c : cases) {
    const auto constraint = schema(c.schema);
    for (const auto& text : c.valid) EXPECT_TRUE(accepts(*constraint, text)) << c.schema << "\n" << text;
    for (const auto& text : c.invalid) EXPECT_FALSE(accepts(*constraint, text)) << c.schema << "\n" << text;
  }
}

TEST(JsonSchema, DepthLimitOfRecursionHasNoDeadEnd) {
  const auto constraint = schema(
      R"({"$defs":{"t":{"type":"object","properties":{"k":{"type":"array","items":{"$ref":"#/$defs/t"},"maxItems":2},
          "s":{"type":"string","minLength":1}},"required":["k","s"]}},"$ref":"#/$defs/t"})");
  testing::Driver driver(*constraint, TestVocabulary::usual());
  std::string closing;
  int depth = 0;
  while (driver.accept_text("{\"k\":[", true)) {
    ++depth;
    closing += "],\"s\":\"x\"}";
    ASSERT_LT(depth, 100);
    if (!driver.allows('{')) break;
  }
  EXPECT_GT(depth, 20);
  EXPECT_TRUE(driver.accept_text(closing, true));
  EXPECT_TRUE(driver.finished());
}

}  // namespace
}  // namespace bam
