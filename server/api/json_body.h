#pragma once

#include <string_view>

#include "base/json_fields.h"
#include "server/api/api_error.h"

namespace bam {

// Parses a request body, which must be a JSON object.
ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

}  // namespace bam
