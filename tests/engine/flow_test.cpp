// Stop, pause and resume, deadlines and the count of the queue, on a real model and with time that the tests move.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

#include "tests/engine/engine_fixture.h"
#include "tests/support/manual_time.h"

namespace bam {
namespace {

using namespace std::chrono_literals;
using testing::CollectingSink;
using testing::make_request;
using testing::ManualTime;
using testing::Outcome;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

// Pauses its own request each time it has got `every` more tokens.
class PausingSink : public CollectingSink {
 public:
  PausingSink(Engine& engine, std::string id, int64_t every, int32_t n = 1)
      : CollectingSink(n), engine_(engine), id_(std::move(id)), every_(every) {}

  bool on_events(std::vector<Event>&& events) override {
    const auto tokens =
        std::ranges::count_if(events, [](const Event& e) { return std::holds_alternative<TokenEvent>(e); });
    const int64_t before = tokens_.fetch_add(tokens);
    if (before / every_ != (before + tokens) / every_) engine_.pause(id_);
    return CollectingSink::on_events(std::move(events));
  }
  int64_t tokens() const { return tokens_; }

 private:
  Engine& engine_;
  std::string id_;
  int64_t every_;
  std::atomic<int64_t> tokens_{0};
};

class FlowTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_->path());
  }
  static void TearDownTestSuite() { delete dir_; }

  Engine& start(EngineConfig config = small_config()) {
    engine_ = std::make_unique<Engine>(model_.load(), config, 7, time_);
    return *engine_;
  }
  std::shared_ptr<CollectingSink> submit(const Request& request) {
    auto sink = std::make_shared<CollectingSink>(request.n);
    const SubmitResult result = engine_->submit(request, sink);
    EXPECT_EQ(result.status, SubmitStatus::kAccepted) << result.message;
    return sink;
  }
  Request endless(const std::string& id, int64_t max_tokens = 100'000) {
    Request request = make_request(id, random_prompt(rng_, 90), max_tokens);
    request.sampling.ignore_eos = true;
    return request;
  }
  // Nothing can happen until somebody calls the engine or moves the clock.
  void wait_until_paused(int64_t requests) {
    while (engine_->picture()->paused != requests || engine_->picture()->running > 0) std::this_thread::yield();
  }
  uint64_t finished(FinishReason reason) { return engine_->stats().finished[static_cast<size_t>(reason)].load(); }

  std::mt19937 rng_{7};
  ManualTime time_;
  TestModel model_{dir_->path()};
  std::unique_ptr<Engine> engine_;
  static TempDir* dir_;
};
TempDir* FlowTest::dir_ = nullptr;

TEST_F(FlowTest, StopEndsOneChoiceAtOnceAndCountsAsAStop) {
  start();
  Request request = endless("a");
  request.n = 3;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 3;
  auto sink = submit(request);
  sink->wait_for([](const Outcome& o) { return o.choices[1].tokens.size() >= 5; });
  EXPECT_TRUE(engine_->stop("a", 1));
  sink->wait_for([](const Outcome& o) { return o.choices[1].finished; });
  const size_t then = sink->peek().choices[0].tokens.size();
  sink->wait_for(
      [&](const Outcome& o) { return std::min(o.choices[0].tokens.size(), o.choices[2].tokens.size()) >= then + 20; });
  EXPECT_TRUE(engine_->stop("a", 0));
  EXPECT_TRUE(engine_->cancel("a"));
  const Outcome o = sink->wait();
  EXPECT_TRUE(o.in_order);
  EXPECT_EQ(o.choices[1].finish.reason, FinishReason::kStop);
  EXPECT_EQ(o.choices[1].finish.stop_token, -1);
  EXPECT_EQ(o.choices[1].finish.generated_tokens, static_cast<int64_t>(o.choices[1].tokens.size()));
  EXPECT_LT(o.choices[1].tokens.size(), o.choices[2].tokens.size()) << "it was stopped while the others went on";
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kStop);
  EXPECT_EQ(o.choices[2].finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(finished(FinishReason::kStop), 2u);
  EXPECT_EQ(finished(FinishReason::kCancelled), 1u);
  EXPECT_FALSE(engine_->stop("a", 0)) << "it is over";
}

TEST_F(FlowTest, StoppingWhatIsNotThereDoesNothing) {
  start();
  Request request = endless("a");
  request.n = 2;
  auto sink = submit(request);
  sink->wait_for([](const Outcome& o) { return !o.choices[0].tokens.empty(); });
  EXPECT_FALSE(engine_->stop("b", 0));
  engine_->stop("a", -1), engine_->stop("a", 2);
  engine_->stop("a", 1), engine_->stop("a", 1);
  engine_->cancel("a");
  const Outcome o = sink->wait();
  EXPECT_TRUE(o.in_order);
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(o.choices[1].finish.reason, FinishReason::kStop);
}

