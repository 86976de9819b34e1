// Random schemas: what is sampled under the constraint must validate, and valid instances must be accepted. The
// validator and the instance generator below are written from JSON Schema's definitions and share no code with the
// compiler.
#include <cmath>

#include <gtest/gtest.h>
#include "base/json.h"

#include "tests/server/grammar/constraint_testing.h"

namespace bam {
namespace {

using testing::accepts;
using testing::sample;
using testing::TestVocabulary;

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      const auto target = root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1)));
      if (!valid(target, value)) return false;
    }
    if (schema.contains("type") && !type_matches(schema["type"], value)) return false;
    if (schema.contains("enum") && !any(schema["enum"], [&](const Json& v) { return v == value; })) return false;
    if (schema.contains("const") && schema["const"] != value) return false;
    if (schema.contains("anyOf") && !any(schema["anyOf"], [&](const Json& s) { return valid(s, value); })) return false;
    if (schema.contains("allOf") && any(schema["allOf"], [&](const Json& s) { return !valid(s, value); })) return false;
    if (value.is_number() && !valid_number(schema, value.get<double>())) return false;
    if (value.is_string() && !valid_string(schema, value.get<std::string>())) return false;
    if (value.is_array() && !valid_array(schema, value)) return false;
    return !value.is_object() || valid_object(schema, value);
  }

 private:
  template <typename Predicate>
  static bool any(const Json& list, Predicate predicate) {
    for (const Json& element : list) {
      if (predicate(element)) return true;
    }
    return false;
  }
  static bool type_matches(const Json& type, const Json& value) {
    if (type.is_array()) return any(type, [&](const Json& t) { return type_matches(t, value); });
    const auto name = type.get<std::string>();
    if (name == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    return name == (value.is_number() ? "number" : value.type_name());
  }
  static double limit(const Json& schema, const char* key, double otherwise) {
    return schema.contains(key) ? schema[key].get<double>() : otherwise;
  }
  static bool valid_number(const Json& schema, double v) {
    return v >= limit(schema, "minimum", -INFINITY) && v <= limit(schema, "maximum", INFINITY) &&
           v > limit(schema, "exclusiveMinimum", -INFINITY) && v < limit(schema, "exclusiveMaximum", INFINITY);
  }
  static bool valid_string(const Json& schema, const std::string& v) {
    const auto length = std::count_if(v.begin(), v.end(), [](char c) { return (c & 0xC0) != 0x80; });
    return length >= limit(schema, "minLength", 0) && length <= limit(schema, "maxLength", INFINITY);
  }
  bool valid_array(const Json& schema, const Json& v) const {
    const auto size = static_cast<double>(v.size());
    if (size < limit(schema, "minItems", 0) || size > limit(schema, "maxItems", INFINITY)) return false;
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < prefix && !valid(schema["prefixItems"][i], v[i])) return false;
      if (i >= prefix && schema.contains("items") && !valid(schema["items"], v[i])) return false;
    }
    return true;
  }
  bool valid_object(const Json& schema, const Json& v) const {
    if (schema.contains("required") &&
        any(schema["required"], [&](const Json& n) { return !v.contains(n.get<std::string>()); })) {
      return false;
    }
    for (const auto& [name, member] : v.items()) {
      const bool declared = schema.contains("properties") && schema["properties"].contains(name);
      if (declared && !valid(schema["properties"][name], member)) return false;
      if (!declared && schema.contains("additionalProperties") && !valid(schema["additionalProperties"], member))
        return false;
    }
    return true;
  }

  const Json& root_;
};

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  // A schema of the supported kind; "#/$defs/node" may be referred to.
  Json schema(int depth) {
    switch (random_() % (depth > 0 ? 10 : 5)) {
      case 0: return number_schema();
      case 1: return string_schema();
      case 2: return {{"type", random_() % 2 ? "boolean" : "null"}};
      case 3: return {{"enum", {"a", "abc", "é\"\n", 1, -2.5, true, nullptr}}};
      case 4: return {{"type", {"integer", "null"}}, {"maximum", 50}};
      case 5: return array_schema(depth);
      case 6:
      case 7: return object_schema(depth);
      case 8: return {{"anyOf", {schema(depth - 1), schema(depth - 1)}}};
      default:
        return depth > 1 ? Json{{"$ref", "#/$defs/node"}} : Json{{"allOf", {{{"type", "integer"}}, number_schema()}}};
    }
  }

  // A value that the schema describes, written the way the constraint orders it.
  Json instance(const Json& root, const Json& schema, int depth) {
    if (schema.contains("$ref")) return instance(root, root["$defs"]["node"], depth - 1);
    if (schema.contains("anyOf")) return instance(root, pick(schema["anyOf"], depth), depth);
    if (schema.contains("allOf")) return instance(root, merged_number(schema), depth);
    if (schema.contains("enum")) return schema["enum"][random_() % schema["enum"].size()];
    const Json type = schema["type"].is_array() ? schema["type"][random_() % schema["type"].size()] : schema["type"];
    if (type == "null") return nullptr;
    if (type == "boolean") return random_() % 2 == 0;
    if (type == "integer" || type == "number") return number(schema, type == "integer");
    if (type == "string") return string(schema);
    if (type == "array") return array(root, schema, depth);
    Json out = Json::object();
    for (const auto& [name, property] : schema["properties"].items()) {
      const bool required = std::count(schema["required"].begin(), schema["required"].end(), Json(name)) > 0;
      if (required || (depth > 0 && random_() % 2)) out[name] = instance(root, property, depth - 1);
    }
    if (schema["additionalProperties"].is_object() && depth > 0)
      out["zz"] = instance(root, schema["additionalProperties"], depth - 1);
    return out;
  }

 private:
  Json number_schema() {
    Json out{{"type", random_() % 2 ? "integer" : "number"}};
    const int lo = static_cast<int>(random_() % 300) - 150;
    if (random_() % 2) out[random_() % 4 ? "minimum" : "exclusiveMinimum"] = lo + (random_() % 2 ? 0.25 : 0.0);
    if (random_() % 2) out[random_() % 4 ? "maximum" : "exclusiveMaximum"] = lo + 2 + static_cast<int>(random_() % 300);
    return out;
  }
  Json string_schema() {
    Json out{{"type", "string"}};
    const int lo = static_cast<int>(random_() % 4);
    if (random_() % 2) out["minLength"] = lo;
    if (random_() % 2) out["maxLength"] = lo + static_cast<int>(random_() % 4);
    return out;
  }
  Json array_schema(int depth) {
    Json out{{"type", "array"}, {"items", schema(depth - 1)}};
    const int lo = static_cast<int>(random_() % 3);
    if (random_() % 3 == 0) out["prefixItems"] = {schema(depth - 1), schema(depth - 1)};
    if (random_() % 2) out["minItems"] = lo;
    if (random_() % 2) out["maxItems"] = lo + static_cast<int>(random_() % 3);
    return out;
  }
  Json object_schema(int depth) {
    static const char* kNames[] = {"a", "name", "é", "x y", "abc", "\"q"};
    Json out{{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (size_t i = 0, n = 1 + random_() % 4; i < n; ++i) {
      const char* name = kNames[random_() % std::size(kNames)];
      if (out["properties"].contains(name)) continue;
      out["properties"][name] = schema(depth - 1);
      if (random_() % 2) out["required"].push_back(name);
    }
    out["additionalProperties"] = random_() % 3 == 0 ? schema(depth - 1) : Json(false);
    return out;
  }

  // allOf is only generated as [integer, number range].
  static Json merged_number(const Json& schema) {
    Json out = schema["allOf"][1];
    out["type"] = "integer";
    return out;
  }
  // Prefers what does not recurse when deep.
  const Json& pick(const Json& options, int depth) {
    for (const Json& option : options) {
      if (depth <= 0 && !option.contains("$ref")) return option;
    }
    return options[random_() % options.size()];
  }
  double number(const Json& schema, bool integer) {
    double lo = -200, hi = 1000;
    if (schema.contains("minimum")) lo = schema["minimum"].get<double>();
    if (schema.contains("exclusiveMinimum")) lo = schema["exclusiveMinimum"].get<double>() + 0.5;
    if (schema.contains("maximum")) hi = schema["maximum"].get<double>();
    if (schema.contains("exclusiveMaximum")) hi = schema["exclusiveMaximum"].get<double>() - 0.5;
    const double v = lo + (hi - lo) * static_cast<double>(random_() % 9) / 8;
    return integer ? std::clamp(std::round(v), std::ceil(lo), std::floor(hi)) : v;
  }
  Json string(const Json& schema) {
    static const char* kPieces[] = {"a", "B", "é", "漢", "😀", "\"", "\n", " ", "\\", "/"};
    const int lo = schema.value("minLength", 0), hi = schema.value("maxLength", lo + 5);
    std::string out;
    for (int i = lo + static_cast<int>(random_() % static_cast<unsigned>(hi - lo + 1)); i > 0; --i)
      out += kPieces[random_() % std::size(kPieces)];
    return out;
  }
  Json array(const Json& root, const Json& schema, int depth) {
    const int lo = schema.value("minItems", 0), hi = schema.value("maxItems", lo + 2);
    const int size = depth > 0 ? lo + static_cast<int>(random_() % static_cast<unsigned>(hi - lo + 1)) : lo;
    Json out = Json::array();
    for (int i = 0; i < size; ++i) {
      const bool in_prefix = schema.contains("prefixItems") && static_cast<size_t>(i) < schema["prefixItems"].size();
      out.push_back(
          instance(root, in_prefix ? schema["prefixItems"][static_cast<size_t>(i)] : schema["items"], depth - 1));
    }
    return out;
  }

  std::mt19937 random_;
};

// Integral doubles as integers, as a JSON writer for these schemas would.
Json with_plain_integers(const Json& value) {
  if (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>()) return value.get<int64_t>();
  Json out = value;
  if (value.is_structured()) {
    for (auto& child : out) child = with_plain_integers(child);
  }
  return out;
}

Json random_schema(Generator& generator) {
  Json root = generator.schema(3);
  if (!root.is_object()) return root;
  root["$defs"]["node"] = {
      {"type", "object"},
      {"properties",
       {{"v", generator.schema(0)}, {"kids", {{"type", "array"}, {"items", {{"$ref", "#/$defs/node"}}}}}}},
      {"required", {"v"}},
      {"additionalProperties", false}};
  return root;
}

TEST(JsonSchemaProperty, SamplesValidate) {
  std::mt19937 random(21);
  Generator generator(21);
  int checked = 0;
  for (int round = 0; round < 250; ++round) {
    const Json root = random_schema(generator);
    const auto compiled = compile_json_schema(root.dump(), TestVocabulary::usual().vocabulary);
    if (!compiled.ok()) {  // random bounds may contradict each other
      ASSERT_NE(std::string(compiled.error().what()).find("no text can satisfy"), std::string::npos)
          << root.dump() << compiled.error().what();
      continue;
    }
    for (int i = 0; i < 8; ++i) {
      const auto text = sample(**compiled, random, 30);
      ASSERT_TRUE(text.has_value()) << root.dump();
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << *text;
      ASSERT_TRUE(Validator(root).valid(root, value)) << root.dump() << "\n" << *text;
      ++checked;
    }
  }
  EXPECT_GT(checked, 1500);
}

TEST(JsonSchemaProperty, ValidInstancesAreAccepted) {
  Generator generator(22);
  int checked = 0;
  for (int round = 0; round < 250; ++round) {
    const Json root = random_schema(generator);
    const auto compiled = compile_json_schema(root.dump(), TestVocabulary::usual().vocabulary);
    if (!compiled.ok()) continue;
    for (int i = 0; i < 8; ++i) {
      const Json value = with_plain_integers(generator.instance(root, root, 3));
      if (!Validator(root).valid(root, value)) continue;  // e.g. an empty number range inside
      ASSERT_TRUE(accepts(**compiled, value.dump())) << root.dump() << "\n" << value.dump();
      ASSERT_TRUE(accepts(**compiled, value.dump(2))) << root.dump() << "\n" << value.dump(2);
      ++checked;
    }
  }
  EXPECT_GT(checked, 1200);
}

}  // namespace
}  // namespace bam
