#include "engine/stats.h"

#include <algorithm>

namespace bam {

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {}

void Histogram::observe(double value) {
  const size_t bucket = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
  count_.fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<uint64_t> Histogram::cumulative_counts() const {
  std::vector<uint64_t> counts(bounds_.size() + 1);
  uint64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += buckets_[i].load(std::memory_order_relaxed);
    counts[i] = total;
  }
  return counts;
}

namespace {

const std::vector<double> kSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                      1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kLongSeconds = {0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,
                                          20,  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kStepSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05,
                                          0.06,   0.08,    0.1,    0.15,  0.2,    0.3,   0.5,  1,    2.5,  5,    10};
const std::vector<double> kTokens = {1,    2,   5,   10,  20,  50,  100, 200, 500, 1000, 2000,
                                     5000, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6};

}  // namespace

EngineStats::EngineStats()
    : ttft_s(kSeconds),
      inter_token_s(kStepSeconds),
      e2e_s(kLongSeconds),
      queue_s(kLongSeconds),
      prefill_s(kLongSeconds),
      decode_s(kLongSeconds),
      prompt_len(kTokens),
      generation_len(kTokens),
      step_s(kStepSeconds),
      inference_s(kLongSeconds),
      mean_token_s(kStepSeconds),
      step_tokens(kTokens),
      longest_choice(kTokens),
      asked_tokens(kTokens),
      asked_choices(kTokens) {}

}  // namespace bam
