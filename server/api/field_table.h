// Requests as tables: one row per field says its name, where it is taken, its type and range, what it means and where its
// value goes. The body is read by the rows, /openapi.json describes them, and docs/api.md lists what that says.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/json_fields.h"

namespace bam {

// The type of a field and what becomes of its value.
template <typename T>
struct FieldKind {
  Json schema;                                                               // JSON Schema, null excluded
  std::function<void(FieldReader& in, const std::string& key, T& out)> set;  // the field is there and not null
};

template <typename T>
struct Field {
  Field(std::string name, unsigned where, FieldKind<T> kind, std::string help, std::vector<std::string> aliases = {},
        bool required = false)
      : name(std::move(name)),
        where(where),
        kind(std::move(kind)),
        help(std::move(help)),
        aliases(std::move(aliases)),
        required(required) {}

  std::string name;
  unsigned where;  // bits that the table gives a meaning
  FieldKind<T> kind;
  std::string help;
  std::vector<std::string> aliases;
  bool required;
};

template <typename T>
using FieldTable = std::vector<Field<T>>;

// A range of numbers; its ends belong to it unless they are said to be open.
struct NumberRange {
  double min, max;
  bool open_min = false, open_max = false;

  Json schema() const {
    return {{"type", "number"},
            {open_min ? "exclusiveMinimum" : "minimum", min},
            {open_max ? "exclusiveMaximum" : "maximum", max}};
  }
  std::optional<double> read(FieldReader& in, const std::string& key) const;
};

// Reads the fields of `where`. A field under two of its names must say the same twice.
template <typename T>
void read_fields(FieldReader& in, const FieldTable<T>& table, unsigned where, T& out) {
  for (const Field<T>& field : table) {
    if ((field.where & where) == 0) continue;
    const std::string* found = nullptr;
    const Json* value = nullptr;
    const auto look = [&](const std::string& name) {
      const Json* here = in.raw(name);
      if (!here) return;
      if (found && *here != *value) in.fail(name, fmt::format("'{}' and '{}' disagree.", *found, name));
      if (!found) found = &name;
      value = here;
    };
    look(field.name);
    for (const std::string& alias : field.aliases) look(alias);
    if (found && in.ok()) field.kind.set(in, *found, out);
    if (!found && field.required) in.require(field.name);
  }
}

// A request body as a JSON schema. The name of an alias refers to the field itself.
template <typename T>
Json fields_schema(const FieldTable<T>& table, unsigned where) {
  Json properties = Json::object(), required = Json::array();
  for (const Field<T>& field : table) {
    if ((field.where & where) == 0) continue;
    Json schema = {{"description", field.help}};
    if (field.required) {
      schema.update(field.kind.schema);
      required.push_back(field.name);
    } else {
      Json type = field.kind.schema;
      if (type.contains("default")) {
        schema["default"] = type["default"];
        type.erase("default");
      }
      schema["anyOf"] = Json::array({std::move(type), {{"type", "null"}}});
    }
    for (const std::string& alias : field.aliases) {
      properties[alias] = schema;
      properties[alias]["description"] = fmt::format("The same as {}.", field.name);
      properties[alias]["x-alias-of"] = field.name;
    }
    if (!field.aliases.empty()) schema["x-aliases"] = field.aliases;
    properties[field.name] = std::move(schema);
  }
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

// The kinds of fields. `get` gives a reference to the member that holds the value, which may be optional; a member that is
// not has its initial value as the default.
template <typename T>
struct FieldKinds {
  template <typename Get>
  static FieldKind<T> flag(Get get) {
    return {with_default({{"type", "boolean"}}, get), [get](FieldReader& in, const std::string& key, T& out) {
              if (const auto value = in.boolean(key)) get(out) = *value;
            }};
  }

  template <typename Get>
  static FieldKind<T> integer(int64_t min, int64_t max, Get get) {
    return {with_default({{"type", "integer"}, {"minimum", min}, {"maximum", max}}, get),
            [min, max, get](FieldReader& in, const std::string& key, T& out) {
              if (const auto value = in.integer(key, min, max)) get(out) = static_cast<Value<Get>>(*value);
            }};
  }

  template <typename Get>
  static FieldKind<T> number(NumberRange range, Get get) {
    return {with_default(range.schema(), get), [range, get](FieldReader& in, const std::string& key, T& out) {
              if (const auto value = range.read(in, key)) get(out) = static_cast<Value<Get>>(*value);
            }};
  }

  template <typename Get>
  static FieldKind<T> text(size_t max_bytes, Get get) {
    Json schema = {{"type", "string"}};
    if (max_bytes != SIZE_MAX) schema["maxLength"] = max_bytes;
    return {std::move(schema), [max_bytes, get](FieldReader& in, const std::string& key, T& out) {
              if (auto value = in.text(key, max_bytes)) get(out) = *std::move(value);
            }};
  }

  // One of a few words, each with the value that stands for it.
  template <typename V, typename Get>
  static FieldKind<T> choice(std::vector<std::pair<std::string_view, V>> words, Get get) {
    Json names = Json::array();
    for (const auto& [name, value] : words) names.push_back(name);
    return {{{"enum", std::move(names)}}, [words, get](FieldReader& in, const std::string& key, T& out) {
              if (const auto value = in.choice<V>(key, words)) get(out) = *value;
            }};
  }

  // An object with fields of its own; what it does not know is left alone.
  static FieldKind<T> object(FieldTable<T> fields) {
    Json schema = fields_schema(fields, ~0u);
    return {std::move(schema), [fields = std::move(fields)](FieldReader& in, const std::string& key, T& out) {
              const Json* nested = in.object(key);
              if (!nested) return;
              FieldReader reader(*nested, in.name_of(key));
              read_fields(reader, fields, ~0u, out);
              in.adopt(reader);
            }};
  }

  static FieldKind<T> custom(Json schema, std::function<void(FieldReader&, const std::string&, T&)> set) {
    return {std::move(schema), std::move(set)};
  }

  // Says nothing here.
  static FieldKind<T> ignored(Json schema) {
    return {std::move(schema), [](FieldReader&, const std::string&, T&) {}};
  }

  // Answers 400 with the reason, unless the value asks for nothing.
  static FieldKind<T> refused(Json harmless, std::string reason) {
    return {{{"enum", harmless}}, [harmless, reason = std::move(reason)](FieldReader& in, const std::string& key, T&) {
              if (std::find(harmless.begin(), harmless.end(), *in.raw(key)) != harmless.end()) return;
              in.fail(key,
                      fmt::format("'{}' is not supported{}{}.", in.name_of(key), reason.empty() ? "" : ": ", reason));
            }};
  }

 private:
  template <typename M>
  struct Plain {
    using type = M;
  };
  template <typename M>
  struct Plain<std::optional<M>> {
    using type = M;
  };
  template <typename Get>
  using Member = std::remove_reference_t<std::invoke_result_t<Get, T&>>;
  template <typename Get>
  using Value = typename Plain<Member<Get>>::type;

  template <typename Get>
  static Json with_default(Json schema, Get get) {
    if constexpr (std::is_arithmetic_v<Member<Get>>) {
      T initial;
      schema["default"] = get(initial);
    }
    return schema;
  }
};

// The member of a request, for FieldKinds.
#define BAM_MEMBER(member) \
  [](auto& request) -> auto& { return request.member; }

}  // namespace bam
