#include "engine/batch_sampler.h"

#include <utility>

namespace bam {

BatchSampler::BatchSampler(int32_t vocab_size, const std::vector<int32_t>& eos_token_ids, ThreadPool* threads)
    : threads_(threads), vocab_size_(static_cast<size_t>(vocab_size)) {
  const size_t count = threads ? static_cast<size_t>(threads->num_threads()) : 1;
  samplers_.reserve(count);
  for (size_t i = 0; i < count; ++i) samplers_.emplace_back(vocab_size, eos_token_ids);
  errors_.resize(count);
}

template <typename F>
void BatchSampler::for_each(size_t count, F work) {
  const auto one = [&](int64_t index, int worker) {
    try {
      work(static_cast<size_t>(index), samplers_[static_cast<size_t>(worker)]);
    } catch (...) {
      errors_[static_cast<size_t>(worker)] = std::current_exception();
    }
  };
  if (threads_) {
    threads_->parallel_for(static_cast<int64_t>(count), one);
  } else {
    for (size_t i = 0; i < count; ++i) one(static_cast<int64_t>(i), 0);
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    if (error && !first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

void BatchSampler::sample(std::span<Run> runs, MaskBudget* budget) {
  for_each(runs.size(), [&](size_t index, Sampler& sampler) {
    Run& run = runs[index];
    uint64_t charged = run.state->constraint_work();
    const auto charge = [&] {
      const uint64_t work = run.state->constraint_work();
      if (budget && work > charged) budget->charge(work - std::exchange(charged, work));
    };
    follow(run, [&](size_t i) {
      charge();  // for accepting the token before
      const Sample sample = sampler.sample({run.logits[i], vocab_size_}, *run.state, budget);
      charge();
      return sample;
    });
    charge();
  });
}

void BatchSampler::draw(const DrawBatch& batch, const float* logits, std::span<int32_t> tokens) {
  for_each(batch.rows.size(), [&](size_t i, Sampler& sampler) {
    const DrawRow& row = batch.rows[i];
    tokens[i] = sampler.draw_planned({logits + static_cast<size_t>(row.row) * vocab_size_, vocab_size_}, batch, row);
  });
}

}  // namespace bam