// Before the prompt is read there is no text that could have ended.
TEST_F(FlowTest, AStopThatComesTooEarlyDoesNothing) {
  EngineConfig config = small_config();
  config.max_num_seqs = 1;
  start(config);
  auto first = submit(endless("first"));
  first->wait_for([](const Outcome& o) { return !o.choices[0].tokens.empty(); });
  Request waiting = endless("waiting", 30);
  waiting.n = 2;
  auto sink = submit(waiting);
  EXPECT_TRUE(engine_->stop("waiting", 0));
  engine_->cancel("first");
  const Outcome o = sink->wait();
  for (const auto& choice : o.choices) EXPECT_EQ(choice.tokens.size(), 30u);
}

TEST_F(FlowTest, APausedRequestRestsUntilItIsResumedAndWritesTheSameText) {
  start();
  Request request = endless("a", 120);
  request.sampling.temperature = 0.9f;
  request.sampling.seed = 12;
  const Outcome expected = submit(request)->wait();
  auto sink = std::make_shared<PausingSink>(*engine_, "a", 10);
  ASSERT_EQ(engine_->submit(request, sink).status, SubmitStatus::kAccepted);
  for (int64_t tokens = 10; tokens < 120; tokens += 10) {
    while (sink->tokens() < tokens) std::this_thread::yield();
    wait_until_paused(1);
    ASSERT_EQ(sink->tokens(), tokens) << "a sink that pauses gets nothing more";
    const auto report = engine_->picture();
    ASSERT_EQ(report->requests.size(), 1u);
    EXPECT_EQ(report->requests[0].state, RequestState::kPaused);
    EXPECT_GT(report->pages_used, 0) << "it keeps its pages";
    EXPECT_TRUE(engine_->resume("a"));
  }
  const Outcome o = sink->wait();
  EXPECT_EQ(o.choices[0].tokens, expected.choices[0].tokens);
  EXPECT_EQ(engine_->stats().preemptions.load(), 0u);
  EXPECT_GE(engine_->stats().pauses.load(), 11u);
}

TEST_F(FlowTest, TheEngineSleepsAndStaysHealthyWhenAllIsPaused) {
  start();
  auto sink = std::make_shared<PausingSink>(*engine_, "a", 5);
  ASSERT_EQ(engine_->submit(endless("a"), sink).status, SubmitStatus::kAccepted);
  wait_until_paused(1);
  const uint64_t steps = engine_->stats().steps.load();
  for (int hour = 0; hour < 24; ++hour) {
    time_.advance(1h);
    EXPECT_TRUE(engine_->healthy());
    EXPECT_EQ(engine_->picture()->last_step_age_s, 0);
  }
  // Others come and go meanwhile.
  EXPECT_EQ(submit(endless("b", 20))->wait().choices[0].tokens.size(), 20u);
  wait_until_paused(1);
  EXPECT_EQ(engine_->stats().steps.load(), steps + 20) << "one step for each token of the other request";
  EXPECT_EQ(sink->tokens(), 5);
  EXPECT_TRUE(engine_->cancel("a"));
  EXPECT_EQ(sink->wait().choices[0].finish.reason, FinishReason::kCancelled);
  EXPECT_TRUE(engine_->drain(1s));
  EXPECT_EQ(engine_->picture()->pages_used, 0);
}

TEST_F(FlowTest, DeadlinesAndDrainRunOnWhilePaused) {
  start();
  Request request = endless("a");
  request.timeout = 5s;
  auto sink = std::make_shared<PausingSink>(*engine_, "a", 5);
  ASSERT_EQ(engine_->submit(request, sink).status, SubmitStatus::kAccepted);
  wait_until_paused(1);
  time_.advance(4999ms);
  EXPECT_FALSE(engine_->drain(0ms)) << "it is still there";
  std::thread drain([&] { EXPECT_TRUE(engine_->drain(1h)); });
  time_.advance(1ms);
  EXPECT_EQ(sink->wait().choices[0].finish.reason, FinishReason::kTimeout);
  drain.join();
}

TEST_F(FlowTest, DrainGivesUpAfterItsTime) {
  start();
  auto sink = std::make_shared<PausingSink>(*engine_, "a", 5);
  ASSERT_EQ(engine_->submit(endless("a"), sink).status, SubmitStatus::kAccepted);
  wait_until_paused(1);
  std::atomic<bool> over{false};
  std::thread drain([&] {
    EXPECT_FALSE(engine_->drain(10s));
    over = true;
  });
  // New work is refused from then on: the drain has begun and the clock may move.
  while (engine_->submit(make_request("b", {5}, 1), std::make_shared<CollectingSink>()).status !=
         SubmitStatus::kDraining) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(over);
  while (!over) time_.advance(1s);
  drain.join();
}

