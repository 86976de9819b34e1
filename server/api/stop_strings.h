#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

// Finds stop strings in a growing text and holds back whatever could still become one. The match that ends first wins
// (of several that end together, the longest), so the result does not depend on how the text was cut into pieces.
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Appends `piece` (whole UTF-8 characters) and returns the text that is now certain. After a match, the text before
  // the stop string; nothing is returned or accepted any more.
  std::string push(std::string_view piece);
  // The text ended: what was held back is part of it after all.
  std::string flush();

  // The stop string that was found.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // KMP: length of the longest proper border of text[0..i]
    uint32_t state = 0;              // bytes of `text` matched by the end of the input so far
  };
  void advance(Pattern& pattern, char c);

  std::vector<Pattern> patterns_;
  std::string held_;  // input not returned yet; as long as the longest partial match
  std::optional<std::string> matched_;
};

}  // namespace bam
