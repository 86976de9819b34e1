#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace bam {

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  size_t max_depth = 32;
};

// One JSON value, UTF-8, nothing after it, no key twice in one object, nesting and size bounded. The error says where
// and why, without naming a file.
Result<nlohmann::json> parse_strict_json(std::string_view text, const JsonLimits& limits = {});

// What nlohmann's exceptions say, without their prefix and as one bounded line.
std::string describe_json_error(const std::exception& error);

// A value as a message may quote it: short, one line.
std::string quote_json(const nlohmann::json& value);

}  // namespace bam
