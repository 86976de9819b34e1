// Requests of every kind, and whether two answers are the same.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace bam::testing {

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
    EXPECT_EQ(expected.choices[c].finish.reason, got.choices[c].finish.reason) << got.choices[c].finish.message;
    EXPECT_TRUE(same_logprobs(expected.choices[c].logprobs, got.choices[c].logprobs)) << "choice " << c;
  }
  EXPECT_TRUE(same_logprobs(expected.prompt_logprobs, got.prompt_logprobs));
}

}  // namespace bam::testing
