// Log-probabilities of prompts that were asked before: the same bits, fewer rows.
#include "engine/score_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "engine/kv_cache.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::same_logprobs;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

constexpr int kPage = 64;

std::shared_ptr<const BlockScores> block_of(float logprob, int32_t num_top) {
  auto scores = std::make_shared<BlockScores>(kPage, num_top);
  for (size_t i = 0; i < kPage; ++i) {
    TokenLogprobs token{logprob, static_cast<int32_t>(i), {}};
    for (int32_t t = 0; t < num_top; ++t) token.top.emplace_back(t, -static_cast<float>(t));
    scores->set(i, token);
  }
  return scores;
}

TEST(ScoreCache, TheLeastRecentlyUsedGoWhenTheBoundIsReached) {
  ScoreCache cache;
  const size_t one = block_of(0, 2)->bytes();
  cache.set_max_bytes(3 * one);
  for (int32_t node = 0; node < 3; ++node) cache.put(-1, node, block_of(static_cast<float>(node), 2));
  ASSERT_NE(cache.find(-1, 0, 2), nullptr);
  cache.put(-1, 3, block_of(3, 2));
  EXPECT_EQ(cache.find(-1, 1, 2), nullptr);
  EXPECT_NE(cache.find(-1, 0, 2), nullptr);
  EXPECT_EQ(cache.bytes(), 3 * one);
  for (int32_t node = 0; node < 5; ++node) cache.drop(node);
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(ScoreCache, TheEndOfATextGoesBeforeItsBeginning) {
  ScoreCache cache;
  cache.set_max_bytes(4 * block_of(0, 2)->bytes());
  cache.put(-1, 100, block_of(0, 2));
  for (int32_t node = 0; node < 6; ++node) cache.put(node - 1, node, block_of(0, 2));  // longer than there is room for
  EXPECT_EQ(cache.find(-1, 100, 2), nullptr);
  for (int32_t node = 0; node < 6; ++node) EXPECT_EQ(cache.find(node - 1, node, 2) != nullptr, node < 4) << node;
  cache.put(-1, 100, block_of(0, 2));
  EXPECT_EQ(cache.find(2, 3, 2), nullptr);
  EXPECT_NE(cache.find(1, 2, 2), nullptr);
}

TEST(ScoreCache, FewerAlternativesAreServedMoreAreNot) {
  ScoreCache cache;
  cache.set_max_bytes(1 << 20);
  cache.put(-1, 7, block_of(-1, 2));
  EXPECT_EQ(cache.find(-1, 7, 3), nullptr);
  ASSERT_NE(cache.find(-1, 7, 1), nullptr);
  EXPECT_EQ(cache.find(-1, 7, 1)->get(5, 1).top, (std::vector<std::pair<int32_t, float>>{{0, 0.0f}}));
  EXPECT_TRUE(cache.find(-1, 7, 0)->get(5, 0).top.empty());
  cache.put(-1, 7, block_of(-2, 5));
  cache.put(-1, 7, block_of(-3, 1));  // tells less than what is there
  EXPECT_EQ(cache.find(-1, 7, 0)->get(0, 5).logprob, -2.0f);
  EXPECT_EQ(cache.find(-1, 7, 0)->get(0, 5).top.size(), 5u);
}

TEST(ScoreCache, ScoresGoWithTheirBlock) {
  KvCache kv(KvGeometry(kPage, {-1}, 640), 10, true, 1);
  kv.set_score_bytes(1 << 20);
  std::vector<int32_t> tokens(640);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto compute = [&](const std::vector<int32_t>& text, bool score) {
    BlockTable table;
    const auto size = static_cast<int64_t>(text.size());
    const int64_t cached = kv.admit(table, text, size - 1, size, 0).value();
    EXPECT_TRUE(kv.grow(table, cached, size));
    kv.commit(table, text, size);
    for (int64_t b = 0; score && b < size / kPage; ++b) kv.keep_scores(table, {b, block_of(static_cast<float>(b), 1)});
    return table;
  };
  const auto found = [&](const std::vector<int32_t>& text, const std::string& salt) {
    BlockTable table;
    table.salt = salt;
    return kv.find_scores(table, text, 1);
  };
  BlockTable table = compute(tokens, true);
  ASSERT_EQ(found(tokens, "").size(), 10u);
  for (size_t b = 0; b < 10; ++b) EXPECT_EQ(found(tokens, "")[b]->get(3, 0).logprob, static_cast<float>(b));
  EXPECT_TRUE(found(tokens, "another salt").empty());
  kv.release(table);

  std::vector<int32_t> other(192, 5);
  BlockTable small = compute(other, false);  // takes the pages of three blocks
  kv.release(small);
  EXPECT_EQ(found(tokens, "").size(), 7u);
  EXPECT_EQ(kv.prefix().scores().num_blocks(), 7u);

  BlockTable again;
  ASSERT_TRUE(kv.admit(again, tokens, 639, 640, 0).has_value());
  kv.quarantine(again, tokens, 2);  // what was computed from there on is wrong
  EXPECT_EQ(found(tokens, "").size(), 2u);
  EXPECT_EQ(kv.check_integrity(), "");
}

class PromptScoring : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_->path());
  }
  static void TearDownTestSuite() { delete dir_; }

  struct Server {
    explicit Server(const EngineConfig& config, const std::filesystem::path& checkpoint)
        : model(checkpoint), engine(model.load(), config, 7) {}
    Outcome score(std::vector<int32_t> prompt, int32_t num_top, int64_t max_tokens = 0, const std::string& salt = "") {
      Request request = make_request("r" + std::to_string(count++), std::move(prompt), max_tokens);
      request.sampling.num_prompt_logprobs = num_top;
      request.cache_salt = salt;
      auto sink = std::make_shared<CollectingSink>();
      EXPECT_EQ(engine.submit(request, sink).status, SubmitStatus::kAccepted);
      Outcome outcome = sink->wait();
      EXPECT_TRUE(outcome.in_order);
      EXPECT_NE(outcome.choices[0].finish.reason, FinishReason::kError) << outcome.choices[0].finish.message;
      return outcome;
    }
    TestModel model;
    Engine engine;
    int count = 0;
  };

  // Computed anew, with nothing in common.
  static std::vector<TokenLogprobs> plain(const std::vector<int32_t>& prompt, int32_t num_top) {
    EngineConfig config = small_config();
    config.prefix_cache = false;
    return Server(config, dir_->path()).score(prompt, num_top).prompt_logprobs;
  }
  static void expect_scores(const Outcome& outcome, const std::vector<int32_t>& prompt, int32_t num_top,
                            int64_t cached) {
    EXPECT_EQ(outcome.prompt_logprobs.size(), prompt.size() - 1);
    EXPECT_TRUE(same_logprobs(outcome.prompt_logprobs, plain(prompt, num_top)));
    EXPECT_EQ(outcome.choices[0].finish.cached_tokens, cached);
  }

  static TempDir* dir_;
  std::mt19937 rng_{5};
};
TempDir* PromptScoring::dir_ = nullptr;

