// Typed, range-checked access to the fields of one JSON object, with messages that name the field.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace bam {

struct FieldError {
  std::string field;    // "stream_options.include_usage"
  std::string message;  // a sentence that names it
  std::string code;     // for programs; may be empty
};

// The first problem is kept; after it every getter returns nothing, so that a parser reads straight down and checks
// ok() once at the end. Null counts as absent everywhere: clients send it for fields that they leave alone, and writers
// of config.json mean it so.
class FieldReader {
 public:
  using OnError = std::function<void(const FieldError&)>;

  // `path` prefixes the names in messages. `on_error` hears of the first problem and may throw. The object must outlive
  // the reader.
  explicit FieldReader(const Json& object, std::string path = {}, OnError on_error = {});

  const Json* raw(const std::string& key);
  bool has(const std::string& key) { return raw(key) != nullptr; }
  // A problem when it is absent.
  bool require(const std::string& key);
  std::optional<bool> boolean(const std::string& key);
  std::optional<int64_t> integer(const std::string& key, int64_t min, int64_t max);
  std::optional<double> number(const std::string& key, double min, double max);
  std::optional<double> positive(const std::string& key, double max);  // > 0
  std::optional<std::string> text(const std::string& key, size_t max_bytes);
  const Json* object(const std::string& key);
  const Json* array(const std::string& key, size_t max_items);
  // One of a few names, as the value that stands for it.
  template <typename T>
  std::optional<T> choice(const std::string& key, std::span<const std::pair<std::string_view, T>> choices);

  void fail(const std::string& key, std::string message, std::string code = {});
  void adopt(const FieldReader& nested);  // takes over a nested reader's error
  bool ok() const { return !error_; }
  const FieldError& error() const { return *error_; }
  // Fields that nothing asked for, in the order of the text.
  std::vector<std::string> unread() const;
  std::string name_of(const std::string& key) const;

 private:
  void mismatch(const std::string& key, const std::string& wanted, const Json& value);

  const Json& object_;
  std::string path_;
  OnError on_error_;
  std::set<std::string> read_;
  std::optional<FieldError> error_;
};

// For files that start-up reads: throws Error "origin: message".
FieldReader::OnError throw_field_error(std::string origin);

template <typename T>
std::optional<T> FieldReader::choice(const std::string& key, std::span<const std::pair<std::string_view, T>> choices) {
  const Json* value = raw(key);
  if (!value) return std::nullopt;
  std::string names;
  for (const auto& [name, result] : choices) {
    if (value->is_string() && value->get_ref<const std::string&>() == name) return result;
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", name);
  }
  mismatch(key, (choices.size() > 1 ? "one of " : "") + names, *value);
  return std::nullopt;
}

}  // namespace bam
