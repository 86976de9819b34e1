// Tokens drawn by the emulated device against engine/sampler on the host: the same for every row, setting and
// vocabulary.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

#include "engine/sampler.h"
#include "tests/cuda_emu/backend_test_support.h"

namespace bam {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows of logits with their requests, drawn by both sides.
class Comparison {
 public:
  explicit Comparison(int32_t vocab, std::vector<int32_t> eos = {}) : vocab_(vocab), sampler_(vocab, std::move(eos)) {}

  void add(std::vector<float> logits, SamplingParams params, uint64_t seed, const std::vector<int32_t>& prompt = {},
           const std::vector<int32_t>& generated = {}) {
    ASSERT_EQ(logits.size(), static_cast<size_t>(vocab_));
    auto& kept = *params_.emplace_back(std::make_unique<SamplingParams>(std::move(params)));
    SamplerState state(kept, seed, static_cast<int32_t>(seed % 3), vocab_, prompt, nullptr);
    for (const int32_t token : generated) state.accept(token);
    const auto row = static_cast<int32_t>(expected_.size());
    expected_.push_back(sampler_.sample(logits, state));
    ASSERT_TRUE(sampler_.plan_draw(state, batch_)) << "row " << row;
    batch_.rows.back().row = row;
    logits_.insert(logits_.end(), logits.begin(), logits.end());
  }

  // Draws all rows and compares; also reads the logits of every third row, as a step with mixed wishes does.
  void check() {
    const auto backend = cuda_test::make_cuda();
    const auto device = cuda_test::to_device(*backend, logits_, DType::kF32);
    std::vector<int32_t> tokens(expected_.size()), wanted;
    for (int32_t row = 0; row < static_cast<int32_t>(tokens.size()); ++row) {
      if (row % 3 != 1) wanted.push_back(row);
    }
    std::vector<float> host(logits_.size(), -7.0f);
    const uint64_t waits = cuda_emu::statistics().host_waits;
    const auto rows = static_cast<int64_t>(logits_.size()) / vocab_;
    backend->draw_tokens(backend->float_rows(*device, rows, vocab_), batch_, tokens, wanted, host);
    EXPECT_EQ(cuda_emu::statistics().host_waits - waits, 1u);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Sample got = Sampler::from_draw(tokens[i]);
      EXPECT_EQ(got.status, expected_[i].status) << "row " << i;
      EXPECT_EQ(got.token, expected_[i].token) << "row " << i << " of vocabulary " << vocab_;
    }
    const auto vocab = static_cast<size_t>(vocab_);
    for (size_t i = 0; i < host.size(); ++i) {
      if (i / vocab % 3 == 1) {
        ASSERT_EQ(host[i], -7.0f) << "logits of row " << i / vocab << " crossed the bus";
      } else {
        ASSERT_EQ(std::memcmp(&host[i], &logits_[i], sizeof(float)), 0);
      }
    }
  }
  const std::vector<Sample>& expected() const { return expected_; }

 private:
  int32_t vocab_;
  Sampler sampler_;
  std::vector<std::unique_ptr<SamplingParams>> params_;
  std::vector<Sample> expected_;
  std::vector<float> logits_;
  DrawBatch batch_;
};

