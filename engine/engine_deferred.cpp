// The core's part in samples that are put off: who waits, and what becomes of it.
#include <array>
#include <utility>

#include "engine/engine_core.h"

namespace bam {

void EngineCore::defer(Sequence& c, std::span<const float> logits, int64_t rejected_drafts) {
  stats_.deferred_samples.fetch_add(1, std::memory_order_relaxed);
  if (c.blocks.id == 0) return;  // a choice that found no slot: the row is computed again when it has one
  deferred_.add(c, logits, rejected_drafts);
}

void EngineCore::sample_deferred() {
  try {
    sample_rows({}, {}, {});
  } catch (const std::exception&) {  // whoever was concerned has heard of it
  }
  book_.deliver();
}

void EngineCore::sample_rows(const StepBatch& batch, const StepResult& result, std::span<Sequence* const> sequences) {
  const auto is_live = [this](uint64_t stay) { return kv_.is_live(stay); };
  deferred_.drop_done(is_live);
  try {
    sampler_.sample(batch, result, sequences, deferred_.entries());
    take_deferred(time_.now());
  } catch (const std::exception& e) {
    // Some have a token that no text shows.
    for (const DeferredSamples::Entry& entry : deferred_.entries()) {
      if (!is_live(entry.stay)) continue;
      book_.end_request(*entry.sequence->request, FinishReason::kError, "the step failed: " + reason_of(e));
    }
    deferred_.clear();
    throw;
  }
  deferred_.drop_done(is_live);
}

void EngineCore::take_deferred(Clock::time_point now) {
  for (DeferredSamples::Entry& entry : deferred_.entries()) {
    // Another choice of its request may have failed just now.
    if (entry.sample.status == SampleStatus::kDeferred || !kv_.is_live(entry.stay)) continue;
    Sequence& c = *entry.sequence;
    if (failed(*c.request, entry.sample, *c.sampler)) continue;
    if (c.drafter) c.drafter->learn(std::array{entry.sample.token});
    take_last(c, std::move(entry.sample), entry.rejected_drafts, now);
  }
}

}  // namespace bam
