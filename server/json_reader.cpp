#include "server/json_reader.h"

#include <cmath>

#include <fmt/format.h>

namespace bam {

namespace {

// One pass over the bytes that bounds depth and the number of values without building anything.
std::optional<ApiError> check_bounds(std::string_view text, const JsonLimits& limits) {
  int depth = 0;
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    switch (c) {
      case '"': in_string = true; break;
      case '[':
      case '{':
        ++values;
        if (++depth > limits.max_depth) {
          return ApiError::invalid(fmt::format("The JSON body is nested deeper than {} levels.", limits.max_depth));
        }
        break;
      case ']':
      case '}': --depth; break;
      case ',': ++values; break;
      default: break;
    }
  }
  if (values > limits.max_values) {
    return ApiError::invalid(fmt::format("The JSON body has more than {} values.", limits.max_values));
  }
  return std::nullopt;
}

// "[json.exception.parse_error.101] parse error at line 1, ..." -> "parse error at line 1, ..."
std::string without_prefix(const char* what) {
  std::string_view text = what;
  if (text.starts_with('[')) {
    if (const size_t end = text.find("] "); end != std::string_view::npos) text.remove_prefix(end + 2);
  }
  return std::string(text.substr(0, 200));
}

const char* type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "an array";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    default: return "a number";
  }
}

}  // namespace

ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) return ApiError::invalid("The request body is empty; a JSON object is expected.");
  if (auto error = check_bounds(text, limits)) return *std::move(error);
  try {
    Json value = Json::parse(text);
    if (!value.is_object()) {
      return ApiError::invalid(fmt::format("The request body must be a JSON object, not {}.", type_name(value)));
    }
    return value;
  } catch (const Json::exception& error) {
    return ApiError::invalid("The request body is not valid JSON: " + without_prefix(error.what()));
  }
}

std::optional<int64_t> as_integer(const Json& value, int64_t min, int64_t max) {
  int64_t result = 0;
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    result = static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    result = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    // 2^53: beyond it a double no longer tells neighbouring integers apart.
    if (!(std::abs(number) <= 0x1p53) || number != std::floor(number)) return std::nullopt;
    result = static_cast<int64_t>(number);
  } else {
    return std::nullopt;
  }
  if (result < min || result > max) return std::nullopt;
  return result;
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

std::string FieldReader::name_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

const Json* FieldReader::raw(const std::string& key) {
  read_.insert(key);
  if (error_) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> FieldReader::boolean(const std::string& key) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(key, fmt::format("'{}' must be true or false, not {}.", name_of(key), type_name(*value)));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::integer(const std::string& key, int64_t min, int64_t max) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (auto number = as_integer(*value, min, max)) return number;
  fail(key, value->is_number() ? fmt::format("'{}' must be an integer between {} and {}.", name_of(key), min, max)
                               : fmt::format("'{}' must be an integer, not {}.", name_of(key), type_name(*value)));
  return std::nullopt;
}

std::optional<double> FieldReader::number(const std::string& key, double min, double max) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    fail(key, fmt::format("'{}' must be a number, not {}.", name_of(key), type_name(*value)));
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (number >= min && number <= max) return number;
  fail(key, fmt::format("'{}' must be between {} and {}.", name_of(key), min, max));
  return std::nullopt;
}

std::optional<std::string> FieldReader::text(const std::string& key, size_t max_bytes) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    fail(key, fmt::format("'{}' must be a string, not {}.", name_of(key), type_name(*value)));
    return std::nullopt;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() <= max_bytes) return text;
  fail(key, fmt::format("'{}' is longer than {} bytes.", name_of(key), max_bytes));
  return std::nullopt;
}

const Json* FieldReader::object(const std::string& key) {
  const Json* value = raw(key);
  if (!value || value->is_object()) return value;
  fail(key, fmt::format("'{}' must be an object, not {}.", name_of(key), type_name(*value)));
  return nullptr;
}

const Json* FieldReader::array(const std::string& key, size_t max_items) {
  const Json* value = raw(key);
  if (!value) return nullptr;
  if (!value->is_array()) {
    fail(key, fmt::format("'{}' must be an array, not {}.", name_of(key), type_name(*value)));
    return nullptr;
  }
  if (value->size() <= max_items) return value;
  fail(key, fmt::format("'{}' has {} entries; at most {} are allowed.", name_of(key), value->size(), max_items));
  return nullptr;
}

void FieldReader::fail(const std::string& key, std::string message, std::string code) {
  if (!error_) error_ = ApiError::invalid(std::move(message), name_of(key), std::move(code));
}

void FieldReader::adopt(const FieldReader& nested) {
  if (!error_ && nested.error_) error_ = nested.error_;
}

std::vector<std::string> FieldReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) keys.push_back(name_of(key));
  }
  return keys;
}

std::string dump_json(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string json_quote(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace bam
