#include "engine/batch_sampler.h"

#include <utility>

namespace bam {

BatchSampler::BatchSampler(int32_t vocab_size, const std::vector<int32_t>& eos_token_ids, ThreadPool* threads)
    : threads_(threads) {
  const size_t count = threads ? static_cast<size_t>(threads->num_threads()) : 1;
  samplers_.reserve(count);
  for (size_t i = 0; i < count; ++i) samplers_.emplace_back(vocab_size, eos_token_ids);
  errors_.resize(count);
}

void BatchSampler::sample(std::span<Row> rows) {
  const auto one = [&](int64_t index, int worker) {
    Row& row = rows[static_cast<size_t>(index)];
    try {
      row.sample = samplers_[static_cast<size_t>(worker)].sample(row.logits, *row.state);
    } catch (...) {
      errors_[static_cast<size_t>(worker)] = std::current_exception();
    }
  };
  if (threads_) {
    threads_->parallel_for(static_cast<int64_t>(rows.size()), one);
  } else {
    for (size_t i = 0; i < rows.size(); ++i) one(static_cast<int64_t>(i), 0);
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    if (error && !first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace bam
