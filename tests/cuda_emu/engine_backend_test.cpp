// The whole engine on the emulated device: sampling there gives the tokens of sampling on the host, with drafts and
// without.
#include <gtest/gtest.h>

#include "tests/cuda_emu/backend_test_support.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/manual_time.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::Outcome;

std::vector<Request> requests(int32_t vocab) {
  std::mt19937 rng(31);
  std::vector<Request> all;
  const auto add = [&](auto change) {
    Request request =
        testing::make_request("r" + std::to_string(all.size()), testing::random_prompt(rng, 20, vocab), 6);
    request.sampling.seed = 100 + all.size();
    request.sampling.temperature = 0.9f;
    change(request);
    all.push_back(std::move(request));
  };
  add([](Request&) {});
  add([](Request& r) { r.sampling.temperature = 0; });
  add([](Request& r) { r.sampling.top_k = 20, r.sampling.top_p = 0.9f, r.sampling.repetition_penalty = 1.3f; });
  add([](Request& r) { r.sampling.frequency_penalty = 0.5f, r.sampling.min_tokens = 6; });
  add([](Request& r) { r.sampling.num_logprobs = 3; });         // host
  add([](Request& r) { r.n = 3; });                             // the first tokens on the host
  add([](Request& r) { r.sampling.num_prompt_logprobs = 1; });  // likewise
  // Texts of three tokens: much to guess, on the device and, with a penalty, on the host.
  for (const float penalty : {0.0f, 0.1f}) {
    add([&](Request& r) {
      r.sampling.max_tokens = 40;
      r.sampling.ignore_eos = true;
      r.sampling.min_tokens = 20;
      r.sampling.frequency_penalty = penalty;
      for (const int32_t token : {11, 12, 13}) r.sampling.logit_bias.emplace_back(token, 30.0f);
    });
  }
  return all;
}

std::vector<Outcome> run(bool device_sampling, bool drafts) {
  testing::TempDir folder;
  const testing::CheckpointSpec spec = testing::mixed_reach_spec();
  testing::write_checkpoint(spec, folder.path());
  const auto backend = cuda_test::make_cuda(DType::kF32);
  EngineConfig config = testing::small_config(8 << 20);
  config.device_sampling = device_sampling;
  config.drafts = drafts;
  ModelConfig model_config = load_model_config(folder.path());
  CheckpointWeights weights = load_weights(folder.path(), model_config);
  const auto vocab = static_cast<int32_t>(model_config.vocab_size);
  auto model = std::make_unique<BamModel>(*backend, std::move(model_config), std::move(weights), ModelOptions{});
  std::vector<Outcome> outcomes;
  testing::ManualTime time;  // how many guesses are made does not depend on the machine
  Engine engine(std::move(model), config, 1, time);
  const uint64_t start = cuda_emu::statistics().host_waits;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (Request& request : requests(vocab)) {
    sinks.push_back(std::make_shared<CollectingSink>(request.n));
    EXPECT_EQ(engine.submit(std::move(request), sinks.back()).status, SubmitStatus::kAccepted);
  }
  for (const auto& sink : sinks) outcomes.push_back(sink->wait());
  for (const size_t guessable : {outcomes.size() - 2, outcomes.size() - 1}) {
    const FinishEvent& finish = outcomes[guessable].choices[0].finish;
    EXPECT_EQ(finish.accepted_drafts > 0, drafts) << guessable;
    EXPECT_EQ(finish.rejected_drafts > 0, drafts) << guessable;
  }
  const uint64_t steps = engine.stats().steps, waits = cuda_emu::statistics().host_waits - start;
  EXPECT_GE(steps, 6u);
  // The first one also sends the embedding and two tables of positions, through pinned memory that weights may still be
  // leaving.
  EXPECT_LE(waits, steps + 3) << "a step waits for the device once";
  return outcomes;
}

void expect_same(const std::vector<Outcome>& some, const std::vector<Outcome>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (size_t i = 0; i < some.size(); ++i) {
    ASSERT_EQ(some[i].choices.size(), others[i].choices.size());
    for (size_t c = 0; c < some[i].choices.size(); ++c) {
      EXPECT_EQ(some[i].choices[c].finish.reason, others[i].choices[c].finish.reason);
      EXPECT_EQ(some[i].choices[c].tokens, others[i].choices[c].tokens) << "request " << i << " choice " << c;
      EXPECT_FALSE(some[i].choices[c].tokens.empty());
    }
    EXPECT_TRUE(testing::same_logprobs(some[i].prompt_logprobs, others[i].prompt_logprobs));
  }
}

TEST(EngineOnDevice, SamplesTheTokensThatTheHostWouldSample) {
  const auto plain = run(true, false);
  expect_same(run(false, false), plain);
  expect_same(run(true, true), plain);
  expect_same(run(false, true), plain);
}

}  // namespace
}  // namespace bam
