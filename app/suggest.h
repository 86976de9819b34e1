#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bam {

// The candidate that somebody who typed `word` most likely meant; empty: none is near enough.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
// "; did you mean --model?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace bam
