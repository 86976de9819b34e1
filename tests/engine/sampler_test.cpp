#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "engine/logits_math.h"
#include "engine/philox.h"
#include "tests/engine/random_logits.h"

namespace bam {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using testing::random_logits;

// The filters as their definitions say, in double precision with a full sort.
std::vector<double> reference_distribution(const std::vector<float>& logits, const SamplingParams& p) {
  const size_t n = logits.size();
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> prob(n);
  for (size_t i = 0; i < n; ++i)
    prob[i] = std::exp((static_cast<double>(logits[i]) - max) / static_cast<double>(p.temperature));
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return prob[a] > prob[b]; });
  size_t keep = p.top_k > 0 ? std::min(n, static_cast<size_t>(p.top_k)) : n;
  double total = 0;
  for (size_t i = 0; i < keep; ++i) total += prob[order[i]];
  if (p.top_p < 1) {
    double sum = 0;
    size_t m = 0;
    while (m < keep && sum < static_cast<double>(p.top_p) * total) sum += prob[order[m++]];
    keep = m;
  }
  while (keep > 1 && prob[order[keep - 1]] < static_cast<double>(p.min_p)) --keep;
  std::vector<double> result(n, 0.0);
  total = 0;
  for (size_t i = 0; i < keep; ++i) total += prob[order[i]];
  for (size_t i = 0; i < keep; ++i) result[order[i]] = prob[order[i]] / total;
  return result;
}

// Pearson's statistic over cells with an expected count of at least five, as a z-score.
double chi_square_z(const std::vector<int>& counts, const std::vector<double>& probs, int draws) {
  double statistic = 0, rest_expected = 0;
  int cells = 0, rest_seen = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probs[i] * draws;
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += counts[i];
      continue;
    }
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rest_expected >= 5) {
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  const double freedom = std::max(1, cells - 1);
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

struct Case {
  const char* name;
  int vocab;
  float spread;
  SamplingParams params;
};

SamplingParams with(float temperature, int32_t top_k, float top_p, float min_p) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  return p;
}

TEST(Sampler, DrawsFollowTheExactDistribution) {
  const std::vector<Case> cases = {
      {"plain", 100, 1.0f, with(1, 0, 1, 0)},           {"hot", 600, 1.0f, with(1.7f, 0, 1, 0)},
      {"cold", 1000, 1.0f, with(0.3f, 0, 1, 0)},        {"top_k", 1000, 1.0f, with(1, 3, 1, 0)},
      {"large top_k", 1000, 1.0f, with(1, 50, 1, 0)},   {"top_p", 1000, 2.0f, with(1, 0, 0.7f, 0)},
      {"flat top_p", 5000, 0.2f, with(1, 0, 0.9f, 0)},  {"min_p", 1000, 2.0f, with(1, 0, 1, 0.05f)},
      {"all", 1000, 2.0f, with(0.8f, 40, 0.9f, 0.02f)}, {"peaked", 1000, 6.0f, with(1, 0, 0.95f, 0)},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto logits = random_logits(c.vocab, 11, c.spread);
    const auto expected = reference_distribution(logits, c.params);
    Sampler sampler(c.vocab, {});
    const int draws = 10000;
    std::vector<int> counts(logits.size(), 0);
    SamplerState state(c.params, 1234, 0, c.vocab, {}, nullptr);
    for (int i = 0; i < draws; ++i) {
      const Sample s = sampler.sample(logits, state);
      ASSERT_EQ(s.status, SampleStatus::kOk);
      ASSERT_GT(expected[static_cast<size_t>(s.token)], 0.0) << "token " << s.token << " was filtered out";
      ++counts[static_cast<size_t>(s.token)];
      state.accept(s.token);
    }
    EXPECT_LT(chi_square_z(counts, expected, draws), 4.5);
  }
}

