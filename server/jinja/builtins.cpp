#include "server/jinja/builtins.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "server/jinja/text.h"

namespace bam::jinja {
namespace {

[[noreturn]] void fail_overflow() { throw Error("an integer too large"); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) throw Error("integer division or modulo by zero");
  if (b == -1 && a == INT64_MIN) fail_overflow();
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

// With the divisor's sign, as in Python.
int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == 0) throw Error("integer division or modulo by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t out = 1;
  for (; exponent > 0; --exponent) {  // overflows after at most 63 rounds
    if (__builtin_mul_overflow(out, base, &out)) fail_overflow();
  }
  return out;
}

Value integer_operation(const std::string& op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+" || op == "-" || op == "*") {
    const bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &out)
                          : op == "-" ? __builtin_sub_overflow(a, b, &out)
                                      : __builtin_mul_overflow(a, b, &out);
    if (overflow) fail_overflow();
    return Value::integer(out);
  }
  if (op == "//") return Value::integer(floor_divide(a, b));
  if (op == "%") return Value::integer(floor_modulo(a, b));
  if (op == "**" && b >= 0) return Value::integer(integer_power(a, b));
  if (op == "/" && b == 0) throw Error("division by zero");
  return op == "/" ? Value::number(static_cast<double>(a) / static_cast<double>(b))
                   : Value::number(std::pow(static_cast<double>(a), static_cast<double>(b)));
}

Value float_operation(const std::string& op, double a, double b) {
  if (op == "+") return Value::number(a + b);
  if (op == "-") return Value::number(a - b);
  if (op == "*") return Value::number(a * b);
  if (op == "**") return Value::number(std::pow(a, b));
  if (b == 0) throw Error("division by zero");
  if (op == "/") return Value::number(a / b);
  const double quotient = std::floor(a / b);
  return Value::number(op == "//" ? quotient : a - quotient * b);
}

Value repeated(const Value& value, int64_t count, Budget& budget) {
  count = std::max<int64_t>(count, 0);
  if (value.is_string()) {
    const size_t size = value.as_string().size();
    if (size > 0 && static_cast<uint64_t>(count) > budget.max_text_bytes() / size) {
      throw Error("the template produces too much text");
    }
    budget.charge_text(size * static_cast<size_t>(count));
    std::string out;
    for (int64_t i = 0; size > 0 && i < count; ++i) out += value.as_string();
    return Value::string(std::move(out));
  }
  std::vector<Value> out;
  for (int64_t i = 0; !value.as_list().empty() && i < count; ++i) {
    budget.charge(1 + value.as_list().size());
    out.insert(out.end(), value.as_list().begin(), value.as_list().end());
  }
  return Value::list(std::move(out));
}

Value make_range(const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("range", {"start", "stop", "step"});
  for (const Value& v : args) {
    if (!v.is_undefined() && !v.is_int() && !v.is_bool()) throw Error("range() wants integers");
  }
  if (args[0].is_undefined()) throw Error("range() wants at least one argument");
  const bool one = args[1].is_undefined();
  int64_t at = one ? 0 : args[0].as_int();
  const int64_t stop = one ? args[0].as_int() : args[1].as_int();
  const int64_t step = args[2].is_undefined() ? 1 : args[2].as_int();
  if (step == 0) throw Error("range() with a step of zero");
  std::vector<Value> items;
  while (step > 0 ? at < stop : at > stop) {
    budget.charge(1);
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::list(std::move(items));
}

Value strftime_now(const Arguments& arguments) {
  const auto args = arguments.bind("strftime_now", {"format"});
  if (!args[0].is_string()) throw Error("strftime_now() wants a format");
  if (args[0].as_string().empty()) return Value::string("");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[256];
  const size_t size = std::strftime(buffer, sizeof buffer, args[0].as_string().c_str(), &local);
  if (size == 0) throw Error("strftime_now() with an unusable format");
  return Value::string(std::string(buffer, size));
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index), size = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem" && index > 0) return (*loop.items)[loop.index - 1];
  if (name == "nextitem" && index + 1 < size) return (*loop.items)[loop.index + 1];
  return Value::undefined("loop." + name);
}

// The index in [0, size) that a possibly negative one means, or size when there is none.
size_t element_index(int64_t index, int64_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? static_cast<size_t>(index) : static_cast<size_t>(size);
}

}  // namespace

std::vector<Value> Arguments::bind(std::string_view callee, std::initializer_list<std::string_view> parameters) const {
  if (positional.size() > parameters.size()) {
    throw Error("{}() takes at most {} arguments", callee, parameters.size());
  }
  std::vector<Value> out = positional;
  out.resize(parameters.size());
  for (const auto& [name, value] : keywords) {
    const auto it = std::find(parameters.begin(), parameters.end(), name);
    if (it == parameters.end()) throw Error("{}() has no argument '{}'", callee, name);
    out[static_cast<size_t>(it - parameters.begin())] = value;
  }
  return out;
}

std::string printed(const Value& value, Budget& budget) {
  budget.charge_value(value);
  return to_text(value);
}

Value text_value(std::string text, Budget& budget) {
  budget.charge_text(text.size());
  return Value::string(std::move(text));
}

const std::string& text_argument(const Value& value) {
  if (!value.is_string()) throw Error("a string expected, not {}", value.type_name());
  return value.as_string();
}

std::optional<std::string> optional_text(const Value& value) {
  if (value.is_undefined() || value.is_none()) return std::nullopt;
  return text_argument(value);
}

