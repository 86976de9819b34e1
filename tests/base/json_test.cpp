#include "base/json.h"

#include <gtest/gtest.h>

#include "base/json_fields.h"

namespace bam {
namespace {

std::string failure(const std::string& text, const JsonLimits& limits = {}) {
  const Result<Json> result = parse_json(text, limits);
  return result.ok() ? "" : result.error().what();
}

TEST(ParseJson, RefusesWhatIsNoJson) {
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, " "s, "{"s, "{\"a\":}"s, "{\"a\":1}x"s, "nan"s, "{\"a\":NaN}"s, "{\"a\":Infinity}"s, "{\"a\":1e999}"s,
        "{\"a\":01}"s, "{'a':1}"s, "\xff"s, "{\"a\":\"\xff\"}"s, "{\"a\":\"\xed\xa0\x80\"}"s, "{}\0{}"s, "{} {}"s}) {
    const std::string why = failure(text);
    EXPECT_TRUE(why.starts_with("not valid JSON")) << text << ": " << why;
    EXPECT_EQ(why.find("json.exception"), std::string::npos) << why;
  }
  EXPECT_EQ(failure(" {\"a\": [1, 2.5, \"\\u00e9\", null, true, {}]} "), "");
  EXPECT_EQ(failure("17"), "");
}

TEST(ParseJson, GivesWhatTheTextSaysInItsOrder) {
  const std::string text =
      R"({"zeta":[1,-2,2.5,"x",[],{}],"alpha":{"b":null,"a":true},"18446744073709551615":18446744073709551615})";
  const Result<Json> value = parse_json(text);
  ASSERT_TRUE(value.ok()) << value.error().what();
  EXPECT_EQ(dump_json(*value), text);
}

TEST(ParseJson, HoldsItsLimits) {
  EXPECT_EQ(failure("{\"a\":" + std::string(10'000, '[')), "nested deeper than 32 levels");
  EXPECT_EQ(failure("{\"a\":[[[1]]]}", {.max_depth = 4}), "");
  EXPECT_EQ(failure("{\"a\":[[[[1]]]]}", {.max_depth = 4}), "nested deeper than 4 levels");
  EXPECT_EQ(failure("{\"a\":\"[[[[[[\\\"[[\"}", {.max_depth = 2}), "") << "brackets inside strings are text";
  EXPECT_EQ(failure("{\"a\":[1,2,3,4,5]}", {.max_values = 7}), "");
  EXPECT_EQ(failure("{\"a\":[1,2,3,4,5]}", {.max_values = 6}), "more than 6 values");
  EXPECT_EQ(failure("{\"a\":1,\"b\":2}", {.max_members = 2}), "");
  EXPECT_EQ(failure("{\"a\":1,\"b\":2,\"c\":3}", {.max_members = 2}), "an object has more than 2 members");
  EXPECT_EQ(failure("[1,2,3]", {.max_bytes = 6}), "7 bytes of JSON, the limit is 6");
}

TEST(ParseJson, AKeyMayStandOncePerObject) {
  EXPECT_EQ(failure(R"({"a":1,"b":{"a":2},"c":{"a":3}})"), "");
  EXPECT_EQ(failure(R"({"a":1,"b":{"x":1,"x":2}})"), "key 'x' appears twice");
  EXPECT_EQ(failure(R"({"a":1,"\u0061":2})"), "key 'a' appears twice");
  // Also among very many.
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += fmt::format("\"k{}\":{{\"k1\":0}},", i);
  EXPECT_EQ(failure(text + "\"other\":1}"), "");
  for (const int again : {0, 15, 16, 999}) {
    EXPECT_EQ(failure(text + fmt::format("\"k{}\":1}}", again)), fmt::format("key 'k{}' appears twice", again));
  }
}

TEST(FieldReader, TypesAndRanges) {
  const Json body = Json::parse(R"({"i": 5, "f": 5.0, "h": 5.5, "s": "5", "b": true, "n": null, "big": 1e300,
                                    "u": 18446744073709551615, "neg": -1, "list": [1, 2, 3], "o": {}})");
  const auto integer = [&](const char* key) { return FieldReader(body).integer(key, 0, 100); };
  EXPECT_EQ(integer("i"), 5);
  EXPECT_EQ(integer("f"), 5);
  for (const char* key : {"h", "s", "b", "big", "u", "neg", "list", "o"}) {
    FieldReader reader(body);
    EXPECT_FALSE(reader.integer(key, 0, 100).has_value()) << key;
    ASSERT_FALSE(reader.ok()) << key;
    EXPECT_EQ(reader.error().field, key);
    EXPECT_EQ(reader.error().message,
              fmt::format("'{}' must be an integer between 0 and 100, got {}.", key, quote_json(body[key])));
  }
  FieldReader reader(body);
  EXPECT_FALSE(reader.integer("n", 0, 1).has_value());
  EXPECT_FALSE(reader.integer("missing", 0, 1).has_value());
  EXPECT_TRUE(reader.ok()) << "null and absent are the same";
  EXPECT_EQ(reader.number("h", 0, 10), 5.5);
  EXPECT_EQ(reader.positive("h", 5.5), 5.5);
  EXPECT_EQ(reader.boolean("b"), true);
  EXPECT_EQ(reader.text("s", 1), "5");
  EXPECT_FALSE(reader.array("list", 2));
  EXPECT_EQ(reader.error().field, "list");
  EXPECT_FALSE(reader.text("s", 1).has_value()) << "after the first problem nothing is read";
}

TEST(FieldReader, ChoicesAreListedWhenNoneFits) {
  const std::pair<std::string_view, int> choices[] = {{"one", 1}, {"two", 2}};
  const Json body = Json::parse(R"({"a": "two", "b": "three", "c": 1})");
  FieldReader reader(body);
  EXPECT_EQ(reader.choice<int>("a", choices), 2);
  EXPECT_EQ(reader.choice<int>("absent", choices), std::nullopt);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.choice<int>("b", choices), std::nullopt);
  EXPECT_EQ(reader.error().message, "'b' must be one of \"one\", \"two\", got \"three\".");
}

TEST(FieldReader, NamesNestedFieldsAndUnreadOnes) {
  const Json body = Json::parse(R"({"a": 1, "zeta": 2, "nothing": null, "beta": 3})");
  FieldReader reader(body, "outer");
  reader.integer("a", 0, 9);
  EXPECT_EQ(reader.unread(), (std::vector<std::string>{"outer.zeta", "outer.beta"}));
  reader.boolean("zeta");
  EXPECT_EQ(reader.error().field, "outer.zeta");
}

TEST(FieldReader, OfAFileThrowsWithItsName) {
  const Json body = Json::parse(R"({"a": 1})");
  FieldReader reader(body, {}, throw_field_error("config.json"));
  EXPECT_TRUE(reader.require("a"));
  try {
    reader.require("b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "config.json: 'b' is missing");
  }
}

TEST(AsInteger, DoublesBeyondTheirPrecisionAreNoIntegers) {
  EXPECT_EQ(as_integer(Json(9007199254740992.0), 0, INT64_MAX), int64_t{1} << 53);
  EXPECT_FALSE(as_integer(Json(9007199254740994.0), 0, INT64_MAX));
  EXPECT_FALSE(as_integer(Json(-0.5), -10, 10));
  EXPECT_FALSE(as_integer(Json(true), 0, 10));
}

TEST(DumpJson, ReplacesInvalidUtf8) {
  EXPECT_EQ(dump_json_string("a\xff"
                             "b\n"),
            "\"a\xef\xbf\xbd"
            "b\\n\"");
}

}  // namespace
}  // namespace bam
