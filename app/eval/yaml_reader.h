// The part of YAML 1.1 in which task files are written: block maps and lists, plain, quoted and block scalars, short flow lists
// and maps, comments, and lm-eval's !function. Anchors, other tags and several documents in a file are refused by name.
#pragma once

#include <string_view>

#include "base/json.h"

namespace bam::eval {

// `!function a.b` becomes {"!function": "a.b"}. Throws UsageError with the line.
Json read_yaml(std::string_view text);

}  // namespace bam::eval
