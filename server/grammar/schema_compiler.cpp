#include "server/grammar/schema_compiler.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "server/grammar/json_schema.h"

namespace bam::constraints {
namespace {

constexpr int kMaxSchemaDepth = 64;

// Assertions that no automaton of this kind can honour.
constexpr std::array<std::string_view, 20> kUnsupported = {"not",
                                                           "if",
                                                           "then",
                                                           "else",
                                                           "contains",
                                                           "minContains",
                                                           "maxContains",
                                                           "patternProperties",
                                                           "dependencies",
                                                           "multipleOf",
                                                           "dependentRequired",
                                                           "dependentSchemas",
                                                           "$dynamicRef",
                                                           "$recursiveRef",
                                                           "propertyNames",
                                                           "unevaluatedProperties",
                                                           "unevaluatedItems",
                                                           "additionalItems",
                                                           "extends",
                                                           "disallow"};

struct TypeKeywords {
  const char* type;
  std::array<std::string_view, 6> keywords;
};
constexpr std::array<TypeKeywords, 4> kTypeKeywords = {{
    {"object", {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
}};

bool is_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type != "integer" || !value.is_number()) return false;
  return value.is_number_integer() || value.get<double>() == std::floor(value.get<double>());
}

// The types a schema speaks of: those it names, else those its keywords are about. Empty: any.
std::vector<std::string> types_of(const Json& schema, const std::string& at) {
  std::vector<std::string> types;
  if (const auto it = schema.find("type"); it != schema.end()) {
    const Json list = it->is_array() ? *it : Json::array({*it});
    for (const Json& type : list) {
      static constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                                 "integer", "boolean", "null"};
      if (!type.is_string() || std::find(kTypes.begin(), kTypes.end(), type.get<std::string>()) == kTypes.end()) {
        fail_at(pointer_to(at, "type"), "not a JSON type name");
      }
      types.push_back(type.get<std::string>());
    }
    if (std::find(types.begin(), types.end(), "number") != types.end()) std::erase(types, "integer");
    return types;
  }
  for (const auto& entry : kTypeKeywords) {
    for (std::string_view keyword : entry.keywords) {
      if (keyword.empty() || !schema.contains(keyword)) continue;
      types.emplace_back(entry.type);
      break;
    }
  }
  return types;
}

// Generators of schemas write such keywords where they restrict nothing.
bool restricts_nothing(std::string_view keyword, const Json& value, const Json& schema) {
  const auto in = [keyword](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), keyword) != names.end();
  };
  if (in({"propertyNames", "unevaluatedProperties", "unevaluatedItems", "additionalItems"})) {
    const bool names_are_texts = keyword == "propertyNames" && value == Json{{"type", "string"}};
    return value == true || value == Json::object() || names_are_texts;
  }
  if (in({"patternProperties", "dependencies", "dependentRequired", "dependentSchemas"}))
    return value == Json::object();
  if (keyword == "multipleOf") return value == 1 && schema.value("type", Json()) == "integer";
  if (keyword == "if") return !schema.contains("then") && !schema.contains("else");
  if (in({"then", "else"})) return !schema.contains("if");
  return false;
}

