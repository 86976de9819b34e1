#include "engine/prefix_store.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/engine/engine_fixture.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

// Takes every prompt of more than 100 tokens and never answers by itself.
class SlowStore final : public PrefixStore {
 public:
  explicit SlowStore(Clock::duration patience) : patience_(patience) {}
  bool look_up(const Request& request, int64_t num_cached) override {
    if (request.prompt.size() <= 100) return false;
    last_cached = num_cached;
    ++lookups;
    return true;
  }
  Clock::duration patience() const override { return patience_; }
  void gave_up() override { ++given_up; }
  void computed(const Request& request) override { computed_tokens += static_cast<int64_t>(request.prompt.size()); }

  std::atomic<int> lookups{0}, given_up{0};
  std::atomic<int64_t> last_cached{-1}, computed_tokens{0};

 private:
  const Clock::duration patience_;
};

class PrefixStoreTest : public ::testing::Test {
 protected:
  PrefixStoreTest() {
    testing::write_checkpoint(testing::mixed_reach_spec(), model_dir_.path());
    model_ = std::make_unique<TestModel>(model_dir_.path());
    engine_ = std::make_unique<Engine>(model_->load(), small_config(), 7);
    std::mt19937 rng(3);
    long_ = make_request("long", random_prompt(rng, 300), 8);
    long_.sampling.ignore_eos = true;
    alone_ = run(long_);
    long_.cache_salt = "again";
  }
  std::shared_ptr<CollectingSink> submit(const Request& request) {
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_EQ(engine_->submit(request, sink).status, SubmitStatus::kAccepted);
    return sink;
  }
  Outcome run(const Request& request) { return submit(request)->wait(); }
  // Another request passes, so that the engine had time for the one that waits.
  void pass_by() {
    static int number = 0;
    run(make_request("short" + std::to_string(++number), {5, 6, 7}, 4));
  }
  void expect_whole(const std::shared_ptr<CollectingSink>& sink) {
    EXPECT_EQ(sink->wait().choices[0].tokens, alone_.choices[0].tokens);
  }

  TempDir model_dir_;
  SlowStore slow_{std::chrono::hours(1)}, hasty_{std::chrono::milliseconds(1)};
  std::unique_ptr<TestModel> model_;
  std::unique_ptr<Engine> engine_;
  Request long_;
  Outcome alone_;
};

TEST_F(PrefixStoreTest, ARequestWaitsUntilItIsReleased) {
  engine_->use_prefix_store(&slow_);
  const auto sink = submit(long_);
  pass_by();
  EXPECT_TRUE(sink->peek().choices[0].tokens.empty());
  EXPECT_TRUE(sink->peek().progress.empty());
  EXPECT_TRUE(engine_->release("long"));
  expect_whole(sink);
  EXPECT_FALSE(engine_->release("long"));
  EXPECT_EQ(slow_.lookups, 1);
  EXPECT_EQ(slow_.last_cached, 0) << "another salt";
  EXPECT_EQ(slow_.given_up, 0);
  EXPECT_EQ(slow_.computed_tokens, 303);
  engine_->use_prefix_store(nullptr);
}

TEST_F(PrefixStoreTest, OrUntilPatienceIsOver) {
  engine_->use_prefix_store(&hasty_);
  expect_whole(submit(long_));
  EXPECT_EQ(hasty_.given_up, 1);
  engine_->use_prefix_store(nullptr);
}

TEST_F(PrefixStoreTest, OrUntilThereIsNoStoreAnyMore) {
  engine_->use_prefix_store(&slow_);
  const auto sink = submit(long_);
  pass_by();
  engine_->use_prefix_store(nullptr);
  expect_whole(sink);
}

TEST_F(PrefixStoreTest, ItCanBeCancelledMeanwhile) {
  engine_->use_prefix_store(&slow_);
  const auto sink = submit(long_);
  pass_by();
  EXPECT_TRUE(engine_->cancel("long"));
  EXPECT_EQ(sink->wait().choices[0].finish.reason, FinishReason::kCancelled);
  EXPECT_TRUE(engine_->drain(testing::kPatience));
  engine_->use_prefix_store(nullptr);
}

TEST_F(PrefixStoreTest, ItsReaderMayPauseItMeanwhile) {
  engine_->use_prefix_store(&slow_);
  const auto sink = submit(long_);
  engine_->pause("long");
  engine_->release("long");
  pass_by();
  EXPECT_TRUE(sink->peek().choices[0].tokens.empty()) << "paused";
  engine_->resume("long");
  expect_whole(sink);

  Request other = long_;
  other.id = "other";
  other.cache_salt = "other";
  const auto second = submit(other);
  engine_->pause("other");
  engine_->resume("other");
  pass_by();
  EXPECT_TRUE(second->peek().choices[0].tokens.empty()) << "waits for the store";
  engine_->release("other");
  expect_whole(second);
  engine_->use_prefix_store(nullptr);
}

// Rows of all prompt positions are wanted: what is cached is of no use.
TEST_F(PrefixStoreTest, PromptsThatNeedAllTheirRowsAreNotLookedUp) {
  engine_->use_prefix_store(&slow_);
  long_.sampling.num_prompt_logprobs = 0;
  expect_whole(submit(long_));
  EXPECT_EQ(slow_.lookups, 0);
  engine_->use_prefix_store(nullptr);
}

}  // namespace
}  // namespace bam
