#include "engine/step_sampler.h"

#include <limits>

#include "engine/active_request.h"

namespace bam {

namespace {

constexpr size_t kNoEntry = std::numeric_limits<size_t>::max();

}  // namespace

StepSampler::StepSampler(const BamModel& model, int64_t max_sequences, bool draws, uint64_t mask_work,
                         ThreadPool* threads)
    : sampler_(static_cast<int32_t>(model.config().vocab_size), model.config().eos_token_ids, threads),
      budget_(mask_work, max_sequences) {
  samples_.reserve(static_cast<size_t>(model.options().max_logit_rows));
  runs_.reserve(static_cast<size_t>(max_sequences));
  host_runs_.reserve(static_cast<size_t>(max_sequences));
  dear_runs_.reserve(static_cast<size_t>(max_sequences));
  if (!draws) return;
  append_draw_ = [this](const Sequence& sequence, int64_t drafts, DrawBatch& batch) {
    // The first token of every choice comes from one row: they are all sampled here.
    const bool forks = sequence.request->request.n > 1 && !sequence.request->prompt_done;
    return !forks && sampler_.one().plan_draw(*sequence.sampler, batch, 1 + drafts);
  };
}

void StepSampler::sample(const StepBatch& batch, const StepResult& result, std::span<Sequence* const> sequences,
                         std::span<DeferredSamples::Entry> deferred) {
  size_t total = 0, first = 0;
  for (const StepBatch::Entry& entry : batch.entries) total += static_cast<size_t>(1 + entry.num_drafts);
  samples_.assign(total, {});
  runs_.assign(batch.entries.size(), {});
  host_runs_.clear();
  for (DeferredSamples::Entry& entry : deferred) {
    host_runs_.push_back({.logits = std::span(&entry.row, 1),
                          .state = &*entry.sequence->sampler,
                          .samples = std::span(&entry.sample, 1),
                          .tag = kNoEntry});
  }
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const StepBatch::Entry& entry = batch.entries[i];
    if (!entry.samples || !sequences[i]) continue;
    Sequence& s = *sequences[i];
    const size_t count = static_cast<size_t>(1 + entry.num_drafts);
    BatchSampler::Run run{.state = &*s.sampler, .samples = std::span(samples_).subspan(first, count)};
    first += count;
    if (entry.num_drafts > 0) run.draft = s.drafter->proposal().first(count - 1);
    if (entry.draw >= 0) {
      const auto drawn = std::span(result.drawn).subspan(static_cast<size_t>(entry.draw), count);
      BatchSampler::follow(run, [&](size_t k) { return Sampler::from_draw(drawn[k]); });
      runs_[i] = run.samples.first(run.num_samples);
    } else {
      const size_t last = entry.logit_offset + static_cast<size_t>(entry.num_logits);
      run.logits = std::span(result.logits).subspan(last - count, count);
      run.tag = i;
      host_runs_.push_back(run);
    }
  }
  order_host_runs();
  budget_.begin_step();
  sampler_.sample(host_runs_, &budget_);
  for (const BatchSampler::Run& run : host_runs_) {
    if (run.tag != kNoEntry) runs_[run.tag] = run.samples.first(run.num_samples);
  }
}

// Usual grammars do not wait behind expensive ones. Whoever surprises with an expensive token lines up with these for the
// next one, so that none of them waits for ever.
void StepSampler::order_host_runs() {
  dear_runs_.clear();
  std::erase_if(host_runs_, [&](const BatchSampler::Run& run) {
    const bool dear = run.state->last_token_work() > budget_.cheap();
    if (dear) dear_runs_.push_back(run);
    return dear;
  });
  host_runs_.insert(host_runs_.end(), dear_runs_.begin(), dear_runs_.end());
}

Sample StepSampler::sample_one(const float* logits, SamplerState& state) {
  Sample sample;
  BatchSampler::Run run{.logits = std::span(&logits, 1), .state = &state, .samples = std::span(&sample, 1)};
  sampler_.sample(std::span(&run, 1), &budget_);
  return sample;
}

std::string_view StepSampler::error_of(const Sample& sample, const SamplerState& state) {
  switch (sample.status) {
    case SampleStatus::kOk:
    case SampleStatus::kDeferred: return {};
    case SampleStatus::kBadLogits: return "the model produced NaN logits";
    case SampleStatus::kNoToken: break;
  }
  const std::string_view failure = state.constraint_failure();
  return failure.empty() ? "no token may come next" : failure;
}

}  // namespace bam
