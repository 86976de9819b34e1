#include "server/json_reader.h"

#include <gtest/gtest.h>

namespace bam {
namespace {

TEST(ParseJsonObject, RefusesWhatIsNoObject) {
  for (const char* text :
       {"", " ", "[]", "1", "\"x\"", "null", "{", "{\"a\":}", "{\"a\":1}x", "nan", "{\"a\":NaN}", "{\"a\":Infinity}",
        "{\"a\":1e999}", "{\"a\":01}", "{'a':1}", "\xff", "{\"a\":\"\xff\"}", "{\"a\":\"\xed\xa0\x80\"}"}) {
    const auto result = parse_json_object(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().status, 400) << text;
    EXPECT_EQ(result.error().message.find("json.exception"), std::string::npos) << result.error().message;
    EXPECT_NO_THROW(Json::parse(result.error().to_json())) << text;
  }
  EXPECT_TRUE(parse_json_object(" {\"a\": [1, 2.5, \"\\u00e9\"]} ").ok());
}

TEST(ParseJsonObject, BoundsDepthAndSize) {
  std::string deep = "{\"a\":";
  for (int i = 0; i < 10000; ++i) deep += "[";
  EXPECT_NE(parse_json_object(deep).error().message.find("deeper"), std::string::npos);
  EXPECT_TRUE(parse_json_object("{\"a\":[[[1]]]}", {.max_depth = 4}).ok());
  EXPECT_FALSE(parse_json_object("{\"a\":[[[[1]]]]}", {.max_depth = 4}).ok());
  EXPECT_FALSE(parse_json_object("{\"a\":[1,2,3,4,5]}", {.max_values = 5}).ok());
  // Brackets inside strings are text.
  EXPECT_TRUE(parse_json_object("{\"a\":\"[[[[[[\\\"[[\"}", {.max_depth = 2}).ok());
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
    EXPECT_EQ(reader.error().param, key);
  }
  FieldReader reader(body);
  EXPECT_FALSE(reader.integer("n", 0, 1).has_value());
  EXPECT_FALSE(reader.integer("missing", 0, 1).has_value());
  EXPECT_TRUE(reader.ok()) << "null and absent are the same";
  EXPECT_EQ(reader.number("h", 0, 10), 5.5);
  EXPECT_EQ(reader.boolean("b"), true);
  EXPECT_EQ(reader.text("s", 1), "5");
  EXPECT_FALSE(reader.array("list", 2));
  EXPECT_EQ(reader.error().param, "list");
  EXPECT_FALSE(reader.text("s", 1).has_value()) << "after the first problem nothing is read";
}

TEST(FieldReader, NamesNestedFieldsAndUnreadOnes) {
  const Json body = Json::parse(R"({"a": 1, "zeta": 2, "beta": 3})");
  FieldReader reader(body, "outer");
  reader.integer("a", 0, 9);
  EXPECT_EQ(reader.unread(), (std::vector<std::string>{"outer.beta", "outer.zeta"}));
  reader.boolean("zeta");
  EXPECT_EQ(reader.error().param, "outer.zeta");
}

TEST(AsInteger, DoublesBeyondTheirPrecisionAreNoIntegers) {
  EXPECT_EQ(as_integer(Json(9007199254740992.0), 0, INT64_MAX), int64_t{1} << 53);
  EXPECT_FALSE(as_integer(Json(9007199254740994.0), 0, INT64_MAX));
  EXPECT_FALSE(as_integer(Json(-0.5), -10, 10));
  EXPECT_FALSE(as_integer(Json(true), 0, 10));
}

TEST(DumpJson, ReplacesInvalidUtf8) {
  EXPECT_EQ(json_quote("a\xff"
                       "b\n"),
            "\"a\xef\xbf\xbd"
            "b\\n\"");
}

}  // namespace
}  // namespace bam
