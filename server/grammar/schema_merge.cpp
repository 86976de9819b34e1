#include "server/grammar/schema_merge.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace bam::constraints {
namespace {

constexpr std::array<std::string_view, 22> kAnnotations = {"title",         "description",  "default",
                                                           "examples",      "example",      "$schema",
                                                           "$id",           "id",           "$comment",
                                                           "$defs",         "definitions",  "deprecated",
                                                           "readOnly",      "writeOnly",    "contentEncoding",
                                                           "$anchor",       "$vocabulary",  "contentMediaType",
                                                           "contentSchema", "externalDocs", "xml",
                                                           "discriminator"};
constexpr int kMaxRefChain = 32;
// JSON values looked at or copied, and every so many bytes of their texts: a value may be as large as the schema.
constexpr size_t kMaxWork = 1'000'000;
constexpr size_t kBytesPerWork = 16;

bool contains(const Json& array, const Json& value) {
  return std::find(array.begin(), array.end(), value) != array.end();
}

Json as_list(const Json& value) { return value.is_array() ? value : Json::array({value}); }

Json merge_types(const Json& a, const Json& b) {
  Json both = Json::array();
  const Json left = as_list(a), right = as_list(b);
  for (const Json& type : left) {
    if (contains(right, type) || (type == "integer" && contains(right, "number"))) both.push_back(type);
  }
  for (const Json& type : right) {
    if (type == "integer" && contains(left, "number") && !contains(both, type)) both.push_back(type);
  }
  return both;
}

Json both_of(const Json& a, const Json& b) { return a == b ? a : Json{{"allOf", Json::array({a, b})}}; }

Json merge_properties(const Json& a, const Json& b) {
  Json out = a;
  for (const auto& [name, schema] : b.items()) {
    out[name] = out.contains(name) ? both_of(out[name], schema) : schema;
  }
  return out;
}

Json intersection(const Json& a, const Json& b) {
  Json out = Json::array();
  for (const Json& value : a) {
    if (contains(b, value)) out.push_back(value);
  }
  return out;
}

// A closed object says "no" to the other side's properties, which a plain union of keywords would
// lose.
void check_closed_objects(const Json& a, const Json& b) {
  auto closed = [](const Json& s) {
    const auto it = s.find("additionalProperties");
    return it != s.end() && *it != true;
  };
  auto names_missing_in = [](const Json& from, const Json& in) {
    if (!from.contains("properties")) return false;
    for (const auto& [name, schema] : from["properties"].items()) {
      if (!in.contains("properties") || !in["properties"].contains(name)) return true;
    }
    return false;
  };
  if ((closed(a) && names_missing_in(b, a)) || (closed(b) && names_missing_in(a, b))) {
    throw Error("cannot merge \"additionalProperties\" with properties declared elsewhere");
  }
}

Json merge_keyword(const std::string& key, const Json& a, const Json& b) {
  if (a == b) return a;
  if (key == "type") return merge_types(a, b);
  if (key == "properties" && a.is_object() && b.is_object()) return merge_properties(a, b);
  if (key == "enum" && a.is_array() && b.is_array()) return intersection(a, b);
  if (key == "required" && a.is_array() && b.is_array()) {
    Json out = a;
    for (const Json& name : b) {
      if (!contains(out, name)) out.push_back(name);
    }
    return out;
  }
  if (key == "items" || key == "additionalProperties") return both_of(a, b);
  if (a.is_number() && b.is_number()) {
    if (key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
        key == "minProperties") {
      return std::max(a, b);
    }
    if (key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" ||
        key == "maxProperties") {
      return std::min(a, b);
    }
  }
  throw Error("cannot merge two different values of \"{}\"", key);
}

size_t copy_work(const Json& value) {
  size_t work = 1;
  if (value.is_string()) work += value.get_ref<const std::string&>().size() / kBytesPerWork;
  if (value.is_array()) {
    for (const Json& child : value) work += copy_work(child);
  }
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) work += key.size() / kBytesPerWork + copy_work(child);
  }
  return work;
}

// Each of one side is compared with each of the other.
size_t product_work(const Json& a, const Json& b, const char* keyword) {
  if (!a.contains(keyword) || !b.contains(keyword)) return 0;
  return a[keyword].size() * b[keyword].size() / 64;
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  return std::find(kAnnotations.begin(), kAnnotations.end(), keyword) != kAnnotations.end();
}

Json assertions_without(const Json& schema, std::string_view keyword) {
  Json out = Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (key != keyword && !is_annotation(key)) out[key] = value;
  }
  return out;
}

Json SchemaMerger::flatten(const Json& schema, int depth) {
  if (depth > kMaxRefChain) throw Error("a reference that refers to itself directly");
  work_ += copy_work(schema);
  if (work_ > kMaxWork) throw Error("too many references and alternatives to combine");
  if (!schema.is_object()) return schema;
  // In the order of the text: where properties come from several places they are written in it.
  Json out = Json::object(), own = Json::object();
  const auto add = [&](const Json& part) {
    if (!own.empty()) out = merge_flat(out, std::exchange(own, Json::object()));
    out = merge_flat(out, flatten(part, depth + 1));
  };
  for (const auto& [key, value] : schema.items()) {
    if (is_annotation(key)) continue;
    if (key == "$ref" && value.is_string()) {
      add(resolve_(value.get<std::string>()));
    } else if (key == "allOf" && value.is_array()) {
      for (const Json& part : value) add(part);
    } else {
      own[key] = value;
    }
  }
  return own.empty() ? out : merge_flat(out, own);
}

Json SchemaMerger::merge_flat(const Json& a, const Json& b) {
  work_ += copy_work(a) + copy_work(b);
  if (a == false || b == false) return false;
  if (!a.is_object()) return b;
  if (!b.is_object()) return a;
  for (const char* keyword : {"properties", "enum", "required"}) work_ += product_work(a, b, keyword);
  if (work_ > kMaxWork) throw Error("too many references and alternatives to combine");
  check_closed_objects(a, b);
  Json out = a;
  for (const auto& [key, value] : b.items()) {
    out[key] = out.contains(key) ? merge_keyword(key, out[key], value) : value;
  }
  if (out.contains("enum") && out.contains("const")) {
    if (!contains(out["enum"], out["const"])) return false;
    out.erase("enum");
  }
  return out;
}

}  // namespace bam::constraints
