#include "base/json_fields.h"

#include <cmath>

namespace bam {

FieldReader::FieldReader(const Json& object, std::string path, OnError on_error)
    : object_(object), path_(std::move(path)), on_error_(std::move(on_error)) {}

std::string FieldReader::name_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

void FieldReader::fail(const std::string& key, std::string message, std::string code) {
  if (error_) return;
  error_ = FieldError{name_of(key), std::move(message), std::move(code)};
  if (on_error_) on_error_(*error_);
}

void FieldReader::mismatch(const std::string& key, const std::string& wanted, const Json& value) {
  fail(key, fmt::format("'{}' must be {}, got {}.", name_of(key), wanted, quote_json(value)));
}

void FieldReader::adopt(const FieldReader& nested) {
  if (!error_ && nested.error_) error_ = nested.error_;
}

const Json* FieldReader::raw(const std::string& key) {
  read_.insert(key);
  if (error_) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool FieldReader::require(const std::string& key) {
  if (has(key)) return true;
  fail(key, fmt::format("'{}' is missing.", name_of(key)));
  return false;
}

std::optional<bool> FieldReader::boolean(const std::string& key) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  mismatch(key, "true or false", *value);
  return std::nullopt;
}

std::optional<int64_t> FieldReader::integer(const std::string& key, int64_t min, int64_t max) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (auto number = as_integer(*value, min, max)) return number;
  mismatch(key, fmt::format("an integer between {} and {}", min, max), *value);
  return std::nullopt;
}

std::optional<double> FieldReader::number(const std::string& key, double min, double max) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= min && number <= max) return number;
  mismatch(key, fmt::format("a number between {} and {}", min, max), *value);
  return std::nullopt;
}

std::optional<double> FieldReader::positive(const std::string& key, double max) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number > 0 && number <= max) return number;
  mismatch(key, fmt::format("a positive number of at most {}", max), *value);
  return std::nullopt;
}

std::optional<std::string> FieldReader::text(const std::string& key, size_t max_bytes) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    mismatch(key, "a string", *value);
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
  mismatch(key, "an object", *value);
  return nullptr;
}

const Json* FieldReader::array(const std::string& key, size_t max_items) {
  const Json* value = raw(key);
  if (!value) return nullptr;
  if (!value->is_array()) {
    mismatch(key, "an array", *value);
    return nullptr;
  }
  if (value->size() <= max_items) return value;
  fail(key, fmt::format("'{}' has {} entries; at most {} are allowed.", name_of(key), value->size(), max_items));
  return nullptr;
}

std::vector<std::string> FieldReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    if (!value.is_null() && !read_.contains(key)) keys.push_back(name_of(key));
  }
  return keys;
}

FieldReader::OnError throw_field_error(std::string origin) {
  return [origin = std::move(origin)](const FieldError& error) {
    std::string_view message = error.message;
    if (message.ends_with('.')) message.remove_suffix(1);
    throw Error("{}: {}", origin, message);
  };
}

}  // namespace bam