TEST(Sampler, FiltersKeepExactlyTheReferenceSet) {
  // Every token of the support must appear: give each a fair chance by sampling with all seeds.
  std::mt19937 rng(3);
  for (int round = 0; round < 30; ++round) {
    const int vocab = 20 + static_cast<int>(rng() % 300);
    auto logits = random_logits(vocab, static_cast<uint32_t>(round), 0.5f);
    for (float& x : logits) x = std::round(x * 8) / 8;  // many ties
    SamplingParams p = with(0.5f + 0.1f * static_cast<float>(rng() % 10), static_cast<int32_t>(rng() % 12),
                            0.2f + 0.1f * static_cast<float>(rng() % 9), rng() % 2 ? 0.3f : 0.0f);
    const auto expected = reference_distribution(logits, p);
    Sampler sampler(vocab, {});
    SamplerState state(p, rng(), 0, vocab, {}, nullptr);
    std::vector<bool> seen(logits.size(), false);
    for (int i = 0; i < 1500; ++i) {
      const int32_t token = sampler.sample(logits, state).token;
      seen[static_cast<size_t>(token)] = true;
      state.accept(token);
    }
    for (size_t t = 0; t < logits.size(); ++t) {
      EXPECT_TRUE(!seen[t] || expected[t] > 0) << "round " << round << " token " << t;
      EXPECT_TRUE(seen[t] || expected[t] <= 0.01) << "round " << round << " token " << t;
    }
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualMaxima) {
  std::vector<float> logits(1000, 0.5f);
  logits[700] = logits[300] = logits[999] = 2.0f;
  SamplingParams p;
  p.temperature = 0;
  Sampler sampler(1000, {});
  SamplerState state(p, 1, 0, 1000, {}, nullptr);
  EXPECT_EQ(sampler.sample(logits, state).token, 300);
}

TEST(Sampler, TheSameSeedChoiceAndIndexGiveTheSameToken) {
  const auto logits = random_logits(500, 5, 1.0f);
  SamplingParams p;
  Sampler sampler(500, {});
  const auto draw = [&](uint64_t seed, int32_t choice) {
    std::vector<int32_t> tokens;
    SamplerState state(p, seed, choice, 500, {}, nullptr);
    for (int i = 0; i < 50; ++i) {
      tokens.push_back(sampler.sample(logits, state).token);
      sampler.sample(random_logits(500, 77, 2.0f), state);  // another look changes nothing
      state.accept(tokens.back());
    }
    return tokens;
  };
  EXPECT_EQ(draw(1, 0), draw(1, 0));
  EXPECT_NE(draw(1, 0), draw(2, 0));
  EXPECT_NE(draw(1, 0), draw(1, 1));
}

TEST(Sampler, PhiloxMatchesItsPublishedVectors) {
  const std::array<uint32_t, 4> zero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), zero);
  const std::array<uint32_t, 4> ones = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, ~0ull), ones);
}

TEST(Sampler, PenaltiesAreTheDocumentedOnes) {
  const std::vector<float> logits = {1.0f, 1.0f, 1.0f, -1.0f, -1.0f, 0.9f};
  SamplingParams p;
  p.temperature = 0;
  p.repetition_penalty = 2.0f;
  const std::vector<int32_t> prompt = {0, 3};
  const auto next = [&](std::vector<int32_t> generated) {
    Sampler sampler(6, {});
    SamplerState state(p, 1, 0, 6, prompt, nullptr);
    for (const int32_t t : generated) state.accept(t);
    return sampler.sample(logits, state).token;
  };
  EXPECT_EQ(next({}), 1) << "token 0 of the prompt is halved";
  EXPECT_EQ(next({1}), 2);
  EXPECT_EQ(next({1, 2}), 5);
  p.repetition_penalty = 1.0f;
  p.presence_penalty = 0.05f;
  EXPECT_EQ(next({}), 0) << "presence looks at generated tokens only";
  EXPECT_EQ(next({0, 1, 2}), 0) << "0.95 still beats 0.9";
  p.presence_penalty = 0.0f;
  p.frequency_penalty = 0.06f;
  EXPECT_EQ(next({0, 1, 2, 0, 1}), 2);
  EXPECT_EQ(next({0, 1, 2, 0, 1, 2}), 5) << "0.88 < 0.9";
}

