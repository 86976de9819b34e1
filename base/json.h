// JSON from outside: files of a checkpoint, the server's configuration, request bodies. Bounded while it is parsed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace bam {

// Members keep the order of the text: the properties of a schema are written in it, and replies have a fixed one.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  size_t max_depth = 32;
  // Values of any kind; one costs far more memory than its text.
  size_t max_values = 4'000'000;
  // Of one object: members are searched one by one.
  size_t max_members = 65'536;
};

// One JSON value in UTF-8, nothing after it, no key twice in one object. The error says where and why, without naming
// the source: "not valid JSON: …" or which limit.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// A JSON number with an integral value in [min, max]: 3 and 3.0, not 3.5, "3" or true.
std::optional<int64_t> as_integer(const Json& value, int64_t min, int64_t max);

// What nlohmann's exceptions say, without their prefix and as one bounded line.
std::string describe_json_error(const std::exception& error);

// A value as a message may quote it: short, one line.
std::string quote_json(const Json& value);

// Bytes that are no UTF-8 become U+FFFD.
std::string dump_json(const Json& value);
std::string dump_json_string(std::string_view text);

}  // namespace bam
