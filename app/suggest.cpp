#include "app/suggest.h"

#include <algorithm>
#include <numeric>

namespace bam {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

// How many typing errors a word of this length may have and still be recognised.
size_t tolerance(size_t length) { return length < 3 ? 0 : length < 6 ? 1 : length < 10 ? 2 : 3; }

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  size_t best_distance = tolerance(word.size()) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(word, candidate);
    // The beginning of a long name is no typing error, but says which one is meant.
    if (word.size() >= 3 && candidate.starts_with(word)) distance = std::min(distance, tolerance(word.size()));
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best != nullptr ? *best : std::string();
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_word(word, candidates);
  return nearest.empty() ? std::string() : "; did you mean " + nearest + "?";
}

}  // namespace bam
