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

// What the last rank of a pipeline draws is what the engine would have sampled.
TEST(BatchSampler, PlannedDrawsAreWhatSamplingGives) {
  const int vocab = 3001;
  const std::vector<int32_t> ends = {2, 7};
  ThreadPool threads(3);
  Sampler sampler(vocab, ends);
  BatchSampler drawer(vocab, ends, &threads);
  int64_t planned = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    std::vector<SamplingParams> params;
    std::vector<float> logits;
    for (uint32_t i = 0; i < 20; ++i) {
      SamplingParams p{.temperature = i % 5 ? 0.3f + 0.2f * static_cast<float>(i % 7) : 0.0f};
      if (i % 2) p.top_p = 0.5f + 0.02f * static_cast<float>(i);
      if (i % 3 == 0) p.top_k = 1 + static_cast<int32_t>(i * 37 % 3200);
      if (i % 4 == 1) p.min_p = 0.02f;
      if (i % 6 == 2) p.repetition_penalty = 1.4f, p.presence_penalty = 0.5f, p.frequency_penalty = 0.1f;
      if (i % 7 == 3) p.logit_bias = {{5, 4.0f}, {2, 30.0f}, {9999, 1.0f}};
      if (i % 5 == 4) p.min_tokens = 3, p.stop_token_ids = {11, 12, 11};
      params.push_back(p);
      const auto row = random_logits(vocab, 100 * round + i, 0.2f + static_cast<float>((i + round) % 6));
      logits.insert(logits.end(), row.begin(), row.end());
    }
    if (round == 7) logits[3 * vocab + 1000] = std::numeric_limits<float>::quiet_NaN();
    std::vector<SamplerState> states;
    states.reserve(params.size());
    const std::vector<int32_t> prompt = {1, 5, 5, 900};
    for (size_t i = 0; i < params.size(); ++i) states.emplace_back(params[i], round + i, 0, vocab, prompt, nullptr);
    for (int token = 0; token < 5; ++token) {
      DrawBatch batch;
      for (size_t i = 0; i < params.size(); ++i) {
        ASSERT_TRUE(sampler.plan_draw(states[i], batch)) << i;
        batch.rows.back().row = static_cast<int32_t>(i);
      }
      std::vector<int32_t> drawn(params.size());
      drawer.draw(batch, logits.data(), drawn);
      for (size_t i = 0; i < params.size(); ++i) {
        const Sample expected = sampler.sample(std::span(logits).subspan(i * vocab, vocab), states[i]);
        const Sample got = Sampler::from_draw(drawn[i]);
        ASSERT_EQ(expected.status, got.status) << round << " " << i;
        ASSERT_EQ(expected.token, got.token) << round << " " << i;
        ASSERT_EQ(expected.status == SampleStatus::kBadLogits, round == 7 && i == 3);
        if (expected.status != SampleStatus::kOk) continue;
        states[i].accept(expected.token);
        ++planned;
      }
    }
  }
  EXPECT_GT(planned, 3900);
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
