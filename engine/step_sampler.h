// The tokens that follow from a step: sampled here, or drawn where the logits are along with the step. Engine thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/batch_sampler.h"
#include "engine/deferred_samples.h"
#include "engine/step_runner.h"
#include "models/bam.h"

namespace bam {

class StepSampler {
 public:
  // draws: tokens are drawn where the logits are, if their settings allow it. threads: idle between steps, may be null.
  // mask_work: what the masks of a step may cost, see MaskBudget.
  StepSampler(const BamModel& model, int64_t max_sequences, bool draws, uint64_t mask_work, ThreadPool* threads);

  // For StepBatch::append; empty: everything is sampled here.
  const AppendDraw& append_draw() const { return append_draw_; }
  // Samples for the batch's sequences that have caught up, and tells their states. sequences: [entries], null where
  // nobody wants a result any more. deferred: rows of former steps, all of them wanted; they get their samples.
  void sample(const StepBatch& batch, const StepResult& result, std::span<Sequence* const> sequences,
              std::span<DeferredSamples::Entry> deferred);
  // One more of the same step, from a single row.
  Sample sample_one(const float* logits, SamplerState& state);
  // What an entry's sequence goes on with: its next token, and further ones whose rows were guessed right. Empty: there are
  // more rows to compute, or no room for a token. Only the last sample may have failed, be deferred or end the text.
  std::span<Sample> run(size_t entry) const { return runs_[entry]; }
  // Why a sample of this sequence cannot be used; empty: it can.
  static std::string_view error_of(const Sample& sample, const SamplerState& state);
  // For single rows.
  Sampler& one() { return sampler_.one(); }

 private:
  void order_host_runs();

  BatchSampler sampler_;
  MaskBudget budget_;
  AppendDraw append_draw_;
  std::vector<Sample> samples_;               // of all runs
  std::vector<std::span<Sample>> runs_;       // [entries]
  std::vector<BatchSampler::Run> host_runs_;  // those that are sampled here, tagged with their entry
  std::vector<BatchSampler::Run> dear_runs_;  // scratch of order_host_runs()
};

}  // namespace bam
