// The sampler of a whole step: one Sampler per thread of the backend, rows in parallel. A row's token depends on that
// row alone, so it is the one a single Sampler gives.
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

  struct Row {
    std::span<const float> logits;  // [vocab]
    SamplerState* state = nullptr;  // another one for each row
    Sample sample;                  // the result
  };
  // Throws what a constraint throws, when all rows are done.
  void sample(std::span<Row> rows);

  // For single rows on the calling thread.
  Sampler& one() { return samplers_.front(); }
  const Sampler& one() const { return samplers_.front(); }

 private:
  ThreadPool* threads_;
  std::vector<Sampler> samplers_;           // [threads]
  std::vector<std::exception_ptr> errors_;  // [threads]
};

}  // namespace bam
