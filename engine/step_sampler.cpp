#include "engine/step_sampler.h"

#include "engine/active_request.h"

namespace bam {

StepSampler::StepSampler(const BamModel& model, int64_t max_sequences, bool draws, ThreadPool* threads)
    : sampler_(static_cast<int32_t>(model.config().vocab_size), model.config().eos_token_ids, threads) {
  samples_.reserve(static_cast<size_t>(model.options().max_logit_rows));
  runs_.reserve(static_cast<size_t>(max_sequences));
  host_runs_.reserve(static_cast<size_t>(max_sequences));
  host_entries_.reserve(static_cast<size_t>(max_sequences));
  if (!draws) return;
  append_draw_ = [this](const Sequence& sequence, int64_t drafts, DrawBatch& batch) {
    // The first token of every choice comes from one row: they are all sampled here.
    const bool forks = sequence.request->request.n > 1 && !sequence.request->prompt_done;
    return !forks && sampler_.one().plan_draw(*sequence.sampler, batch, 1 + drafts);
  };
}

void StepSampler::sample(const StepBatch& batch, const StepResult& result, std::span<Sequence* const> sequences) {
  size_t total = 0, first = 0;
  for (const StepBatch::Entry& entry : batch.entries) total += static_cast<size_t>(1 + entry.num_drafts);
  samples_.assign(total, {});
  runs_.assign(batch.entries.size(), {});
  host_runs_.clear();
  host_entries_.clear();
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
      host_runs_.push_back(run);
      host_entries_.push_back(i);
    }
  }
  sampler_.sample(host_runs_);
  for (size_t i = 0; i < host_runs_.size(); ++i) {
    runs_[host_entries_[i]] = host_runs_[i].samples.first(host_runs_[i].num_samples);
  }
}

std::string_view StepSampler::error_of(const Sample& sample, const SamplerState& state) {
  switch (sample.status) {
    case SampleStatus::kOk: return {};
    case SampleStatus::kBadLogits: return "the model produced NaN logits";
    case SampleStatus::kNoToken: break;
  }
  const std::string_view failure = state.constraint_failure();
  return failure.empty() ? "the constraint allows no token" : failure;
}

}  // namespace bam