TEST(Sampler, LogitBiasIsAddedAndIgnoresUnknownIds) {
  SamplingParams p;
  p.temperature = 0;
  p.logit_bias = {{2, 5.0f}, {1, -100.0f}, {99, 3.0f}, {-4, 1.0f}};
  Sampler sampler(4, {});
  SamplerState state(p, 1, 0, 4, {}, nullptr);
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 9, 1, 2}, state).token, 2);
}

TEST(Sampler, MinTokensMasksEosAndStopIds) {
  SamplingParams p;
  p.temperature = 0;
  p.min_tokens = 2;
  p.stop_token_ids = {1};
  Sampler sampler(4, {3});
  SamplerState state(p, 1, 0, 4, {}, nullptr);
  const std::vector<float> logits = {0, 5, 1, 9};
  EXPECT_EQ(sampler.sample(logits, state).token, 2);
  state.accept(2), state.accept(2);
  EXPECT_EQ(sampler.sample(logits, state).token, 3);
}

// Allows a fixed list of tokens per position, then only the end.
class Script : public TokenConstraint {
 public:
  explicit Script(std::vector<std::vector<int32_t>> steps) : steps_(std::move(steps)) {}
  void allowed_tokens(std::span<uint32_t> allowed) override {
    if (at_ >= steps_.size()) return;
    for (const int32_t t : steps_[at_]) allowed[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
  }
  void accept(int32_t) override { ++at_; }
  bool finished() const override { return at_ >= steps_.size(); }
  std::unique_ptr<TokenConstraint> clone_initial() const override { return std::make_unique<Script>(steps_); }

 private:
  std::vector<std::vector<int32_t>> steps_;
  size_t at_ = 0;
};

TEST(Sampler, ConstraintsMaskWhateverTheLogitsSay) {
  auto logits = random_logits(200, 9, 3.0f);
  for (const float temperature : {0.0f, 1.5f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.top_p = 0.9f;
    p.top_k = 150;
    Sampler sampler(200, {199});
    for (uint64_t seed = 0; seed < 200; ++seed) {
      SamplerState state(p, seed, 0, 200, {},
                         std::make_unique<Script>(std::vector<std::vector<int32_t>>{{7, 131}, {199}}));
      const int32_t first = sampler.sample(logits, state).token;
      EXPECT_TRUE(first == 7 || first == 131);
      state.accept(first);
      EXPECT_EQ(sampler.sample(logits, state).token, 199);
      state.accept(199);
      EXPECT_TRUE(state.constraint_finished());
      EXPECT_EQ(sampler.sample(logits, state).status, SampleStatus::kNoToken);
    }
  }
}

TEST(Sampler, ACompleteConstraintWinsOverMinTokens) {
  SamplingParams p;
  p.temperature = 0;
  p.min_tokens = 10;
  Sampler sampler(4, {3, 3});
  SamplerState state(p, 1, 0, 4, {}, std::make_unique<Script>(std::vector<std::vector<int32_t>>{{3}}));
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 1, 2, 3}, state).token, 3);
}

