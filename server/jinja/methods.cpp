#include <algorithm>
#include <cmath>

#include "server/jinja/builtins.h"
#include "server/jinja/text.h"

namespace bam::jinja {
namespace {

Value text_list(std::vector<std::string> texts, Budget& budget) {
  std::vector<Value> out;
  for (auto& text : texts) out.push_back(text_value(std::move(text), budget));
  return Value::list(std::move(out));
}

int64_t count_argument(const Value& value) {
  if (value.is_undefined()) return -1;
  if (!value.is_int() && !value.is_bool()) throw Error("an integer expected, not {}", value.type_name());
  return value.as_int();
}

bool has_affix(const std::string& text, const Value& affixes, bool prefix) {
  if (affixes.is_list()) {
    const auto& all = affixes.as_list();
    return std::any_of(all.begin(), all.end(),
                       [&](const Value& a) { return !a.is_list() && has_affix(text, a, prefix); });
  }
  const std::string& affix = text_argument(affixes);
  return prefix ? text.starts_with(affix) : text.ends_with(affix);
}

// How often `part` occurs without overlap; an empty one fits between all characters.
int64_t count_occurrences(const std::string& text, const std::string& part) {
  if (part.empty()) return text_length(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

Value replace_method(const std::string& text, const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("replace", {"old", "new", "count"});
  const std::string &from = text_argument(args[0]), &to = text_argument(args[1]);
  budget.charge_search(text.size(), from.size());
  const auto hits = static_cast<size_t>(count_occurrences(text, from));
  if (to.size() > 0 && hits > budget.max_text_bytes() / to.size()) throw Error("the template produces too much text");
  budget.charge_text(text.size() + hits * to.size());
  return Value::string(replace(text, from, to, count_argument(args[2])));
}

bool all_characters(const std::string& text, bool (*test)(char)) {
  return !text.empty() && std::all_of(text.begin(), text.end(), test);
}
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

Value find_method(const std::string& text, const std::string& name, const Arguments& arguments, Budget& budget) {
  const std::string part = text_argument(arguments.bind(name, {"sub"})[0]);
  budget.charge_search(text.size(), part.size());
  const size_t at = name.starts_with('r') ? text.rfind(part) : text.find(part);
  if (at != std::string::npos) return Value::integer(text_length(std::string_view(text).substr(0, at)));
  if (name.ends_with("index")) throw Error("substring not found");
  return Value::integer(-1);
}

Value join_method(const std::string& separator, const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("join", {"iterable"});
  for (const Value& item : iterate(args[0], budget)) text_argument(item);
  return apply_filter("join", args[0], {{Value::string(separator)}, {}}, budget);
}

Value call_text_method(const std::string& text, const std::string& name, const Arguments& arguments, Budget& budget) {
  budget.charge_text(text.size());
  auto argument = [&] { return arguments.bind(name, {"value"})[0]; };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Side side = name == "strip" ? Side::kBoth : name == "lstrip" ? Side::kLeft : Side::kRight;
    const auto chars = optional_text(argument());
    budget.charge_search(text.size(), chars ? 64 * chars->size() : 0);
    return text_value(std::string(strip(text, side, chars)), budget);
  }
  if (name == "split" || name == "rsplit") {
    const auto args = arguments.bind(name, {"sep", "maxsplit"});
    const auto separator = optional_text(args[0]);
    budget.charge(text.size() / 4);
    budget.charge_search(text.size(), separator ? separator->size() : 0);
    return text_list(split(text, separator, count_argument(args[1]), name == "rsplit"), budget);
  }
  if (name == "splitlines") return text_list(split_lines(text), budget);
  if (name == "startswith") return Value::boolean(has_affix(text, argument(), true));
  if (name == "endswith") return Value::boolean(has_affix(text, argument(), false));
  if (name == "removeprefix" || name == "removesuffix") {
    const bool prefix = name == "removeprefix";
    const Value affix = argument();
    if (!has_affix(text, affix, prefix)) return text_value(text, budget);
    const size_t size = text_argument(affix).size();
    return text_value(prefix ? text.substr(size) : text.substr(0, text.size() - size), budget);
  }
  if (name == "upper") return text_value(upper(text), budget);
  if (name == "lower") return text_value(lower(text), budget);
  if (name == "title") return text_value(title(text), budget);
  if (name == "capitalize") return text_value(capitalize(text), budget);
  if (name == "replace") return replace_method(text, arguments, budget);
  if (name == "join") return join_method(text, arguments, budget);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex")
    return find_method(text, name, arguments, budget);
  if (name == "count") {
    const std::string part = text_argument(argument());
    budget.charge_search(text.size(), part.size());
    return Value::integer(count_occurrences(text, part));
  }
  if (name == "isdigit" || name == "isnumeric" || name == "isdecimal")
    return Value::boolean(all_characters(text, is_digit));
  if (name == "isalpha") return Value::boolean(all_characters(text, is_ascii_letter));
  if (name == "isalnum")
    return Value::boolean(all_characters(text, [](char c) { return is_digit(c) || is_ascii_letter(c); }));
  if (name == "isspace") return Value::boolean(!text.empty() && strip(text, Side::kBoth).empty());
  throw Error("'str' has no method '{}' here", name);
}

Value call_dict_method(const Dict& dict, const Value& object, const std::string& name, const Arguments& arguments,
                       Budget& budget) {
  budget.charge(1 + dict.items.size());
  if (name == "items") return apply_filter("items", object, {}, budget);
  if (name == "get") {
    const auto args = arguments.bind("get", {"key", "default"});
    const Value* found = args[0].is_string() ? dict.find(args[0].as_string()) : nullptr;
    return found ? *found : args[1].is_undefined() ? Value::none() : args[1];
  }
  std::vector<Value> out;
  if (name == "keys" || name == "values") {
    for (const auto& [key, value] : dict.items) out.push_back(name == "keys" ? Value::string(key) : value);
    return Value::list(std::move(out));
  }
  if (name == "copy") return object;
  throw Error("'dict' has no method '{}' here", name);
}

Value call_list_method(const std::vector<Value>& items, const std::string& name, const Arguments& arguments,
                       Budget& budget) {
  budget.charge(1 + items.size());
  if (name != "index" && name != "count") throw Error("'list' has no method '{}' here: values do not change", name);
  const Value wanted = arguments.bind(name, {"value"})[0];
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    budget.charge_value(items[i]);
    if (!equal(items[i], wanted)) continue;
    if (name == "index") return Value::integer(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") throw Error("the value is not in the list");
  return Value::integer(count);
}

}  // namespace

Value call_method(const Value& object, const std::string& name, const Arguments& arguments, Budget& budget) {
  if (object.is_undefined()) throw Error("'{}' is undefined", object.undefined_name());
  if (object.is_string()) return call_text_method(object.as_string(), name, arguments, budget);
  if (object.is_dict()) return call_dict_method(object.as_dict(), object, name, arguments, budget);
  if (object.is_list()) return call_list_method(object.as_list(), name, arguments, budget);
  if (const Loop* loop = object.as_loop(); loop && name == "cycle") {
    if (arguments.positional.empty()) throw Error("no items for cycling given");
    return arguments.positional[loop->index % arguments.positional.size()];
  }
  throw Error("'{}' has no method '{}'", object.type_name(), name);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
  auto argument = [&] {
    const Value other = arguments.bind(name, {"other"})[0];
    budget.charge_value(other);
    if (other.is_string() && value.is_string())
      budget.charge_search(other.as_string().size(), value.as_string().size());
    return other;
  };
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none" || name == "None") return value.is_none();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_dict();
  if (name == "sequence") return value.is_string() || value.is_list() || value.is_dict();
  if (name == "iterable") return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined();
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_int();
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.truthy();
  if (name == "false") return value.is_bool() && !value.truthy();
  if (name == "callable") return value.is_callable();
  if (name == "lower" || name == "upper") {
    const std::string text = printed(value, budget), small = lower(text), large = upper(text);
    return text == (name == "lower" ? small : large) && small != large;
  }
  if (name == "in") return contains(argument(), value);
  if (name == "eq" || name == "==" || name == "equalto" || name == "sameas") return equal(value, argument());
  if (name == "ne" || name == "!=") return !equal(value, argument());
  if (name == "lt" || name == "<" || name == "lessthan") return less(value, argument());
  if (name == "gt" || name == ">" || name == "greaterthan") return less(argument(), value);
  if (name == "le" || name == "<=") return !less(argument(), value);
  if (name == "ge" || name == ">=") return !less(value, argument());
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const Value divisor = name == "divisibleby" ? argument() : Value::integer(2);
    if (!value.is_number() || !divisor.is_number() || divisor.as_float() == 0) throw Error("'{}' wants numbers", name);
    const bool divides = std::fmod(value.as_float(), divisor.as_float()) == 0;
    return name == "odd" ? !divides : divides;
  }
  throw Error("no test named '{}'", name);
}

}  // namespace bam::jinja
