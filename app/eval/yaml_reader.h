// Task files of lm-eval as PyYAML reads them, with its !function. Anchors, other tags and several documents in a file are
// refused by name.
#pragma once

#include <string_view>

#include "base/json.h"

namespace bam::eval {

// `!function a.b` becomes {"!function": "a.b"}. Throws UsageError with the line.
Json read_yaml(std::string_view text);

}  // namespace bam::eval
