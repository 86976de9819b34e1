// The values of a chat template: Python's, as far as templates can tell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace bam::jinja {

struct Macro;  // an AST node

// Containers nest no deeper than this, so that no walk over a value can exhaust the stack.
inline constexpr int kMaxValueDepth = 64;

class Value;
struct List {
  std::vector<Value> items;
  int depth = 1;
};
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in insertion order
  int depth = 1;
  const Value* find(std::string_view key) const;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};
struct Loop;

enum class Function : uint8_t { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

// Immutable and cheap to copy; only namespaces change, and they are never inside a container, so there are no cycles.
class Value {
 public:
  struct Undefined {
    std::string name;  // for messages
  };
  struct None {};

  Value() : data_(Undefined{}) {}
  static Value undefined(std::string name) { return Value(Data(Undefined{std::move(name)})); }
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool b) { return Value(Data(b)); }
  static Value integer(int64_t i) { return Value(Data(i)); }
  static Value number(double d) { return Value(Data(d)); }
  static Value string(std::string s) { return Value(Data(std::make_shared<const std::string>(std::move(s)))); }
  // Throws Error when nested too deep or when an element is a namespace or a loop.
  static Value list(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> items);
  static Value name_space(std::shared_ptr<Namespace> ns) { return Value(Data(std::move(ns))); }
  static Value loop(std::shared_ptr<const Loop> loop) { return Value(Data(std::move(loop))); }
  static Value macro(const Macro* macro) { return Value(Data(macro)); }
  static Value function(Function f) { return Value(Data(f)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_string() const { return std::holds_alternative<StringPtr>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_callable() const { return as_macro() || as_function(); }

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  int64_t as_int() const;   // of int or bool
  double as_float() const;  // of any number
  const std::string& as_string() const { return *std::get<StringPtr>(data_); }
  const std::vector<Value>& as_list() const { return std::get<ListPtr>(data_)->items; }
  const Dict& as_dict() const { return *std::get<DictPtr>(data_); }
  Namespace* as_namespace() const { return get<std::shared_ptr<Namespace>>(); }
  const Loop* as_loop() const { return get<std::shared_ptr<const Loop>>(); }
  const Macro* as_macro() const {
    const auto* p = std::get_if<const Macro*>(&data_);
    return p ? *p : nullptr;
  }
  const Function* as_function() const { return std::get_if<Function>(&data_); }

  bool truthy() const;
  const char* type_name() const;  // Python's, for messages
  int depth() const;

 private:
  using StringPtr = std::shared_ptr<const std::string>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using Data = std::variant<Undefined, None, bool, int64_t, double, StringPtr, ListPtr, DictPtr,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Loop>, const Macro*, Function>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <typename Ptr>
  typename Ptr::element_type* get() const {
    const auto* p = std::get_if<Ptr>(&data_);
    return p ? p->get() : nullptr;
  }

  Data data_;
};

// State of a running {% for %}.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  size_t index = 0;
};

// null is None. Throws Error when nested too deep.
Value from_json(const Json& json);

// Roughly the bytes of the value written out, elements that are shared counted each time. Stops counting at `limit`.
size_t written_size(const Value& value, size_t limit);

bool equal(const Value& a, const Value& b);
// Python's < on numbers, strings and lists. Throws Error for anything else.
bool less(const Value& a, const Value& b);
// `item in container`.
bool contains(const Value& container, const Value& item);

// str(value), as {{ }} prints it; repr(value), as it looks inside a printed list.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
struct JsonStyle {
  int indent = -1;  // < 0: on one line
  bool sort_keys = false;
  bool ensure_ascii = false;
};
// json.dumps. Throws Error for what JSON cannot hold.
std::string to_json(const Value& value, const JsonStyle& style = {});

}  // namespace bam::jinja