TEST(Sampler, LogprobsMatchDoublePrecision) {
  for (const int vocab : {5, 16, 513, 32768}) {
    for (const float spread : {0.01f, 1.0f, 30.0f}) {
      const auto logits = random_logits(vocab, 21, spread);
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
      const double lse = max + std::log(sum);
      SamplingParams p;
      p.num_logprobs = 7;
      p.temperature = 0.4f;       // must not matter
      p.presence_penalty = 1.0f;  // nor this
      Sampler sampler(vocab, {});
      SamplerState state(p, 3, 0, vocab, {}, nullptr);
      const Sample s = sampler.sample(logits, state);
      ASSERT_TRUE(s.logprobs);
      const float own = logits[static_cast<size_t>(s.token)];
      // The result is rounded to float (6e-8 of it); the sum carries the polynomial's 2e-7 and float lanes.
      const auto expect_logprob = [&](float got, float x) {
        const double exact = static_cast<double>(x) - lse;
        EXPECT_NEAR(got, exact, 1e-6 + 1e-7 * std::abs(exact));
      };
      expect_logprob(s.logprobs->logprob, own);
      EXPECT_EQ(s.logprobs->rank, 1 + std::count_if(logits.begin(), logits.end(), [&](float x) { return x > own; }));
      std::vector<int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      ASSERT_EQ(s.logprobs->top.size(), static_cast<size_t>(std::min(vocab, 7)));
      for (size_t i = 0; i < s.logprobs->top.size(); ++i) {
        EXPECT_EQ(s.logprobs->top[i].first, order[i]);
        expect_logprob(s.logprobs->top[i].second, logits[static_cast<size_t>(order[i])]);
      }
    }
  }
}

TEST(Sampler, BadLogitsAreReportedWhereverTheyAre) {
  Sampler sampler(1000, {});
  SamplingParams p;
  for (const float bad : {std::nanf(""), -std::nanf(""), kInf}) {
    for (const size_t at : {size_t{0}, size_t{255}, size_t{256}, size_t{991}, size_t{999}}) {
      auto logits = random_logits(1000, 2, 1.0f);
      logits[at] = bad;
      SamplerState state(p, 1, 0, 1000, {}, nullptr);
      EXPECT_EQ(sampler.sample(logits, state).status, SampleStatus::kBadLogits) << at;
      EXPECT_FALSE(sampler.logprobs(logits, 1, 0).has_value());
    }
  }
  SamplerState state(p, 1, 0, 1000, {}, nullptr);
  EXPECT_EQ(sampler.sample(std::vector<float>(1000, -kInf), state).status, SampleStatus::kBadLogits);
}

TEST(Sampler, ExponentialsAreAccurateOnEveryLane) {
  std::vector<float> x(1003), y(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -static_cast<float>(i) * 0.1f;
  std::vector<double> sums(num_logit_blocks(x.size()));
  exp_blocks(x, 0.0f, 1.0f, y, sums);
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(y[i], exact, x[i] > -87 ? (3e-7 - 8e-8 * static_cast<double>(x[i])) * exact : 1e-37) << x[i];
    total += exact;
  }
  EXPECT_NEAR(std::accumulate(sums.begin(), sums.end(), 0.0), total, 1e-6 * total);
}

// What lets a device draw the same tokens: weights are those of kernels/draw.h bit for bit, and their sums are exact.
TEST(Sampler, WeightsAreOnTheGridAndTheirSumsExact) {
  const auto logits = random_logits(5003, 4, 6.0f);
  const float max = *std::max_element(logits.begin(), logits.end());
  std::vector<float> weights(logits.size());
  std::vector<double> sums(num_logit_blocks(logits.size()));
  for (const float scale : {0.3f, 1.0f, 2.7f}) {
    weight_blocks(logits, max, scale, weights, sums);
    int64_t units = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float scalar = draw_weight(logits[i], max, scale);
      ASSERT_EQ(std::memcmp(&weights[i], &scalar, sizeof(float)), 0) << i;
      const double scaled = static_cast<double>(weights[i]) * 0x1p34;
      ASSERT_EQ(scaled, std::floor(scaled));
      const double x = (static_cast<double>(logits[i]) - static_cast<double>(max)) * static_cast<double>(scale);
      // Half a step of the grid, x rounded twice, and what draw_weight() says of itself.
      ASSERT_NEAR(weights[i], std::exp(x), 0x1p-35 + (3e-7 - x * (0x1p-23 + 8e-8)) * std::exp(x));
      units += static_cast<int64_t>(scaled);
    }
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0.0), static_cast<double>(units) * 0x1p-34);
    std::vector<double> kept_sums(sums.size());
    mask_below(weights, 0.01f, kept_sums);
    int64_t kept = 0;
    for (const float w : weights) kept += static_cast<int64_t>(static_cast<double>(w) * 0x1p34);
    EXPECT_EQ(std::accumulate(kept_sums.begin(), kept_sums.end(), 0.0), static_cast<double>(kept) * 0x1p-34);
    EXPECT_LT(kept, units);
  }
}

