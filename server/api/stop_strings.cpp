#include "server/api/stop_strings.h"

#include <algorithm>

namespace bam {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& text : stops) {
    if (text.empty()) continue;
    Pattern pattern;
    pattern.text = text;
    pattern.fallback.resize(text.size(), 0);
    for (size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = pattern.fallback[border - 1];
      if (text[i] == text[border]) ++border;
      pattern.fallback[i] = static_cast<uint32_t>(border);
    }
    patterns_.push_back(std::move(pattern));
  }
}

void StopMatcher::advance(Pattern& pattern, char c) {
  uint32_t state = pattern.state;
  while (state > 0 && pattern.text[state] != c) state = pattern.fallback[state - 1];
  if (pattern.text[state] == c) ++state;
  pattern.state = state;
}

std::string StopMatcher::push(std::string_view piece) {
  if (matched_) return {};
  if (patterns_.empty()) return std::string(piece);
  for (const char c : piece) {
    held_.push_back(c);
    const Pattern* found = nullptr;
    for (Pattern& pattern : patterns_) {
      advance(pattern, c);
      if (pattern.state == pattern.text.size() && (!found || pattern.text.size() > found->text.size())) {
        found = &pattern;
      }
    }
    if (found) {
      matched_ = found->text;
      std::string before = held_.substr(0, held_.size() - found->text.size());
      held_.clear();
      return before;
    }
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max<size_t>(keep, pattern.state);
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

std::string StopMatcher::flush() {
  std::string rest;
  rest.swap(held_);
  for (Pattern& pattern : patterns_) pattern.state = 0;
  return matched_ ? std::string() : rest;
}

}  // namespace bam
