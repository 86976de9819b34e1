// The core's part in drafts: who may have guesses, when they are made, what becomes of them.
#include <cstdint>
#include <utility>

#include "engine/engine_core.h"

namespace bam {

namespace {

// Tokens of texts that become findable for drafts in one step: a long prompt from the cache must not hold up others.
constexpr int64_t kIndexedPerStep = 4096;

}  // namespace

bool EngineCore::may_draft(const Request& request) const {
  return config_.drafts && request.draft.tokens > 0 && request.sampling.max_tokens > 1;
}

// Not while rows are on their way, which may be guesses; and not for the first token, from whose row all choices begin.
void EngineCore::propose_drafts() {
  int64_t budget = kIndexedPerStep;
  for (Sequence* s : scheduler_.running()) {
    if (!s->drafter) continue;
    budget -= s->drafter->index(s->tokens, s->num_prompt, budget);
    if (s->num_unscheduled() != 1 || s->num_uncomputed() != 1 || s->num_generated() == 0) continue;
    s->drafter->propose(s->tokens, s->max_len - s->num_known() - 1);
  }
}

// All tokens of a run but the last were guessed: their rows are computed. What the rows behind them wrote is beyond
// num_computed, where nobody looks, until the right tokens overwrite it.
void EngineCore::take_drafts(Sequence& c, std::span<Sample> run, int64_t num_drafts, Clock::time_point now) {
  if (!c.drafter) return;
  const int64_t accepted = static_cast<int64_t>(run.size()) - 1;
  sampled_.clear();
  for (const Sample& sample : run) {
    if (sample.status != SampleStatus::kDeferred) sampled_.push_back(sample.token);
  }
  if (!sampled_.empty()) c.drafter->learn(sampled_);
  for (Sample& sample : run.first(run.size() - 1)) {
    take_token(c, {c.choice, sample.token, std::move(sample.logprobs), true, 0}, now);
  }
  c.num_computed += accepted;
  c.num_scheduled += accepted;
  c.num_drafted += num_drafts;
  c.num_accepted += accepted;
  stats_.drafts_proposed.fetch_add(static_cast<uint64_t>(num_drafts), std::memory_order_relaxed);
  stats_.drafts_accepted.fetch_add(static_cast<uint64_t>(accepted), std::memory_order_relaxed);
}

void EngineCore::note_decode(const Flight& flight) {
  int64_t sequences = 0, tokens = 0;
  for (size_t i = 0; i < flight.rows.size(); ++i) {
    const std::span<const Sample> run = sampler_.run(i);
    if (flight.rows[i].num_rows - flight.rows[i].num_drafts != 1 || run.empty()) continue;
    if (run.back().status == SampleStatus::kDeferred) continue;
    ++sequences;
    tokens += static_cast<int64_t>(run.size());
  }
  if (sequences == 0) return;
  const double step_ms = std::chrono::duration<double, std::milli>(time_.now() - flight.start).count();
  report_.note_decode_step(step_ms * static_cast<double>(sequences) / static_cast<double>(tokens));
}

}  // namespace bam
