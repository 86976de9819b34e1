// The sampler of a whole step: one Sampler per thread of the backend, sequences in parallel. A row's token depends on
// that row alone, so it is the one a single Sampler gives.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/sampler.h"

namespace bam {

class BatchSampler {
 public:
  // threads may be null: one row after the other. It outlives the sampler.
  BatchSampler(int32_t vocab_size, const std::vector<int32_t>& eos_token_ids, ThreadPool* threads);

  // What follows in one sequence: a token from the first row, and one from each further row as long as the token before
  // is what the draft said, and no end.
  struct Run {
    std::span<const float* const> logits;  // [1 + draft] of [vocab]
    std::span<const int32_t> draft;        // holds no token that ends a text
    SamplerState* state = nullptr;         // another one for each run; accepts what is sampled
    std::span<Sample> samples;             // [1 + draft] the result, of which
    size_t num_samples = 0;                // are there; only the last one may have failed or be deferred
    size_t tag = 0;                        // the caller's
  };
  // Throws what a constraint throws, when all runs are done. Where masks have a budget, the first runs have it first.
  void sample(std::span<Run> runs, MaskBudget* budget = nullptr);
  // One token per row of the batch, from logits [rows, vocab] (DrawRow::row).
  void draw(const DrawBatch& batch, const float* logits, std::span<int32_t> tokens);
  // The same as sample() for samples that `next(i)` gives.
  template <typename F>
  static void follow(Run& run, F next) {
    for (run.num_samples = 0; run.num_samples <= run.draft.size();) {
      const size_t i = run.num_samples++;
      const Sample& sample = run.samples[i] = next(i);
      if (sample.status != SampleStatus::kOk) return;
      run.state->accept(sample.token);
      if (i == run.draft.size() || sample.token != run.draft[i] || run.state->constraint_finished()) return;
    }
  }

  // For single rows on the calling thread.
  Sampler& one() { return samplers_.front(); }
  const Sampler& one() const { return samplers_.front(); }

 private:
  template <typename F>
  void for_each(size_t count, F work);

  ThreadPool* threads_;
  size_t vocab_size_;
  std::vector<Sampler> samplers_;           // [threads]
  std::vector<std::exception_ptr> errors_;  // [threads]
};

}  // namespace bam