Value call_function(Function function, const Arguments& arguments, Budget& budget) {
  switch (function) {
    case Function::kRange: return make_range(arguments, budget);
    case Function::kStrftimeNow: return strftime_now(arguments);
    case Function::kRaiseException: {
      const auto args = arguments.bind("raise_exception", {"message"});
      throw RaisedByTemplate(printed(args[0], budget));
    }
    case Function::kNamespace:
    case Function::kDict: break;
  }
  std::vector<std::pair<std::string, Value>> items;
  if (!arguments.positional.empty()) {
    if (arguments.positional.size() > 1 || !arguments.positional[0].is_dict()) {
      throw Error("namespace() and dict() take keyword arguments or one dict");
    }
    items = arguments.positional[0].as_dict().items;
  }
  items.insert(items.end(), arguments.keywords.begin(), arguments.keywords.end());
  budget.charge(1 + items.size());
  Value dict = Value::dict(std::move(items));
  if (function == Function::kDict) return dict;
  auto ns = std::make_shared<Namespace>();
  ns->items = dict.as_dict().items;
  return Value::name_space(std::move(ns));
}

Value get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw Error("'{}' is undefined", object.undefined_name());
  if (const Loop* loop = object.as_loop()) return loop_attribute(*loop, name);
  if (const Namespace* ns = object.as_namespace()) {
    for (const auto& [key, value] : ns->items) {
      if (key == name) return value;
    }
  }
  if (object.is_dict()) {
    if (const Value* value = object.as_dict().find(name)) return *value;
  }
  return Value::undefined(name);
}

Value get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) throw Error("'{}' is undefined", object.undefined_name());
  if (key.is_string()) {
    if (object.is_dict() || object.as_namespace() || object.as_loop()) return get_attribute(object, key.as_string());
    return Value::undefined(key.as_string());
  }
  if (key.is_int() && object.is_list()) {
    const auto& items = object.as_list();
    const size_t index = element_index(key.as_int(), static_cast<int64_t>(items.size()));
    if (index < items.size()) return items[index];
  }
  if (key.is_int() && object.is_string()) {
    const auto offsets = codepoint_offsets(object.as_string());
    const size_t index = element_index(key.as_int(), static_cast<int64_t>(offsets.size()) - 1);
    if (index + 1 < offsets.size()) {
      return Value::string(object.as_string().substr(offsets[index], offsets[index + 1] - offsets[index]));
    }
  }
  return Value::undefined(key.is_int() ? std::to_string(key.as_int()) : "element");
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  auto number = [](const Value& v, int64_t otherwise) {
    if (v.is_undefined() || v.is_none()) return otherwise;
    if (!v.is_int() && !v.is_bool()) throw Error("slice indices must be integers");
    return v.as_int();
  };
  if (!object.is_list() && !object.is_string()) throw Error("'{}' cannot be sliced", object.type_name());
  std::vector<size_t> offsets;
  if (object.is_string()) offsets = codepoint_offsets(object.as_string());
  const auto size = static_cast<int64_t>(object.is_list() ? object.as_list().size() : offsets.size() - 1);
  budget.charge(1 + static_cast<uint64_t>(size) / 16);
  const int64_t by = number(step, 1);
  if (by == 0) throw Error("slice step cannot be zero");
  const int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? size : size - 1;
  auto bound = [&](const Value& v, int64_t otherwise) {
    int64_t at = number(v, otherwise);
    if (v.is_undefined() || v.is_none()) return at;
    if (at < 0) at += size;
    return std::clamp(at, lowest, highest);
  };
  const int64_t first = bound(start, by > 0 ? 0 : size - 1), last = bound(stop, by > 0 ? size : -1);
  std::vector<Value> items;
  std::string text;
  for (int64_t i = first; by > 0 ? i < last : i > last;) {
    const auto index = static_cast<size_t>(i);
    if (object.is_list()) {
      items.push_back(object.as_list()[index]);
    } else {
      text += object.as_string().substr(offsets[index], offsets[index + 1] - offsets[index]);
    }
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return object.is_list() ? Value::list(std::move(items)) : Value::string(std::move(text));
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> out;
  if (value.is_list()) {
    out = value.as_list();
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict().items) out.push_back(Value::string(key));
  } else if (value.is_string()) {
    const auto offsets = codepoint_offsets(value.as_string());
    budget.charge(offsets.size());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      out.push_back(Value::string(value.as_string().substr(offsets[i], offsets[i + 1] - offsets[i])));
    }
  } else if (!value.is_undefined()) {
    throw Error("'{}' object is not iterable", value.type_name());
  }
  budget.charge(1 + out.size());
  return out;
}

Value binary_operation(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  if (a.is_undefined()) throw Error("'{}' is undefined", a.undefined_name());
  if (b.is_undefined()) throw Error("'{}' is undefined", b.undefined_name());
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_operation(op, a.as_float(), b.as_float());
    return integer_operation(op, a.as_int(), b.as_int());
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    budget.charge_text(a.as_string().size() + b.as_string().size());
    return Value::string(a.as_string() + b.as_string());
  }
  if (op == "+" && a.is_list() && b.is_list()) {
    budget.charge(1 + a.as_list().size() + b.as_list().size());
    std::vector<Value> items = a.as_list();
    items.insert(items.end(), b.as_list().begin(), b.as_list().end());
    return Value::list(std::move(items));
  }
  const bool a_repeats = a.is_string() || a.is_list(), b_repeats = b.is_string() || b.is_list();
  if (op == "*" && a_repeats && (b.is_int() || b.is_bool())) return repeated(a, b.as_int(), budget);
  if (op == "*" && b_repeats && (a.is_int() || a.is_bool())) return repeated(b, a.as_int(), budget);
  throw Error("unsupported operand types for {}: '{}' and '{}'", op, a.type_name(), b.type_name());
}

}  // namespace bam::jinja