TEST_F(FlowTest, DeadlinesEndRunningAndQueuedRequests) {
  EngineConfig config = small_config();
  config.max_num_seqs = 1;
  start(config);
  Request slow = endless("slow"), queued = endless("queued");
  slow.timeout = 150ms;
  queued.timeout = 40ms;
  auto a = submit(slow), b = submit(queued);
  a->wait_for([](const Outcome& o) { return !o.choices[0].tokens.empty(); });
  time_.advance(40ms);
  const Outcome first = b->wait();
  EXPECT_EQ(first.choices[0].finish.reason, FinishReason::kTimeout);
  EXPECT_TRUE(first.choices[0].tokens.empty());
  EXPECT_FALSE(a->peek().done());
  time_.advance(110ms);
  const Outcome second = a->wait();
  EXPECT_EQ(second.choices[0].finish.reason, FinishReason::kTimeout);
  EXPECT_NE(second.choices[0].finish.message, "");
}

// Allows everything until it has had enough.
class TiringConstraint final : public TokenConstraint {
 public:
  explicit TiringConstraint(int patience) : patience_(patience), left_(patience) {}
  void allowed_tokens(std::span<uint32_t> allowed) override {
    if (left_ > 0) std::ranges::fill(allowed, ~0u);
  }
  void accept(int32_t) override { --left_; }
  std::string_view failure() const override { return left_ > 0 ? "" : "the constraint is too expensive"; }
  bool finished() const override { return false; }
  std::unique_ptr<TokenConstraint> clone_initial() const override {
    return std::make_unique<TiringConstraint>(patience_);
  }

 private:
  int patience_, left_;
};

TEST_F(FlowTest, AConstraintThatGivesUpEndsItsRequestAlone) {
  start();
  Request request = endless("a", 100), other = endless("b", 100);
  request.constraint = std::make_shared<TiringConstraint>(7);
  auto a = submit(request), b = submit(other);
  const Outcome failed = a->wait();
  EXPECT_EQ(failed.choices[0].tokens.size(), 7u);
  EXPECT_EQ(failed.choices[0].finish.reason, FinishReason::kError);
  EXPECT_EQ(failed.choices[0].finish.message, "the constraint is too expensive");
  EXPECT_EQ(b->wait().choices[0].finish.reason, FinishReason::kLength);
}

TEST_F(FlowTest, QueueTimeoutsGoByTheClock) {
  EngineConfig config = small_config();
  config.max_num_seqs = 1;
  config.queue_timeout_s = 2;
  start(config);
  auto running = std::make_shared<PausingSink>(*engine_, "running", 1'000'000);
  ASSERT_EQ(engine_->submit(endless("running"), running).status, SubmitStatus::kAccepted);
  while (running->tokens() == 0) std::this_thread::yield();
  auto waiting = submit(endless("waiting"));
  time_.advance(3s);  // the only slot is taken
  const Outcome o = waiting->wait();
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kTimeout);
  EXPECT_TRUE(o.choices[0].tokens.empty());
  engine_->cancel("running");
  running->wait();
}

// Holds the engine thread inside the delivery of some event until a client has acted on it.
class HandOverSink : public CollectingSink {
 public:
  explicit HandOverSink(bool at_first_token) : at_first_token_(at_first_token) {}
  bool on_events(std::vector<Event>&& events) override {
    const bool due = std::ranges::any_of(events, [&](const Event& e) {
      return at_first_token_ ? std::holds_alternative<TokenEvent>(e) : std::holds_alternative<FinishEvent>(e);
    });
    const bool more = CollectingSink::on_events(std::move(events));
    if (due && !handed_over_.exchange(true)) {
      reached_.count_down();
      acted_.wait();
    }
    return more;
  }
  void wait_until_reached() { reached_.wait(); }
  void go_on() { acted_.count_down(); }

 private:
  bool at_first_token_;
  std::atomic<bool> handed_over_{false};
  std::latch reached_{1}, acted_{1};
};

TEST_F(FlowTest, WhoHasItsReplyOrRunsIsNotCountedInTheQueue) {
  EngineConfig config = small_config();
  config.max_num_seqs = 1;
  config.max_queue = 1;
  config.max_queued_tokens = 150;
  start(config);
  for (const bool at_first_token : {true, false}) {
    auto first = std::make_shared<HandOverSink>(at_first_token);
    ASSERT_EQ(engine_->submit(endless("first", at_first_token ? 30 : 1), first).status, SubmitStatus::kAccepted);
    first->wait_until_reached();
    auto second = std::make_shared<CollectingSink>();
    const SubmitResult result = engine_->submit(endless("second", 2), second);
    EXPECT_EQ(result.status, SubmitStatus::kAccepted) << result.message;
    EXPECT_EQ(engine_->submit(endless("third", 2), second).status, SubmitStatus::kQueueFull);
    first->go_on();
    first->wait(), second->wait();
  }
}

}  // namespace
}  // namespace bam
