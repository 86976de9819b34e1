#include "app/client/prompt_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/units.h"
#include "base/error.h"

namespace bam::client {

PieceEncoder::PieceEncoder(EncodeFn encode) : encode_(std::move(encode)) {
  const auto concat = [](TokenIds a, const TokenIds& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const TokenIds whole = encode_("The grass is green. The sky is blue.");
  const TokenIds left = encode_("The grass is green.");
  if (whole == concat(left, encode_("The sky is blue."))) return;
  adds_space_ = whole == concat(left, encode_(" The sky is blue."));
}

TokenIds PieceEncoder::next(std::string_view text) const {
  return adds_space_ ? encode_(" " + std::string(text)) : encode_(text);
}

int64_t PromptParts::fixed_tokens() const {
  size_t total = head.size() + tail.size();
  for (const Insert& insert : inserts) total += insert.ids.size();
  return static_cast<int64_t>(total);
}

namespace {

// The filler: units in order, as many as needed, the first `cut` tokens left out.
struct FillerPlan {
  std::vector<int64_t> boundaries{0};  // start of every unit, then the end: 0, n0 - cut, n0 + n1 - cut, …, filler
  std::vector<int64_t> skipped;        // per unit: tokens left out, which may be all of a short one
};

FillerPlan plan_filler(const std::vector<TokenIds>& units, int64_t filler) {
  FillerPlan plan;
  std::vector<int64_t> ends;
  int64_t total = 0;
  for (size_t i = 0; total < filler; i = (i + 1) % units.size()) {
    total += static_cast<int64_t>(units[i].size());
    ends.push_back(total);
  }
  const int64_t cut = total - filler;
  int64_t start = 0;
  for (const int64_t end : ends) {
    plan.skipped.push_back(std::clamp<int64_t>(cut - start, 0, end - start));
    plan.boundaries.push_back(std::max<int64_t>(end - cut, 0));
    start = end;
  }
  return plan;
}

size_t nearest_boundary(const std::vector<int64_t>& boundaries, double target) {
  const auto above = std::lower_bound(boundaries.begin(), boundaries.end(), target,
                                      [](int64_t b, double t) { return static_cast<double>(b) < t; });
  if (above == boundaries.begin()) return 0;
  if (above == boundaries.end()) return boundaries.size() - 1;
  const bool below_is_nearer = target - static_cast<double>(*(above - 1)) <= static_cast<double>(*above) - target;
  return static_cast<size_t>(above - boundaries.begin()) - (below_is_nearer ? 1 : 0);
}

}  // namespace

AssembledPrompt assemble_prompt(const PromptParts& parts, const std::vector<TokenIds>& units, int64_t length) {
  const int64_t filler = length - parts.fixed_tokens();
  if (filler < 0) {
    throw Error("a prompt of {} tokens is too short: instructions, needles and question take {}", length,
                parts.fixed_tokens());
  }
  const bool any_unit = std::any_of(units.begin(), units.end(), [](auto& u) { return !u.empty(); });
  if (!any_unit && filler > 0) throw Error("the filler text is empty");
  const FillerPlan plan = plan_filler(units, filler);

  // (boundary, insert) in prompt order; inserts at one boundary keep their given order.
  std::vector<std::pair<size_t, size_t>> order;
  for (size_t i = 0; i < parts.inserts.size(); ++i) {
    const double target = std::clamp(parts.inserts[i].depth, 0.0, 1.0) * static_cast<double>(filler);
    order.emplace_back(nearest_boundary(plan.boundaries, target), i);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  AssembledPrompt prompt;
  prompt.ids.reserve(static_cast<size_t>(length));
  prompt.insert_at.resize(parts.inserts.size());
  const auto append = [&](const TokenIds& ids, int64_t from = 0) {
    prompt.ids.insert(prompt.ids.end(), ids.begin() + from, ids.end());
  };
  append(parts.head);
  size_t next = 0;
  for (size_t b = 0; b < plan.boundaries.size(); ++b) {
    for (; next < order.size() && order[next].first == b; ++next) {
      const size_t which = order[next].second;
      prompt.insert_at[which] = static_cast<int64_t>(prompt.ids.size());
      append(parts.inserts[which].ids);
    }
    if (b < plan.skipped.size()) append(units[b % units.size()], plan.skipped[b]);
  }
  append(parts.tail);
  return prompt;
}

std::vector<std::string> split_sentences(std::string_view text) {
  std::vector<std::string> sentences;
  std::string current;
  const auto flush = [&] {
    const size_t begin = current.find_first_not_of(" \t\r");
    if (begin != current.npos) {
      const size_t end = current.find_last_not_of(" \t\r");
      sentences.push_back(current.substr(begin, end - begin + 1));
    }
    current.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      flush();
      continue;
    }
    current.push_back(c);
    const bool stop = c == '.' || c == '!' || c == '?';
    // A dot inside "3.14" or before a closing quote does not end the sentence here.
    if (stop && (i + 1 == text.size() || text[i + 1] == ' ')) flush();
  }
  flush();
  return sentences;
}

TokenIds WordVocabulary::encode(std::string_view text) {
  TokenIds ids;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n", at)) != text.npos) {
    const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    const auto [id, added] = ids_.try_emplace(std::string(text.substr(at, end - at)), words_.size());
    if (added) words_.push_back(id->first);
    ids.push_back(id->second);
    at = end;
  }
  return ids;
}

std::string WordVocabulary::decode(const TokenIds& ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!text.empty()) text.push_back(' ');
    text.append(words_[static_cast<size_t>(id)]);
  }
  return text;
}

}  // namespace bam::client
