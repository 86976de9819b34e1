// Looks at attention are scheduled work: they wait, share, lose their pages and end like other requests.
#include "engine/attention_looks.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/engine_fixture.h"

namespace bam {
namespace {

using namespace std::chrono_literals;
using testing::CollectingSink;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

class LooksTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_->path());
  }
  static void TearDownTestSuite() { delete dir_; }

  Engine& start(EngineConfig config = small_config()) {
    engine_.reset();
    engine_ = std::make_unique<Engine>(model_.load(), config, 7);
    return *engine_;
  }
  std::shared_ptr<CollectingSink> submit(const Request& request) {
    auto sink = std::make_shared<CollectingSink>(request.n);
    const SubmitResult result = engine_->submit(request, sink);
    EXPECT_EQ(result.status, SubmitStatus::kAccepted) << result.message;
    return sink;
  }
  static Request look(const std::string& id, const std::vector<int32_t>& tokens, AttentionLook what = {}) {
    Request request = make_request(id, tokens, 0);
    request.look = std::move(what);
    return request;
  }
  Request endless(const std::string& id) {
    Request request = make_request(id, random_prompt(rng_, 90), 100'000);
    request.sampling.ignore_eos = true;
    return request;
  }
  std::string refusal(const Request& request) {
    return engine_->submit(request, std::make_shared<CollectingSink>()).message;
  }
  void TearDown() override { engine_.reset(); }

  std::mt19937 rng_{99};
  TestModel model_{dir_->path(), {.threads = 2}};
  std::unique_ptr<Engine> engine_;
  static TempDir* dir_;
};
TempDir* LooksTest::dir_ = nullptr;

TEST_F(LooksTest, EveryHeadHasADistribution) {
  start();
  const auto tokens = random_prompt(rng_, 1000);
  const Outcome outcome =
      submit(look("a", tokens, {.bins = 64, .peaks = 5, .spans = {{0, 1000}, {990, 1000}}}))->wait();
  EXPECT_EQ(outcome.choices[0].finish.reason, FinishReason::kLength);
  EXPECT_TRUE(outcome.choices[0].tokens.empty());
  ASSERT_TRUE(outcome.attention);
  EXPECT_EQ(outcome.attention->position, 999);
  EXPECT_EQ(outcome.attention->bin_keys, 16);
  const ModelConfig& config = engine_->model_config();
  ASSERT_EQ(outcome.attention->heads.size(), static_cast<size_t>(config.num_layers * config.num_heads));
  int64_t cut = 0;
  for (const HeadAttention& head : outcome.attention->heads) {
    double total = 0;
    for (const float p : head.sum) total += p;
    EXPECT_EQ(head.sum.size(), 63u);
    EXPECT_NEAR(total, 1.0, 1e-5);
    EXPECT_NEAR(head.spans[0], 1.0, 1e-5);
    EXPECT_GE(head.spans[0], head.spans[1]);
    EXPECT_EQ(head.peaks.size(), 5u);
    cut += head.first_key > 0;
  }
  EXPECT_GT(cut, 0) << "pages out of reach were freed";
  EXPECT_LT(cut, static_cast<int64_t>(outcome.attention->heads.size()));
}

TEST_F(LooksTest, WhatIsNotThereIsRefused) {
  start();
  const auto tokens = random_prompt(rng_, 90);
  EXPECT_NE(refusal(look("a", tokens, {.layer = 9})).find("no layer"), std::string::npos);
  EXPECT_NE(refusal(look("a", tokens, {.head = 4})).find("no head"), std::string::npos);
  EXPECT_NE(refusal(look("a", tokens, {.position = 90})).find("position 90"), std::string::npos);
  EXPECT_NE(refusal(look("a", tokens, {.from = 50, .to = 50})).find("[50, 50)"), std::string::npos);
  EXPECT_NE(refusal(look("a", tokens, {.to = 91})).find("[0, 91)"), std::string::npos);
  EXPECT_NE(refusal(look("a", tokens, {.bins = 5000})).find("bins"), std::string::npos);
  EXPECT_NE(refusal(look("a", tokens, {.spans = {{80, 91}}})).find("[80, 91)"), std::string::npos);
  Request generates = look("a", tokens);
  generates.sampling.max_tokens = 1;
  EXPECT_NE(refusal(generates).find("generates nothing"), std::string::npos);
}