void check_supported(const Json& schema, const std::string& at) {
  for (std::string_view keyword : kUnsupported) {
    const auto it = schema.find(keyword);
    if (it != schema.end() && !restricts_nothing(keyword, *it, schema))
      fail_at(pointer_to(at, keyword), "this keyword is not supported");
  }
  if (const auto it = schema.find("uniqueItems"); it != schema.end() && *it != false) {
    fail_at(pointer_to(at, "uniqueItems"), "this keyword is not supported");
  }
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* hex = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(hex, hex + 2, value, 16).ptr == hex + 2) {
      out.push_back(static_cast<char>(value));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

std::string pointer_to(const std::string& at, std::string_view key) {
  std::string out = at;
  out += '/';
  for (char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

void fail_at(const std::string& at, std::string_view what) {
  throw Error("{}: {}", at.empty() ? "the schema" : at, what);
}

std::optional<uint32_t> count_keyword(const Json& schema, const char* keyword, uint32_t limit, const std::string& at) {
  const auto it = schema.find(keyword);
  if (it == schema.end()) return std::nullopt;
  const double value = it->is_number() ? it->get<double>() : -1;
  if (value < 0 || value != std::floor(value)) {
    fail_at(pointer_to(at, keyword), "must be a non-negative integer");
  }
  if (value > limit) fail_at(pointer_to(at, keyword), fmt::format("above the limit of {}", limit));
  return static_cast<uint32_t>(value);
}

SchemaCompiler::SchemaCompiler(const Json& root, AutomatonBuilder& out)
    : root_(root),
      out_(out),
      rules_(out),
      merger_([this](const std::string& ref) -> const Json& { return resolve(ref); }) {}

void SchemaCompiler::run() {
  const RuleId root = out_.add_rule();
  out_.call(rules_.space(out_.start(root)), add(), out_.end(root));
}

RuleId SchemaCompiler::add() {
  const RuleId value = rule_of_ref("#", "");
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    add_value(*next.schema, out_.start(next.rule), out_.end(next.rule), next.at);
  }
  return value;
}

const Json& SchemaCompiler::resolve(const std::string& ref) const {
  if (!ref.starts_with('#')) throw Error("only references into the same schema (#/…) are supported");
  const std::string pointer = percent_decoded(std::string_view(ref).substr(1));
  if (!pointer.empty() && pointer[0] != '/') throw Error("references to anchors are not supported");
  try {
    return root_.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    throw Error("the reference \"{}\" leads nowhere", ref);
  }
}

RuleId SchemaCompiler::rule_of_ref(const std::string& ref, const std::string& at) {
  const auto known = ref_rules_.find(ref);
  if (known != ref_rules_.end()) return known->second;
  const Json* schema = nullptr;
  try {
    schema = &resolve(ref);
  } catch (const Error& error) {
    fail_at(pointer_to(at, "$ref"), error.what());
  }
  const RuleId rule = out_.add_rule();
  ref_rules_.emplace(ref, rule);
  pending_.push_back({schema, percent_decoded(std::string_view(ref).substr(1)), rule});
  return rule;
}

RuleId SchemaCompiler::rule_of_merged(Json schema, const std::string& at) {
  const auto [it, added] = merged_rules_.try_emplace(schema.dump(), 0);
  if (added) {
    merged_.push_back(std::move(schema));
    it->second = rule_of(merged_.back(), at);
  }
  return it->second;
}

RuleId SchemaCompiler::rule_of(const Json& schema, const std::string& at) {
  if (schema == true || (schema.is_object() && schema.empty())) return rules_.any_value();
  const RuleId rule = out_.add_rule();
  pending_.push_back({&schema, at, rule});
  return rule;
}

void SchemaCompiler::add_value(const Json& schema, State from, State to, const std::string& at) {
  if (schema.is_boolean()) {
    if (schema == true) out_.call(from, rules_.any_value(), to);
    return;
  }
  if (!schema.is_object()) fail_at(at, "a schema must be an object, true or false");
  check_supported(schema, at);
  if (add_combined(schema, from, to, at)) return;
  if (schema.contains("enum") || schema.contains("const")) {
    return add_enumeration(schema, from, to, at);
  }
  const auto types = types_of(schema, at);
  if (types.empty() && !schema.contains("type")) out_.call(from, rules_.any_value(), to);
  for (const std::string& type : types) add_type(type, schema, from, to, at);
}

// $ref, allOf, anyOf, oneOf. What stands beside them holds as well, so it is merged in.
bool SchemaCompiler::add_combined(const Json& schema, State from, State to, const std::string& at) {
  auto merge_failed = [&](std::string_view keyword, const Error& error) {
    fail_at(pointer_to(at, keyword), error.what());
  };
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    if (!ref->is_string()) fail_at(pointer_to(at, "$ref"), "must be a string");
    if (assertions_without(schema, "$ref").empty()) {
      out_.call(from, rule_of_ref(ref->get<std::string>(), at), to);
      return true;
    }
  }
  for (const char* keyword : {"$ref", "allOf"}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) continue;
    if (std::string_view(keyword) == "allOf" && (!it->is_array() || it->empty())) {
      fail_at(pointer_to(at, keyword), "must be a non-empty array");
    }
    try {
      out_.call(from, rule_of_merged(merger_.flatten(schema), at), to);
    } catch (const Error& error) {
      merge_failed(keyword, error);
    }
    return true;
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) continue;
    if (!it->is_array() || it->empty()) fail_at(pointer_to(at, keyword), "must be a non-empty array");
    const Json rest = assertions_without(schema, keyword);
    for (size_t i = 0; i < it->size(); ++i) {
      const std::string branch_at = pointer_to(pointer_to(at, keyword), std::to_string(i));
      if (rest.empty()) {
        add_value((*it)[i], from, to, branch_at);
        continue;
      }
      try {
        out_.call(from, rule_of_merged(merger_.merge(rest, (*it)[i]), branch_at), to);
      } catch (const Error& error) {
        merge_failed(keyword, error);
      }
    }
    return true;
  }
  return false;
}

