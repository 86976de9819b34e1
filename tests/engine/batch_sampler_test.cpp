#include "engine/batch_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <new>

#include "tests/engine/random_logits.h"

namespace bam {
namespace {

using testing::random_logits;

TEST(BatchSampler, ThreadsGiveTheTokensOfOne) {
  const int vocab = 3001;
  std::vector<std::vector<float>> logits;
  std::vector<SamplingParams> params;
  for (uint32_t i = 0; i < 70; ++i) {
    logits.push_back(random_logits(vocab, i, 0.5f + static_cast<float>(i % 5)));
    params.push_back({.temperature = i % 7 ? 0.8f : 0.0f, .top_p = i % 2 ? 0.9f : 1.0f, .top_k = i % 3 ? 0 : 40});
    if (i % 11 == 0) params.back().num_logprobs = 3;
  }
  logits[13][2000] = std::numeric_limits<float>::infinity();
  const auto run = [&](ThreadPool* threads) {
    BatchSampler sampler(vocab, {2}, threads);
    std::vector<SamplerState> states;
    std::vector<BatchSampler::Run> runs;
    std::vector<Sample> samples(logits.size());
    std::vector<const float*> rows;
    for (const auto& row : logits) rows.push_back(row.data());
    states.reserve(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      states.emplace_back(params[i], 100 + i, 0, vocab, std::span<const int32_t>(), nullptr);
      runs.push_back(
          {.logits = std::span(rows).subspan(i, 1), .state = &states[i], .samples = std::span(samples).subspan(i, 1)});
    }
    std::vector<Sample> all;
    for (int step = 0; step < 5; ++step) {
      sampler.sample(runs);
      all.insert(all.end(), samples.begin(), samples.end());
    }
    return all;
  };
  ThreadPool threads(3);
  const auto alone = run(nullptr), together = run(&threads);
  for (size_t i = 0; i < alone.size(); ++i) {
    ASSERT_EQ(alone[i].status, together[i].status) << i;
    ASSERT_EQ(alone[i].token, together[i].token) << i;
    ASSERT_EQ(alone[i].status == SampleStatus::kBadLogits, i % 70 == 13) << i;
    ASSERT_EQ(alone[i].logprobs.has_value(), together[i].logprobs.has_value()) << i;
    if (alone[i].logprobs) {
      ASSERT_EQ(alone[i].logprobs->top, together[i].logprobs->top) << i;
    }
  }
}

// A constraint that runs out of memory must not take a thread down.
TEST(BatchSampler, AnErrorOfOneRowReachesTheCaller) {
  class Failing : public TokenConstraint {
   public:
    void allowed_tokens(std::span<uint32_t>) override { throw std::bad_alloc(); }
    void accept(int32_t) override {}
    bool finished() const override { return false; }
    std::unique_ptr<TokenConstraint> clone_initial() const override { return std::make_unique<Failing>(); }
  };
  const auto logits = random_logits(100, 1, 1.0f);
  const SamplingParams greedy = {.temperature = 0};
  SamplerState good(greedy, 1, 0, 100, {}, nullptr), bad(greedy, 1, 0, 100, {}, std::make_unique<Failing>());
  std::vector<Sample> samples(2);
  const float* const row = logits.data();
  std::vector<BatchSampler::Run> runs = {
      {.logits = std::span(&row, 1), .state = &bad, .samples = std::span(samples).first(1)},
      {.logits = std::span(&row, 1), .state = &good, .samples = std::span(samples).last(1)},
  };
  ThreadPool threads(2);
  BatchSampler sampler(100, {}, &threads);
  EXPECT_THROW(sampler.sample(runs), std::bad_alloc);
  EXPECT_EQ(samples[1].token, std::max_element(logits.begin(), logits.end()) - logits.begin());
  sampler.sample(std::span(runs).last(1));  // and the error is gone
}

}  // namespace
}  // namespace bam