SamplingParams settings(float temperature, int32_t top_k = 0, float top_p = 1, float min_p = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

// A request with whatever settings the generator comes to.
SamplingParams random_settings(std::mt19937& rng, int32_t vocab) {
  const auto chance = [&](uint32_t one_in) { return rng() % one_in == 0; };
  const auto uniform = [&] { return static_cast<float>(rng() % 1000) / 1000; };
  SamplingParams p = settings(chance(5) ? 0.0f : 0.1f + 2 * uniform());
  if (chance(2)) p.top_k = 1 + static_cast<int32_t>(rng() % (chance(2) ? 50u : static_cast<uint32_t>(vocab) + 2));
  if (chance(2)) p.top_p = 0.001f + 0.998f * uniform();
  if (chance(3)) p.min_p = chance(4) ? 0.999f : 0.3f * uniform();
  if (chance(3)) p.repetition_penalty = 0.5f + uniform();
  if (chance(3)) p.presence_penalty = 2 * uniform() - 1;
  if (chance(3)) p.frequency_penalty = 2 * uniform() - 1;
  if (chance(4)) p.logit_bias = {{0, 3 * uniform()}, {vocab - 1, -100.0f}, {vocab, 1.0f}, {-1, 1.0f}};
  if (chance(4)) p.min_tokens = 3;
  if (chance(4)) p.stop_token_ids = {vocab / 2, vocab / 2, vocab + 5};
  return p;
}

std::vector<float> random_logits(std::mt19937& rng, int32_t vocab) {
  std::normal_distribution<float> normal(0, 0.05f * static_cast<float>(1 << (rng() % 8)));
  std::vector<float> logits(static_cast<size_t>(vocab));
  const bool ties = rng() % 3 == 0, holes = rng() % 3 == 0;
  for (float& x : logits) {
    x = normal(rng);
    if (ties) x = std::round(4 * x) / 4;
    if (holes && rng() % 2 == 0) x = -kInf;
  }
  logits[rng() % logits.size()] = 0.5f;  // never all holes
  return logits;
}

class DrawTokens : public ::testing::TestWithParam<int32_t> {};

TEST_P(DrawTokens, AreTheHostsTokens) {
  const int32_t vocab = GetParam();
  std::mt19937 rng(static_cast<uint32_t>(vocab));
  for (int round = 0; round < 2; ++round) {
    Comparison rows(vocab, {vocab - 1});
    for (int i = 0; i < (vocab > 20000 ? 25 : 50); ++i) {
      std::vector<int32_t> prompt, generated;
      // At most a quarter of the vocabulary: longer lists stay on the host.
      for (int32_t t = 0; t < std::min<int32_t>(20, vocab / 8); ++t)
        prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
      for (int32_t t = 0; t < std::min<int32_t>(static_cast<int32_t>(rng() % 30), vocab / 8); ++t)
        generated.push_back(static_cast<int32_t>(rng() % 5) % vocab);
      SamplingParams params = random_settings(rng, vocab);
      if (vocab < 16) params.logit_bias.clear();
      rows.add(random_logits(rng, vocab), params, rng(), prompt, generated);
    }
    rows.check();
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, DrawTokens, ::testing::Values(1, 31, 1024, 32768 + 7),
                         ::testing::PrintToStringParamName());

// One row, many random numbers: every boundary between tokens is met, and so are both ends.
TEST(DrawTokens, FollowTheHostOverTheWholeRangeOfRandomNumbers) {
  std::mt19937 rng(5);
  const int32_t vocab = 300;
  for (const SamplingParams& params :
       {settings(1), settings(1.7f, 20), settings(1, 0, 0.8f), settings(1, 40, 0.9f, 0.05f), settings(1, 0, 1, 0.2f)}) {
    Comparison rows(vocab);
    const auto logits = random_logits(rng, vocab);
    for (uint64_t seed = 0; seed < 50; ++seed) rows.add(logits, params, seed);
    rows.check();
    std::vector<int32_t> distinct;
    for (const Sample& sample : rows.expected()) distinct.push_back(sample.token);
    std::ranges::sort(distinct);
    distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
    EXPECT_GT(distinct.size(), 3u) << "the test must not be of one token";
  }
}

// Thousands of tokens in one bin of the host's histogram, equal weights, and a top-p that cuts through them.
TEST(DrawTokens, FlatAndEqualRows) {
  const int32_t vocab = 6000;
  std::mt19937 rng(8);
  Comparison rows(vocab);
  std::uniform_real_distribution<float> narrow(0, 0.01f);
  std::vector<float> flat(static_cast<size_t>(vocab)), equal(static_cast<size_t>(vocab), 2.5f);
  for (float& x : flat) x = narrow(rng);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    for (const SamplingParams& params :
         {settings(1, 0, 0.9f), settings(0.5f, 3000, 0.5f), settings(2, 5999), settings(1, 0, 0.99999f)}) {
      rows.add(seed % 2 == 0 ? flat : equal, params, seed);
    }
  }
  rows.check();
}

TEST(DrawTokens, BadLogitsAndNothingLeft) {
  const int32_t vocab = 1000;
  std::mt19937 rng(2);
  Comparison rows(vocab, {7});
  for (const float bad : {std::nanf(""), -std::nanf(""), kInf}) {
    for (const size_t at : {size_t{0}, size_t{511}, size_t{999}}) {
      auto logits = random_logits(rng, vocab);
      logits[at] = bad;
      rows.add(logits, settings(1), 1);
      rows.add(logits, settings(0), 1);
    }
  }
  rows.add(std::vector<float>(static_cast<size_t>(vocab), -kInf), settings(1), 1);
  // Only the end of text is possible: it comes although min_tokens forbids it.
  std::vector<float> end(static_cast<size_t>(vocab), -kInf);
  end[7] = 1;
  SamplingParams early = settings(1);
  early.min_tokens = 5;
  early.stop_token_ids = {7, 3};
  rows.add(end, early, 1);
  // Bias left nothing.
  SamplingParams nothing = settings(0.7f);
  nothing.logit_bias = {{7, -kInf}};
  rows.add(end, nothing, 1);
  rows.check();
  EXPECT_EQ(rows.expected()[rows.expected().size() - 2].token, 7);
  EXPECT_EQ(rows.expected().back().status, SampleStatus::kNoToken);
  EXPECT_EQ(rows.expected()[0].status, SampleStatus::kBadLogits);
}

// What the device cannot or should not do.
TEST(DrawTokens, SomeRowsStayOnTheHost) {
  const Sampler sampler(64, {});
  DrawBatch batch;
  const auto planned = [&](const SamplingParams& params, const std::vector<int32_t>& prompt = {}) {
    return sampler.plan_draw(SamplerState(params, 1, 0, 64, prompt, nullptr), batch);
  };
  SamplingParams logprobs = settings(1), twice = settings(1), many = settings(1);
  logprobs.num_logprobs = 0;
  twice.logit_bias = {{3, 1.0f}, {3, 2.0f}};
  many.repetition_penalty = 1.5f;
  std::vector<int32_t> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 0);
  EXPECT_FALSE(planned(logprobs));
  EXPECT_FALSE(planned(twice));
  EXPECT_FALSE(planned(many, prompt));
  EXPECT_TRUE(batch.rows.empty() && batch.seen.empty() && batch.biases.empty());
  EXPECT_TRUE(planned(many, {1, 2, 3}));
}

}  // namespace
}  // namespace bam