void SchemaCompiler::add_enumeration(const Json& schema, State from, State to, const std::string& at) {
  for (const auto& entry : kTypeKeywords) {
    for (std::string_view keyword : entry.keywords) {
      if (!keyword.empty() && schema.contains(keyword)) {
        fail_at(pointer_to(at, keyword), "this keyword is not supported beside enum or const");
      }
    }
  }
  Json values = Json::array();
  if (const auto it = schema.find("enum"); it != schema.end()) {
    if (!it->is_array() || it->empty()) fail_at(pointer_to(at, "enum"), "must be a non-empty array");
    values = *it;
  }
  if (const auto it = schema.find("const"); it != schema.end()) {
    const bool listed = !schema.contains("enum") || std::find(values.begin(), values.end(), *it) != values.end();
    values = Json::array();
    if (listed) values.push_back(*it);
  }
  const auto types = types_of(schema, at);
  std::vector<std::string> scalars;
  for (const Json& value : values) {
    const bool right_type = !schema.contains("type") || std::any_of(types.begin(), types.end(), [&](const auto& type) {
      return is_type(value, type);
    });
    if (!right_type) continue;
    if (value.is_structured()) {
      add_literal(value, from, to);
    } else {
      scalars.push_back(value.dump());
    }
  }
  rules_.literals(std::move(scalars), from, to);
}

// Exactly this value, members in this order, with the usual freedom in whitespace.
void SchemaCompiler::add_literal(const Json& value, State from, State to) {
  if (!value.is_structured()) return out_.literal(from, value.dump(), to);
  const State open = out_.add_state();
  out_.byte(from, value.is_object() ? '{' : '[', open);
  State last = open;
  for (const auto& [key, member] : value.items()) {
    State next = last;
    if (last != open) {
      next = out_.add_state();
      out_.byte(last, ',', next);
    }
    next = rules_.space(next);
    if (value.is_object()) {
      const State colon = out_.add_state();
      out_.literal(next, Json(key).dump() + ":", colon);
      next = rules_.space(colon);
    }
    last = out_.add_state();
    add_literal(member, next, last);
  }
  out_.byte(last == open ? open : rules_.space(last), value.is_object() ? '}' : ']', to);
}

void SchemaCompiler::add_type(const std::string& type, const Json& schema, State from, State to,
                              const std::string& at) {
  if (type == "object") return add_object(schema, from, to, at);
  if (type == "array") return add_array(schema, from, to, at);
  if (type == "string") return add_string(schema, from, to, at);
  if (type == "number") return add_number(schema, false, from, to, at);
  if (type == "integer") return add_number(schema, true, from, to, at);
  if (type == "boolean") return rules_.literals({"true", "false"}, from, to);
  out_.literal(from, "null", to);
}

namespace {

Json parse_schema(const std::string& text) {
  Result<Json> root = parse_json(text, {.max_bytes = kMaxSchemaBytes, .max_depth = kMaxSchemaDepth});
  if (!root) throw Error("the schema cannot be read: {}", root.error().what());
  return *std::move(root);
}

}  // namespace

void build_json_schema(const std::string& schema_json, AutomatonBuilder& out) {
  SchemaCompiler(parse_schema(schema_json), out).run();
}

RuleId add_json_schema(const std::string& schema_json, AutomatonBuilder& out) {
  return SchemaCompiler(parse_schema(schema_json), out).add();
}

}  // namespace bam::constraints
