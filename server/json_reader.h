// JSON from clients: bounded before it is parsed, typed and range-checked when it is read.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/api/api_error.h"

namespace bam {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 32;
  // Values of any kind; a DOM node costs far more memory than its text.
  size_t max_values = 4'000'000;
};

// Parses a request body, which must be a JSON object in valid UTF-8.
ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

// Typed access to the fields of one object. The first problem is kept and named by its field; after it, every getter
// returns nothing, so that a parser reads straight down and checks ok() once at the end.
class FieldReader {
 public:
  // `path` prefixes the names in messages: "stream_options" gives "stream_options.include_usage".
  explicit FieldReader(const Json& object, std::string path = {});

  // Null counts as absent everywhere: clients send it for fields that they leave alone.
  const Json* raw(const std::string& key);
  bool has(const std::string& key) { return raw(key) != nullptr; }
  std::optional<bool> boolean(const std::string& key);
  std::optional<int64_t> integer(const std::string& key, int64_t min, int64_t max);
  std::optional<double> number(const std::string& key, double min, double max);
  std::optional<std::string> text(const std::string& key, size_t max_bytes);
  const Json* object(const std::string& key);
  const Json* array(const std::string& key, size_t max_items);

  void fail(const std::string& key, std::string message, std::string code = {});
  void adopt(const FieldReader& nested);  // takes over a nested reader's error
  bool ok() const { return !error_; }
  const ApiError& error() const { return *error_; }
  // Fields that nothing asked for.
  std::vector<std::string> unread() const;
  std::string name_of(const std::string& key) const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string> read_;
  std::optional<ApiError> error_;
};

// A JSON number with an integral value in [min, max]: 3 and 3.0, not 3.5, "3" or true.
std::optional<int64_t> as_integer(const Json& value, int64_t min, int64_t max);

// Drops bytes that would make a string invalid UTF-8 when written out.
std::string dump_json(const OrderedJson& value);
std::string json_quote(std::string_view text);

}  // namespace bam
