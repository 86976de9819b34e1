#include "server/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace bam::jinja {
namespace {

void check_element(const Value& value) {
  if (value.as_namespace() || value.as_loop()) {
    throw Error("a {} cannot be stored in another value", value.type_name());
  }
}

int checked_depth(int depth) {
  if (depth > kMaxValueDepth) throw Error("values nested deeper than {}", kMaxValueDepth);
  return depth;
}

// repr(float): the shortest digits that read back the same, in Python's layout.
std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(d);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, format).ptr;
  std::string text(buffer, end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string quoted_repr(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\\' || c == quote) {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string quoted_json(const std::string& text, bool ensure_ascii) {
  std::string out = "\"";
  std::string_view rest = text;
  while (!rest.empty()) {
    const Utf8Step step = next_utf8(rest);
    const std::string_view bytes = rest.substr(0, step.length);
    rest.remove_prefix(step.length);
    const char32_t c = step.kind == Utf8Step::Kind::kValid ? step.code_point : 0xFFFD;
    switch (c) {
      case '"': out += "\\\""; continue;
      case '\\': out += "\\\\"; continue;
      case '\n': out += "\\n"; continue;
      case '\r': out += "\\r"; continue;
      case '\t': out += "\\t"; continue;
      case '\b': out += "\\b"; continue;
      case '\f': out += "\\f"; continue;
      default: break;
    }
    if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const uint32_t pair = c - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (pair >> 10), 0xDC00 + (pair & 0x3FF));
    } else {
      out += step.kind == Utf8Step::Kind::kValid ? bytes : kReplacementCharacter;
    }
  }
  return out + "\"";
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    if (value.is_list()) {
      const auto& items = value.as_list();
      write_all('[', ']', items, [&](const Value& item) { write(item); });
    } else if (value.is_dict()) {
      auto items = value.as_dict().items;
      if (style_.sort_keys) {
        std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      }
      write_all('{', '}', items, [&](const auto& item) {
        out += quoted_json(item.first, style_.ensure_ascii);
        out += ": ";
        write(item.second);
      });
    } else if (value.is_string()) {
      out += quoted_json(value.as_string(), style_.ensure_ascii);
    } else if (value.is_bool()) {
      out += value.truthy() ? "true" : "false";
    } else if (value.is_none()) {
      out += "null";
    } else if (value.is_int()) {
      out += std::to_string(value.as_int());
    } else if (value.is_float()) {
      const double d = value.as_float();
      out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_text(d);
    } else {
      throw Error("Object of type {} is not JSON serializable", value.type_name());
    }
  }

  std::string out;

 private:
  template <typename Items, typename Write>
  void write_all(char open, char close, const Items& items, Write write_item) {
    out += open;
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.indent >= 0 ? "," : ", ";
      new_line();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) new_line();
    out += close;
  }
  void new_line() {
    if (style_.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(style_.indent * level_), ' ');
  }

  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

Value Value::list(std::vector<Value> items) {
  int depth = 0;
  for (const Value& item : items) {
    check_element(item);
    depth = std::max(depth, item.depth());
  }
  auto list = std::make_shared<List>();
  list->depth = checked_depth(depth + 1);
  list->items = std::move(items);
  return Value(Data(ListPtr(std::move(list))));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> items) {
  auto dict = std::make_shared<Dict>();
  int depth = 0;
  for (auto& [key, value] : items) {
    check_element(value);
    depth = std::max(depth, value.depth());
    const auto known =
        std::find_if(dict->items.begin(), dict->items.end(), [&name = key](const auto& p) { return p.first == name; });
    if (known == dict->items.end()) {
      dict->items.emplace_back(std::move(key), std::move(value));
    } else {
      known->second = std::move(value);
    }
  }
  dict->depth = checked_depth(depth + 1);
  return Value(Data(DictPtr(std::move(dict))));
}

int64_t Value::as_int() const {
  const auto* b = std::get_if<bool>(&data_);
  return b ? static_cast<int64_t>(*b) : std::get<int64_t>(data_);
}

double Value::as_float() const {
  const auto* d = std::get_if<double>(&data_);
  return d ? *d : static_cast<double>(as_int());
}

int Value::depth() const {
  if (is_list()) return std::get<ListPtr>(data_)->depth;
  if (is_dict()) return std::get<DictPtr>(data_)->depth;
  return 0;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return as_float() != 0;
  if (is_number()) return as_int() != 0;
  if (is_string()) return !as_string().empty();
  if (is_list()) return !as_list().empty();
  if (is_dict()) return !as_dict().items.empty();
  return true;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return "list";
  if (is_dict()) return "dict";
  if (as_namespace()) return "Namespace";
  if (as_loop()) return "LoopContext";
  return "function";
}

Value from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return Value::number(json.get<double>());
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_float: return Value::number(json.get<double>());
    case Json::value_t::string: return Value::string(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<std::string, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(key, from_json(item));
      return Value::dict(std::move(items));
    }
    default: return Value::none();
  }
}

size_t written_size(const Value& value, size_t limit) {
  if (value.is_string()) return value.as_string().size() + 2;
  size_t size = 8;
  if (value.is_list()) {
    for (const Value& item : value.as_list()) {
      if (size >= limit) break;
      size += 2 + written_size(item, limit - size);
    }
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict().items) {
      if (size >= limit) break;
      size += 6 + key.size();
      if (size < limit) size += written_size(item, limit - size);
    }
  }
  return size;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_float() == b.as_float();
    return a.as_int() == b.as_int();
  }
  if (a.is_string() && b.is_string()) return a.as_string() == b.as_string();
  if (a.is_list() && b.is_list()) {
    return std::equal(a.as_list().begin(), a.as_list().end(), b.as_list().begin(), b.as_list().end(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict &left = a.as_dict(), &right = b.as_dict();
    return left.items.size() == right.items.size() &&
           std::all_of(left.items.begin(), left.items.end(), [&](const auto& item) {
             const Value* other = right.find(item.first);
             return other && equal(item.second, *other);
           });
  }
  if (a.as_namespace()) return a.as_namespace() == b.as_namespace();
  if (a.as_macro()) return a.as_macro() == b.as_macro();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_float() < b.as_float();
    return a.as_int() < b.as_int();
  }
  if (a.is_string() && b.is_string()) return a.as_string() < b.as_string();
  if (a.is_list() && b.is_list()) {
    const auto &left = a.as_list(), &right = b.as_list();
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) return less(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  throw Error("'<' not supported between '{}' and '{}'", a.type_name(), b.type_name());
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) throw Error("'in <string>' requires a string, not {}", item.type_name());
    return container.as_string().find(item.as_string()) != std::string::npos;
  }
  if (container.is_list()) {
    const auto& items = container.as_list();
    return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(v, item); });
  }
  if (container.is_dict()) return item.is_string() && container.as_dict().find(item.as_string());
  if (container.is_undefined()) return false;
  throw Error("'{}' is not a container", container.type_name());
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_undefined()) return "";
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.truthy() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_float()) return float_text(value.as_float());
  if (value.is_string()) return quoted_repr(value.as_string());
  std::string out;
  if (value.is_list()) {
    for (const Value& item : value.as_list()) out += (out.empty() ? "" : ", ") + to_repr(item);
    return "[" + out + "]";
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict().items) {
      out += (out.empty() ? "" : ", ") + quoted_repr(key) + ": " + to_repr(item);
    }
    return "{" + out + "}";
  }
  return fmt::format("<{}>", value.type_name());
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return std::move(writer.out);
}

}  // namespace bam::jinja