TEST_F(PromptScoring, ADocumentAskedAgainIsNotReadAgain) {
  Server server(small_config(), dir_->path());
  const auto document = random_prompt(rng_, 500);
  expect_scores(server.score(document, 2), document, 2, 0);
  // Seven whole blocks; the last row of them says how likely the token behind them is, so one is read again.
  expect_scores(server.score(document, 2), document, 2, 384);
  expect_scores(server.score(document, 2, 3), document, 2, 384);
  const std::vector<int32_t> whole(document.begin(), document.begin() + 448);
  expect_scores(server.score(whole, 2), whole, 2, 384);
}

TEST_F(PromptScoring, OtherContinuationsOfOneContextShareItsPages) {
  Server server(small_config(), dir_->path());
  const auto context = random_prompt(rng_, 400);
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = context;
    const auto continuation = random_prompt(rng_, 10 + 40 * i);
    prompt.insert(prompt.end(), continuation.begin(), continuation.end());
    expect_scores(server.score(prompt, 1, 1), prompt, 1, i == 0 ? 0 : 320);
  }
}

TEST_F(PromptScoring, MoreAlternativesAreComputedFewerAreNot) {
  Server server(small_config(), dir_->path());
  const auto document = random_prompt(rng_, 300);
  expect_scores(server.score(document, 1), document, 1, 0);
  expect_scores(server.score(document, 0), document, 0, 192);
  expect_scores(server.score(document, 5), document, 5, 0);
  expect_scores(server.score(document, 5), document, 5, 192);
  expect_scores(server.score(document, 1), document, 1, 192);
}

TEST_F(PromptScoring, GeneratedPrefixesHaveNoScoresUntilSomebodyAsks) {
  Server server(small_config(), dir_->path());
  const auto document = random_prompt(rng_, 300);
  EXPECT_TRUE(server.score(document, -1, 2).prompt_logprobs.empty());
  expect_scores(server.score(document, 1), document, 1, 0);
  expect_scores(server.score(document, 1), document, 1, 192);
  EXPECT_EQ(server.score(document, -1, 2).choices[0].finish.cached_tokens, 256);
}

TEST_F(PromptScoring, SaltsDoNotShare) {
  Server server(small_config(), dir_->path());
  const auto document = random_prompt(rng_, 300);
  server.score(document, 1, 0, "alice");
  EXPECT_EQ(server.score(document, 1, 0, "bob").choices[0].finish.cached_tokens, 0);
  EXPECT_EQ(server.score(document, 1, 0, "alice").choices[0].finish.cached_tokens, 192);
}

TEST_F(PromptScoring, PagesThatAreGoneAreComputedAgain) {
  EngineConfig config = small_config(1 << 20);
  Server server(config, dir_->path());
  const auto document = random_prompt(rng_, 500);
  server.score(document, 1);
  for (int i = 0; i < 40 && server.engine.stats().pages_evicted.load() == 0; ++i)
    server.score(random_prompt(rng_, 500), 1);
  ASSERT_GT(server.engine.stats().pages_evicted.load(), 0u);
  for (int i = 0; i < 4; ++i) {
    const Outcome again = server.score(document, 1);
    EXPECT_TRUE(same_logprobs(again.prompt_logprobs, plain(document, 1)));
    server.score(random_prompt(rng_, 500), 1);
  }
}

}  // namespace
}  // namespace bam