// The token that the definitions give when every weight is computed and everything is sorted.
int32_t drawn_the_long_way(const std::vector<float>& logits, const SamplingParams& p, double uniform) {
  const float max = *std::max_element(logits.begin(), logits.end());
  std::vector<std::pair<float, int32_t>> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    best.emplace_back(draw_weight(logits[i], max, 1.0f / p.temperature), static_cast<int32_t>(i));
  }
  std::sort(best.begin(), best.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  if (p.top_k > 0) best.resize(std::min(best.size(), static_cast<size_t>(p.top_k)));
  const auto sum = [&] {
    double total = 0;
    for (const auto& [weight, id] : best) total += static_cast<double>(weight);
    return total;
  };
  double mass = 0;
  size_t keep = 0;
  const double wanted = p.top_p < 1 ? static_cast<double>(p.top_p) * sum() : kInf;
  while (keep < best.size() && (keep == 0 || mass < wanted)) mass += static_cast<double>(best[keep++].first);
  best.resize(keep);
  std::erase_if(best, [&](const auto& c) { return c.first < p.min_p || c.first == 0; });
  std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  double target = uniform * sum();
  for (const auto& [weight, id] : best) {
    target -= static_cast<double>(weight);
    if (target < 0) return id;
  }
  return best.back().second;
}

TEST(Sampler, EveryShortcutDrawsTheTokenOfTheLongWay) {
  std::mt19937 rng(17);
  int64_t far_down = 0;
  for (int round = 0; round < 400; ++round) {
    const int vocab = 300 + static_cast<int>(rng() % 12000);
    const float spread = 0.1f * static_cast<float>(1 << rng() % 9);
    auto logits = random_logits(vocab, rng(), spread);
    if (round % 4 == 1) {
      for (float& x : logits) x = std::round(x * 16) / 16;  // equals
    } else if (round % 4 == 2) {
      for (float& x : logits) x = 3.0f + 1e-6f * std::round(x * 8);  // neighbours in float: equal weights, other logits
    } else if (round % 4 == 3) {
      for (float& x : logits) x -= rng() % 8 ? 1e6f : 1e6f - 30;  // far from zero
    }
    const SamplingParams p =
        with(0.3f + 0.2f * static_cast<float>(rng() % 6), static_cast<int32_t>(rng() % 60),
             rng() % 2 ? 0.05f + 0.1f * static_cast<float>(rng() % 10) : 1.0f, rng() % 3 ? 0.0f : 0.02f);
    Sampler sampler(vocab, {});
    const uint64_t seed = rng();
    SamplerState state(p, seed, 0, vocab, {}, nullptr);
    for (uint64_t i = 0; i < 20; ++i) {
      const int32_t token = sampler.sample(logits, state).token;
      ASSERT_EQ(token, drawn_the_long_way(logits, p, philox_uniform(seed, 0, i)))
          << "round " << round << ", vocabulary " << vocab << ", top_k " << p.top_k << ", top_p " << p.top_p;
      far_down += logits[static_cast<size_t>(token)] < *std::max_element(logits.begin(), logits.end());
      state.accept(token);
    }
  }
  EXPECT_GT(far_down, 1000) << "the cases are too easy";
}

}  // namespace
}  // namespace bam
