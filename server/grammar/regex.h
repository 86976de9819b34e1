#pragma once

#include <string_view>

#include "server/grammar/codepoints.h"

namespace bam::constraints {

inline constexpr size_t kMaxPatternBytes = 8192;
inline constexpr uint32_t kMaxRegexStates = 50'000;
inline constexpr uint32_t kMaxRepeat = 4096;

enum class RegexMatch {
  kWhole,   // the pattern describes the whole text; ^ and $ at its ends change nothing
  kSearch,  // JSON Schema: the pattern occurs somewhere, unless ^ or $ say where
};

// Compiles the regular part of the usual syntax, in time and space linear in the pattern times its
// repeat counts. Throws Error naming the construct and its offset for everything that is not
// supported or not regular.
CodepointNfa compile_pattern(std::string_view pattern, RegexMatch match);

}  // namespace bam::constraints
