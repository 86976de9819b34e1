// Requests of every kind, and whether two answers are the same.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace bam::testing {

// A language of its own: which of a dozen tokens may follow depends on all that came before. It ends after `length`.
class HashedLanguage final : public TokenConstraint {
 public:
  explicit HashedLanguage(int64_t length) : length_(length) {}
  void allowed_tokens(std::span<uint32_t> allowed) override {
    for (int32_t t = 20; t < 32; ++t) {
      if (((state_ >> (t - 20)) & 1) != 0 || t == 20 + static_cast<int32_t>(state_ % 12)) {
        allowed[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
      }
    }
  }
  void accept(int32_t token) override {
    ++num_accepted_;
    state_ = num_accepted_ % 4 * 1009 + static_cast<uint32_t>(token) * 31;
  }
  bool finished() const override { return num_accepted_ >= length_; }
  std::unique_ptr<TokenConstraint> clone_initial() const override { return std::make_unique<HashedLanguage>(length_); }

 private:
  int64_t length_, num_accepted_ = 0;
  uint32_t state_ = 1;
};

// Makes a text of few different tokens, whose n-grams come again and again.
inline void narrow(SamplingParams& sampling) {
  for (const int32_t token : {11, 12, 13}) sampling.logit_bias.emplace_back(token, 30.0f);
}

// A mix of everything a client can ask for; some prompts share a beginning.
inline std::vector<Request> mixed_requests() {
  std::mt19937 rng(2024);
  const auto shared = random_prompt(rng, 200);
  std::vector<Request> requests;
  for (int i = 0; i < 14; ++i) {
    std::vector<int32_t> prompt = random_prompt(rng, 1 + static_cast<int64_t>(rng() % 330));
    if (i % 3 == 0) prompt.insert(prompt.begin(), shared.begin(), shared.end());
    Request r = make_request("r" + std::to_string(i), std::move(prompt), 20 + static_cast<int64_t>(rng() % 130));
    r.sampling.ignore_eos = i % 2 == 0;
    r.sampling.num_logprobs = i % 4 == 0 ? 3 : 0;
    if (i % 2 == 1) {
      r.sampling.temperature = 0.9f;
      r.sampling.seed = 100 + static_cast<uint64_t>(i);
    }
    if (i == 3) r.sampling.top_p = 0.8f;
    if (i == 5) r.n = 3;
    if (i == 6) r.n = 2, r.sampling.temperature = 1.2f, r.sampling.seed = 9;
    if (i == 7) r.sampling.num_prompt_logprobs = 2;
    if (i == 9) r.sampling.repetition_penalty = 1.3f, r.sampling.presence_penalty = 0.4f;
    if (i == 11) r.sampling.min_p = 0.05f, r.sampling.top_k = 40;
    if (i == 12) r.sampling.num_prompt_logprobs = 0, r.sampling.max_tokens = 0;
    if (i == 1 || i == 5 || i == 6 || i == 9) narrow(r.sampling);
    if (i == 2) r.constraint = std::make_shared<HashedLanguage>(70), r.sampling.ignore_eos = true;
    if (i == 8) r.constraint = std::make_shared<HashedLanguage>(500), r.sampling.num_logprobs = 2;
    if (i == 13) narrow(r.sampling), r.sampling.stop_token_ids = {13}, r.sampling.min_tokens = 40;
    r.priority = static_cast<int32_t>(i % 3) - 1;
    requests.push_back(std::move(r));
  }
  return requests;
}

inline void expect_same(const Request& request, const Outcome& expected, const Outcome& got) {
  SCOPED_TRACE(request.id);
  EXPECT_TRUE(got.in_order);
  ASSERT_EQ(expected.choices.size(), got.choices.size());
  for (size_t c = 0; c < expected.choices.size(); ++c) {
    EXPECT_EQ(expected.choices[c].tokens, got.choices[c].tokens) << "choice " << c;
    const FinishEvent &before = expected.choices[c].finish, &after = got.choices[c].finish;
    EXPECT_EQ(before.reason, after.reason) << after.message;
    EXPECT_EQ(before.stop_token, after.stop_token);
    EXPECT_EQ(before.generated_tokens, after.generated_tokens);
    EXPECT_TRUE(same_logprobs(expected.choices[c].logprobs, got.choices[c].logprobs)) << "choice " << c;
  }
  EXPECT_TRUE(same_logprobs(expected.prompt_logprobs, got.prompt_logprobs));
}

}  // namespace bam::testing
