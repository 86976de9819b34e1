#pragma once

#include <string_view>

namespace bam::constraints {

// A pattern for the whole text of a JSON Schema "format", written so that everything it matches is
// valid; null when the format is not known.
const char* format_pattern(std::string_view format);

}  // namespace bam::constraints
