// Log-probabilities of prompts: computed, or found beside the prefix cache.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"

namespace bam {

bool EngineCore::send_prompt_logprobs(const Flight& flight, const StepResult& result, size_t entry, Sequence& c) {
  PromptScores& scores = *c.scores;
  if (scores.next() >= c.num_prompt) return true;
  const int64_t end = std::min(c.num_computed, c.num_prompt - 1);  // rows below it have said what follows them
  PromptLogprobsEvent event;
  event.first = scores.next();
  event.logprobs.reserve(static_cast<size_t>(std::max<int64_t>(0, end + 1 - event.first)));
  while (scores.next() < c.num_prompt) {
    auto found = scores.take_found(kv_.page_size());
    if (!found) break;
    event.logprobs.push_back(std::move(*found));
  }
  while (scores.next() <= end) {
    const int32_t token = c.tokens[static_cast<size_t>(scores.next())];
    auto computed = sampler_.one().logprobs(logits(flight, result, entry, scores.next() - 1), token, scores.num_top());
    if (!computed) return false;
    scores.add(*computed, kv_.page_size(), kv_.scores().enabled());
    event.logprobs.push_back(std::move(*computed));
  }
  if (end > c.logits_from) c.logits_from = end;
  if (c.logits_from >= c.num_prompt - 1) c.logits_from = INT64_MAX;
  if (!event.logprobs.empty()) book_.say(*c.request, std::move(event));
  return true;
}

void EngineCore::keep_prompt_logprobs(Sequence& c) {
  auto& whole = c.scores->whole();
  size_t kept = 0;
  for (; kept < whole.size() && (whole[kept].index + 1) * kv_.page_size() <= c.num_computed; ++kept) {
    kv_.keep_scores(c.blocks, whole[kept]);
  }
  whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(kept));
}

}  // namespace bam
