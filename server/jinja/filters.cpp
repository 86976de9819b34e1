#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "server/jinja/builtins.h"
#include "server/jinja/text.h"

namespace bam::jinja {
namespace {

using Filter = std::function<Value(const Value&, const Arguments&, Budget&)>;

int64_t integer_or(const Value& value, int64_t otherwise) {
  if (value.is_undefined() || value.is_none()) return otherwise;
  if (!value.is_int() && !value.is_bool()) throw Error("an integer expected, not {}", value.type_name());
  return value.as_int();
}

Value length_of(const Value& value, Budget& budget) {
  if (value.is_string()) {
    budget.charge_text(value.as_string().size());
    return Value::integer(text_length(value.as_string()));
  }
  if (value.is_list()) return Value::integer(static_cast<int64_t>(value.as_list().size()));
  if (value.is_dict()) return Value::integer(static_cast<int64_t>(value.as_dict().items.size()));
  if (value.is_undefined()) return Value::integer(0);
  throw Error("object of type '{}' has no len()", value.type_name());
}

// "a.b.0": attributes and indices one after the other.
Value attribute_path(Value value, const std::string& path) {
  size_t start = 0;
  while (start <= path.size()) {
    const size_t dot = std::min(path.find('.', start), path.size());
    const std::string part = path.substr(start, dot - start);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && end == part.data() + part.size();
    value = is_index ? get_item(value, Value::integer(index)) : get_attribute(value, part);
    start = dot + 1;
  }
  return value;
}

Value join(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("join", {"d", "attribute"});
  const std::string separator = printed(args[0], budget);
  std::string out;
  bool first = true;
  for (Value item : iterate(value, budget)) {
    if (!args[1].is_undefined()) item = attribute_path(item, printed(args[1], budget));
    if (!std::exchange(first, false)) out += separator;
    out += printed(item, budget);
    if (out.size() > budget.max_text_bytes()) throw Error("the template produces too much text");
  }
  return text_value(std::move(out), budget);
}

Value to_json_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("tojson", {"indent", "ensure_ascii", "separators", "sort_keys"});
  JsonStyle style;
  style.indent = static_cast<int>(std::clamp<int64_t>(integer_or(args[0], -1), -1, 16));
  style.ensure_ascii = args[1].truthy();
  if (!args[2].is_undefined() && !args[2].is_none()) throw Error("tojson() with separators is not supported");
  style.sort_keys = args[3].truthy();
  budget.charge_value(value);
  return text_value(to_json(value, style), budget);
}

Value to_int(const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("int", {"default", "base"});
  const Value otherwise = args[0].is_undefined() ? Value::integer(0) : args[0];
  if (value.is_float()) {
    const double d = value.as_float();
    return std::fabs(d) < 9e18 ? Value::integer(static_cast<int64_t>(d)) : otherwise;
  }
  if (value.is_number()) return Value::integer(value.as_int());
  if (!value.is_string()) return otherwise;
  std::string_view text = strip(value.as_string(), Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  int64_t whole = 0;
  const auto end = text.data() + text.size();
  const auto as_int = std::from_chars(text.data(), end, whole);
  if (as_int.ec == std::errc() && as_int.ptr == end) return Value::integer(whole);
  const auto as_float = std::from_chars(text.data(), end, number);
  const bool usable = as_float.ec == std::errc() && as_float.ptr == end && std::fabs(number) < 9e18;
  return usable ? Value::integer(static_cast<int64_t>(number)) : otherwise;
}

Value to_float(const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("float", {"default"});
  const Value otherwise = args[0].is_undefined() ? Value::number(0) : args[0];
  if (value.is_number()) return Value::number(value.as_float());
  if (!value.is_string()) return otherwise;
  const std::string_view text = strip(value.as_string(), Side::kBoth);
  double number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() ? Value::number(number) : otherwise;
}

// select, reject (the element itself is tested), selectattr, rejectattr (one of its attributes is).
Value select(const Value& value, const Arguments& arguments, Budget& budget, bool by_attribute, bool wanted) {
  Arguments rest = arguments;
  std::string attribute, test;
  auto shift = [&] {
    std::string text = printed(rest.positional.front(), budget);
    rest.positional.erase(rest.positional.begin());
    return text;
  };
  if (by_attribute) {
    if (rest.positional.empty()) throw Error("selectattr() and rejectattr() want an attribute");
    attribute = shift();
  }
  if (!rest.positional.empty()) test = shift();
  std::vector<Value> out;
  for (const Value& item : iterate(value, budget)) {
    const Value tested = by_attribute ? attribute_path(item, attribute) : item;
    const bool passes = test.empty() ? tested.truthy() : apply_test(test, tested, rest, budget);
    if (passes == wanted) out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value map(const Value& value, const Arguments& arguments, Budget& budget) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const auto args = arguments.bind("map", {"", "attribute", "default"});
    if (args[1].is_undefined()) throw Error("map() wants a filter or an attribute");
    for (const Value& item : iterate(value, budget)) {
      const Value member = attribute_path(item, printed(args[1], budget));
      out.push_back(member.is_undefined() && !args[2].is_undefined() ? args[2] : member);
    }
    return Value::list(std::move(out));
  }
  Arguments rest = arguments;
  const std::string filter = printed(rest.positional.front(), budget);
  rest.positional.erase(rest.positional.begin());
  if (filter == "map") throw Error("map() of map() is not supported");
  for (const Value& item : iterate(value, budget)) out.push_back(apply_filter(filter, item, rest, budget));
  return Value::list(std::move(out));
}

Value sort(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("sort", {"reverse", "case_sensitive", "attribute"});
  auto items = iterate(value, budget);
  for (int i = 0; i < 16; ++i) budget.charge_value(value);  // about log2(n) comparisons of each
  std::vector<std::pair<Value, Value>> keyed;               // key, item
  for (const Value& item : items) {
    Value key = args[2].is_undefined() ? item : attribute_path(item, printed(args[2], budget));
    if (key.is_string() && !args[1].truthy()) key = Value::string(lower(key.as_string()));
    keyed.emplace_back(std::move(key), item);
  }
  // A comparison that throws must not do so inside std::sort, so all pairs that could meet are of one kind.
  for (const auto& [key, item] : keyed) less(keyed.front().first, key);
  const bool reverse = args[0].truthy();
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  for (size_t i = 0; i < keyed.size(); ++i) items[i] = keyed[i].second;
  return Value::list(std::move(items));
}

Value unique(const Value& value, Budget& budget) {
  std::vector<Value> out;
  for (const Value& item : iterate(value, budget)) {
    for (size_t i = 0; i <= out.size(); i += 8) budget.charge_value(item);
    if (std::none_of(out.begin(), out.end(), [&](const Value& v) { return equal(v, item); })) out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value extreme(const Value& value, Budget& budget, bool largest) {
  const auto items = iterate(value, budget);
  budget.charge_value(value);
  if (items.empty()) return Value::undefined("an extreme of nothing");
  Value best = items[0];
  for (const Value& item : items) {
    if (largest ? less(best, item) : less(item, best)) best = item;
  }
  return best;
}

Value indent(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto args = arguments.bind("indent", {"width", "first", "blank"});
  const std::string margin =
      args[0].is_string() ? args[0].as_string()
                          : std::string(static_cast<size_t>(std::clamp<int64_t>(integer_or(args[0], 4), 0, 100)), ' ');
  std::string out;
  bool first = true;
  for (const std::string& line : split(printed(value, budget), std::string("\n"), -1, false)) {
    if (!first) out += '\n';
    if (first ? args[1].truthy() : (!line.empty() || args[2].truthy())) out += margin;
    out += line;
    first = false;
    if (out.size() > budget.max_text_bytes()) throw Error("the template produces too much text");
  }
  return text_value(std::move(out), budget);
}

Value round_filter(const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("round", {"precision", "method"});
  if (!value.is_number()) throw Error("round() wants a number");
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(integer_or(args[0], 0), 0, 15)));
  const std::string method = args[1].is_undefined() ? "common" : to_text(args[1]);
  const double scaled = value.as_float() * scale;
  return Value::number((method == "ceil"    ? std::ceil(scaled)
                        : method == "floor" ? std::floor(scaled)
                                            : std::nearbyint(scaled)) /
                       scale);
}

Value items_of(const Value& value) {
  std::vector<Value> out;
  if (value.is_undefined()) return Value::list({});
  if (!value.is_dict()) throw Error("items() wants a mapping");
  for (const auto& [key, item] : value.as_dict().items) out.push_back(Value::list({Value::string(key), item}));
  return Value::list(std::move(out));
}

Value end_of(const Value& value, Budget& budget, bool last) {
  const auto items = iterate(value, budget);
  if (items.empty()) return Value::undefined("an element of nothing");
  return last ? items.back() : items.front();
}

const std::unordered_map<std::string, Filter>& filters() {
  using V = Value;
  auto on_text = [](std::string (*change)(std::string_view)) {
    return [change](const V& v, const Arguments&, Budget& b) { return text_value(change(printed(v, b)), b); };
  };
  auto selection = [](bool by_attribute, bool wanted) {
    return [=](const V& v, const Arguments& a, Budget& b) { return select(v, a, b, by_attribute, wanted); };
  };
  static const std::unordered_map<std::string, Filter> table = {
      {"trim",
       [](const V& v, const Arguments& a, Budget& b) {
         const std::string text = printed(v, b);
         const auto chars = optional_text(a.bind("trim", {"chars"})[0]);
         b.charge_search(text.size(), chars ? 64 * chars->size() : 0);
         return text_value(std::string(strip(text, Side::kBoth, chars)), b);
       }},
      {"upper", on_text(upper)},
      {"lower", on_text(lower)},
      {"capitalize", on_text(capitalize)},
      {"title", on_text(title_filter)},
      {"string",
       [](const V& v, const Arguments&, Budget& b) { return v.is_string() ? v : text_value(printed(v, b), b); }},
      {"safe",
       [](const V& v, const Arguments&, Budget& b) { return v.is_string() ? v : text_value(printed(v, b), b); }},
      {"length", [](const V& v, const Arguments&, Budget& b) { return length_of(v, b); }},
      {"count", [](const V& v, const Arguments&, Budget& b) { return length_of(v, b); }},
      {"join", join},
      {"tojson", to_json_filter},
      {"default",
       [](const V& v, const Arguments& a, Budget&) {
         const auto args = a.bind("default", {"default_value", "boolean"});
         const bool use = v.is_undefined() || (args[1].truthy() && !v.truthy());
         return use ? (args[0].is_undefined() ? V::string("") : args[0]) : v;
       }},
      {"first", [](const V& v, const Arguments&, Budget& b) { return end_of(v, b, false); }},
      {"last", [](const V& v, const Arguments&, Budget& b) { return end_of(v, b, true); }},
      {"replace",
       [](const V& v, const Arguments& a, Budget& b) {
         const auto args = a.bind("replace", {"old", "new", "count"});
         Arguments texts{.positional = {V::string(printed(args[0], b)), V::string(printed(args[1], b)), args[2]}};
         return call_method(V::string(printed(v, b)), "replace", texts, b);
       }},
      {"list", [](const V& v, const Arguments&, Budget& b) { return V::list(iterate(v, b)); }},
      {"items", [](const V& v, const Arguments&, Budget&) { return items_of(v); }},
      {"dictsort",
       [](const V& v, const Arguments&, Budget& b) {
         const V items = items_of(v);
         return sort(items, {{}, {{"attribute", V::integer(0)}}}, b);
       }},
      {"select", selection(false, true)},
      {"reject", selection(false, false)},
      {"selectattr", selection(true, true)},
      {"rejectattr", selection(true, false)},
      {"map", map},
      {"sort", sort},
      {"unique", [](const V& v, const Arguments&, Budget& b) { return unique(v, b); }},
      {"reverse",
       [](const V& v, const Arguments&, Budget& b) {
         auto items = iterate(v, b);
         std::reverse(items.begin(), items.end());
         return v.is_string() ? join(V::list(std::move(items)), {}, b) : V::list(std::move(items));
       }},
      {"sum",
       [](const V& v, const Arguments& a, Budget& b) {
         const auto args = a.bind("sum", {"attribute", "start"});
         V total = args[1].is_undefined() ? V::integer(0) : args[1];
         for (const V& item : iterate(v, b)) {
           total = binary_operation("+", total,
                                    args[0].is_undefined() ? item : attribute_path(item, printed(args[0], b)), b);
         }
         return total;
       }},
      {"min", [](const V& v, const Arguments&, Budget& b) { return extreme(v, b, false); }},
      {"max", [](const V& v, const Arguments&, Budget& b) { return extreme(v, b, true); }},
      {"abs",
       [](const V& v, const Arguments&, Budget& b) {
         if (!v.is_number()) throw Error("abs() wants a number");
         return v.as_float() < 0 ? binary_operation("*", v, V::integer(-1), b) : v;
       }},
      {"int", [](const V& v, const Arguments& a, Budget&) { return to_int(v, a); }},
      {"float", [](const V& v, const Arguments& a, Budget&) { return to_float(v, a); }},
      {"round", [](const V& v, const Arguments& a, Budget&) { return round_filter(v, a); }},
      {"indent", indent},
  };
  return table;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
  const auto it = filters().find(name == "d" ? "default" : name);
  if (it == filters().end()) throw Error("no filter named '{}'", name);
  budget.charge(1);
  return it->second(value, arguments, budget);
}

}  // namespace bam::jinja