// Pages that the last row needs are there for every length, whatever the prefix cache had.
TEST_F(LooksTest, ThePrefixCacheChangesNothing) {
  const auto tokens = random_prompt(rng_, 700);
  std::vector<AttentionReport> plain;
  for (const bool cached : {false, true}) {
    EngineConfig config = small_config();
    config.prefix_cache = cached;
    start(config);
    size_t at = 0;
    for (const size_t length : {1u, 2u, 63u, 64u, 65u, 127u, 128u, 129u, 500u, 575u, 576u, 577u, 640u, 641u, 700u}) {
      const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length));
      const Outcome outcome = submit(look("a", prompt, {.bins = 4096}))->wait();
      ASSERT_TRUE(outcome.attention) << length;
      if (!cached) {
        plain.push_back(*outcome.attention);
      } else {
        EXPECT_EQ(*outcome.attention, plain[at++]) << length;
        if (length > 128) EXPECT_GE(outcome.choices[0].finish.cached_tokens, 128);
      }
    }
  }
}

TEST_F(LooksTest, AGenerationLeavesThePagesForTheLook) {
  start();
  Request request = make_request("a", random_prompt(rng_, 3000), 100);
  request.sampling.ignore_eos = true;
  const Outcome text = submit(request)->wait();
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), text.choices[0].tokens.begin(), text.choices[0].tokens.end());
  const Outcome outcome = submit(look("b", tokens))->wait();
  EXPECT_GE(outcome.choices[0].finish.cached_tokens, 3000);
  ASSERT_TRUE(outcome.attention);
}

TEST_F(LooksTest, AStreamKeepsItsPace) {
  start();
  const auto tokens = random_prompt(rng_, 30'000);
  const auto alone = submit(look("alone", tokens))->wait().attention;
  ASSERT_TRUE(alone);
  auto stream = submit(endless("stream"));
  stream->wait_for([](const Outcome& o) { return !o.choices[0].tokens.empty(); });
  const size_t before = stream->peek().choices[0].tokens.size();
  const Outcome beside = submit(look("beside", tokens))->wait();
  // At most kPagesBeside pages of 64 keys between two steps: of 4 groups, two have all of their 469 pages.
  EXPECT_GE(stream->peek().choices[0].tokens.size() - before, 2u * 469 / AttentionLooks::kPagesBeside);
  EXPECT_EQ(beside.attention, alone);
  engine_->cancel("stream");
  stream->wait();
}

// Many looks and streams in a cache that holds a few of them: those whose pages are taken begin again.
TEST_F(LooksTest, LostPagesAreReadAgain) {
  const auto tokens = random_prompt(rng_, 2000);
  start();
  const auto expected = submit(look("a", tokens, {.bins = 100}))->wait().attention;
  EngineConfig config = small_config(3 << 20);
  config.prefix_cache = false;
  start(config);
  std::vector<std::shared_ptr<CollectingSink>> looks, texts;
  for (int i = 0; i < 6; ++i) {
    looks.push_back(submit(look("look" + std::to_string(i), tokens, {.bins = 100})));
    Request text = make_request("text" + std::to_string(i), random_prompt(rng_, 1500), 300);
    text.sampling.ignore_eos = true;
    texts.push_back(submit(text));
  }
  for (const auto& sink : looks) EXPECT_EQ(sink->wait().attention, expected);
  for (const auto& sink : texts) EXPECT_EQ(sink->wait().choices[0].tokens.size(), 300u);
  EXPECT_TRUE(engine_->drain(1h));
  EXPECT_EQ(engine_->picture()->pages_used, 0);
}

TEST_F(LooksTest, CanBeCancelledAtAnyTime) {
  start();
  auto stream = submit(endless("stream"));
  const auto tokens = random_prompt(rng_, 20'000);
  for (int i = 0; i < 20; ++i) {
    auto sink = submit(look("look", tokens));
    for (int spins = 0; spins < 40 * i; ++spins) std::this_thread::yield();
    engine_->cancel("look");
    const Outcome outcome = sink->wait();
    EXPECT_TRUE(outcome.in_order);
    EXPECT_EQ(outcome.attention.has_value(), outcome.choices[0].finish.reason == FinishReason::kLength);
  }
  engine_->cancel("stream");
  stream->wait();
  EXPECT_TRUE(engine_->drain(1h));
}

}  // namespace
}  // namespace bam
