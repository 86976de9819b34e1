// The life of requests on a real small model.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/engine_fixture.h"

namespace bam {
namespace {

using namespace std::chrono_literals;
using testing::CollectingSink;
using testing::kPatience;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_->path());
  }
  static void TearDownTestSuite() { delete dir_; }

  Engine& start(EngineConfig config = small_config()) {
    model_ = std::make_unique<TestModel>(dir_->path());
    engine_ = std::make_unique<Engine>(model_->load(), config, 7);
    return *engine_;
  }
  Outcome run(Request request) {
    auto sink = std::make_shared<CollectingSink>(request.n);
    const SubmitResult result = engine_->submit(std::move(request), sink);
    EXPECT_EQ(result.status, SubmitStatus::kAccepted) << result.message;
    return result.status == SubmitStatus::kAccepted ? sink->wait() : Outcome{};
  }
  void TearDown() override {
    engine_.reset();
    model_.reset();
  }

  std::mt19937 rng_{99};
  std::unique_ptr<TestModel> model_;
  std::unique_ptr<Engine> engine_;
  static TempDir* dir_;
};
TempDir* EngineTest::dir_ = nullptr;

TEST_F(EngineTest, GeneratesAndReportsUsage) {
  start();
  Request request = make_request("a", random_prompt(rng_, 150), 10);
  request.sampling.ignore_eos = true;
  const Outcome o = run(request);
  EXPECT_EQ(o.choices[0].tokens.size(), 10u);
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kLength);
  EXPECT_EQ(o.choices[0].finish.prompt_tokens, 150);
  EXPECT_EQ(o.choices[0].finish.cached_tokens, 0);
  const Outcome again = run(request);
  EXPECT_EQ(again.choices[0].tokens, o.choices[0].tokens);
  EXPECT_EQ(again.choices[0].finish.cached_tokens, 128);
  EXPECT_EQ(engine_->stats().prefix_hits.load(), 128u);
  EXPECT_EQ(engine_->stats().generated_tokens.load(), 20u);
}

TEST_F(EngineTest, GeneratedTokensAreCachedForTheNextTurn) {
  start();
  Request first = make_request("a", random_prompt(rng_, 100), 200);
  first.sampling.ignore_eos = true;
  const Outcome o = run(first);
  std::vector<int32_t> turn = first.prompt;
  turn.insert(turn.end(), o.choices[0].tokens.begin(), o.choices[0].tokens.end());
  turn.push_back(5);
  const Outcome next = run(make_request("b", turn, 1));
  // 299 of the 300 tokens were computed: four full blocks.
  EXPECT_EQ(next.choices[0].finish.cached_tokens, 256);
}

TEST_F(EngineTest, StopIdsEosAndMinTokens) {
  start();
  Request probe = make_request("a", random_prompt(rng_, 20), 12);
  probe.sampling.ignore_eos = true;
  const auto tokens = run(probe).choices[0].tokens;
  Request stop = probe;
  stop.sampling.stop_token_ids = {tokens[4]};
  const Outcome o = run(stop);
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[4]) - tokens.begin();
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kStop);
  EXPECT_EQ(o.choices[0].finish.stop_token, tokens[4]);
  EXPECT_EQ(static_cast<std::ptrdiff_t>(o.choices[0].tokens.size()), first + 1);
  stop.sampling.min_tokens = first + 3;
  const Outcome longer = run(stop);
  EXPECT_GE(static_cast<std::ptrdiff_t>(longer.choices[0].tokens.size()), first + 3);
}

TEST_F(EngineTest, ChoicesShareThePromptAndDiffer) {
  start();
  Request request = make_request("a", random_prompt(rng_, 130), 20);
  request.n = 4;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 5;
  request.sampling.ignore_eos = true;
  const Outcome o = run(request);
  EXPECT_NE(o.choices[0].tokens, o.choices[1].tokens);
  // Choice k of n equals choice k of fewer choices: the stream of one choice is its own.
  Request two = request;
  two.n = 2;
  const Outcome o2 = run(two);
  EXPECT_EQ(o.choices[1].tokens, o2.choices[1].tokens);
  EXPECT_EQ(engine_->stats().prompt_tokens.load(), 260u) << "each prompt was read once";
}

TEST_F(EngineTest, MoreChoicesThanSlotsWork) {
  EngineConfig config = small_config();
  config.max_num_seqs = 2;
  start(config);
  Request request = make_request("a", random_prompt(rng_, 70), 15);
  request.n = 5;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 11;
  const Outcome o = run(request);
  for (const auto& c : o.choices) EXPECT_TRUE(c.finished);
}

TEST_F(EngineTest, MaxTokensZeroReadsThePromptOnly) {
  start();
  Request request = make_request("a", random_prompt(rng_, 100), 0);
  request.sampling.num_prompt_logprobs = 1;
  const Outcome o = run(request);
  EXPECT_TRUE(o.choices[0].tokens.empty());
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kLength);
  EXPECT_EQ(o.prompt_logprobs.size(), 99u);
  // Prompt logprobs again: cached pages must not swallow them.
  EXPECT_EQ(run(request).prompt_logprobs.size(), 99u);
}

TEST_F(EngineTest, RefusesWhatCanNeverFitWithNumbers) {
  EngineConfig config = small_config();
  config.max_model_len = 1000;
  start(config);
  auto sink = std::make_shared<CollectingSink>();
  SubmitResult result = engine_->submit(make_request("a", random_prompt(rng_, 990), 11), sink);
  EXPECT_EQ(result.status, SubmitStatus::kInvalid);
  EXPECT_NE(result.message.find("maximum context length is 1000"), std::string::npos) << result.message;
  EXPECT_NE(result.message.find("1001 tokens (990 in the prompt, 11 for the completion)"), std::string::npos);
  result = engine_->submit(make_request("a", random_prompt(rng_, 10), INT64_MAX), sink);
  EXPECT_EQ(result.status, SubmitStatus::kInvalid);
  EXPECT_EQ(engine_->submit(make_request("a", {}, 1), sink).status, SubmitStatus::kInvalid);
  EXPECT_EQ(engine_->submit(make_request("a", {512}, 1), sink).status, SubmitStatus::kInvalid);
  EXPECT_EQ(engine_->submit(make_request("a", {-1}, 1), sink).status, SubmitStatus::kInvalid);
  EXPECT_EQ(run(make_request("b", random_prompt(rng_, 990), 10)).choices[0].finish.prompt_tokens, 990);
}

TEST_F(EngineTest, AutomaticLimitsComeFromTheMemory) {
  EngineConfig config = small_config(1 << 20);
  Engine& engine = start(config);
  EXPECT_GT(engine.capacity_tokens(), 1000);
  EXPECT_GT(engine.config().max_model_len, engine.capacity_tokens()) << "freed pages allow more than dense counting";
  EXPECT_LE(engine.config().kv_memory_bytes, 1u << 20);
  config.max_model_len = 100'000'000;
  EXPECT_THROW(Engine(TestModel(dir_->path()).load(), config, 7), UsageError);
  config.max_model_len = 0;
  config.kv_memory_bytes = 100;
  EXPECT_THROW(Engine(TestModel(dir_->path()).load(), config, 7), Error);
}

TEST_F(EngineTest, ALongRequestUsesLittleMoreThanItsReach) {
  // Longer than dense pages would allow: early freeing really returns memory.
  Engine& engine = start(small_config(1 << 20));
  const int64_t length = engine.config().max_model_len - 8;
  ASSERT_GT(length, engine.capacity_tokens());
  const Outcome o = run(make_request("a", random_prompt(rng_, length), 4));
  EXPECT_FALSE(o.choices[0].tokens.empty());
  EXPECT_GT(engine.stats().reach_freed_bytes.load(), 0u);
}

TEST_F(EngineTest, DuplicateIdsAndAFullQueueAreRefused) {
  EngineConfig config = small_config();
  config.max_num_seqs = 1;
  config.max_queue = 2;
  start(config);
  Request busy = make_request("busy", random_prompt(rng_, 50), 100'000);  // ends by cancel()
  busy.sampling.ignore_eos = true;
  auto running = std::make_shared<CollectingSink>();
  ASSERT_EQ(engine_->submit(busy, running).status, SubmitStatus::kAccepted);
  running->wait_for([](const Outcome& o) { return !o.choices[0].tokens.empty(); });
  EXPECT_EQ(engine_->submit(busy, running).status, SubmitStatus::kDuplicateId);
  std::vector<std::shared_ptr<CollectingSink>> waiting;
  const auto submit_waiting = [&](int i) {
    waiting.push_back(std::make_shared<CollectingSink>());
    return engine_->submit(make_request("w" + std::to_string(i), random_prompt(rng_, 50), 1), waiting.back());
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(submit_waiting(i).status, SubmitStatus::kAccepted);
  const SubmitResult last = submit_waiting(2);
  EXPECT_EQ(last.status, SubmitStatus::kQueueFull) << last.message;
  EXPECT_GT(last.retry_after_s, 0);
  EXPECT_TRUE(engine_->cancel("busy"));
  waiting[0]->wait(), waiting[1]->wait();
  EXPECT_EQ(running->wait().choices[0].finish.reason, FinishReason::kCancelled);
  EXPECT_FALSE(engine_->cancel("busy"));
  busy.sampling.max_tokens = 40;
  EXPECT_EQ(run(busy).choices[0].tokens.size(), 40u) << "the id is free again";
}

TEST_F(EngineTest, QueuedTokensAreLimitedButALoneGiantIsTaken) {
  EngineConfig config = small_config();
  config.max_num_seqs = 1;
  config.max_queued_tokens = 100;
  start(config);
  EXPECT_FALSE(run(make_request("giant", random_prompt(rng_, 500), 1)).choices[0].tokens.empty());
}

TEST_F(EngineTest, CancelInTheMiddleOfAPrefillFreesPagesAndTheRetryContinues) {
  EngineConfig config = small_config();
  config.step_target_ms = 0.5;  // many small steps
  Engine& engine = start(config);
  Request request = make_request("long", random_prompt(rng_, 20000), 2);
  auto sink = std::make_shared<CollectingSink>();
  sink->when([](const Outcome& o) { return !o.progress.empty() && o.progress.back().processed > 2000; },
             [&] { EXPECT_TRUE(engine.cancel("long")); });
  ASSERT_EQ(engine.submit(request, sink).status, SubmitStatus::kAccepted);
  const Outcome o = sink->wait();
  EXPECT_EQ(o.choices[0].finish.reason, FinishReason::kCancelled);
  ASSERT_TRUE(engine.drain(kPatience));
  const int64_t processed = o.progress.back().processed;
  EXPECT_LT(processed, 20000);
  const auto picture = engine.picture();
  EXPECT_EQ(picture->pages_used, 0);
  EXPECT_GT(picture->pages_cached, 0);
}

TEST_F(EngineTest, ASinkThatIsGoneCancelsAndTheRetryReportsCachedTokens) {
  EngineConfig config = small_config();
  config.step_target_ms = 0.5;
  start(config);
  Request request = make_request("long", random_prompt(rng_, 12000), 2);
  auto sink = std::make_shared<CollectingSink>();
  sink->when([](const Outcome& o) { return !o.progress.empty() && o.progress.back().processed > 1000; },
             [&] { sink->is_gone(); });
  ASSERT_EQ(engine_->submit(request, sink).status, SubmitStatus::kAccepted);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const auto cancelled = [&] { return engine_->stats().finished[static_cast<size_t>(FinishReason::kCancelled)] == 1; };
  // Snapshots are published now and then: the request is gone when it was counted and a later picture shows no page.
  while ((!cancelled() || engine_->picture()->running > 0 || engine_->picture()->pages_used > 0) &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(cancelled());
  EXPECT_EQ(engine_->picture()->pages_used, 0);
  const int64_t processed = sink->peek().progress.back().processed;
  EXPECT_LT(processed, 12000);
  request.id = "retry";
  const Outcome retry = run(request);
  EXPECT_GE(retry.choices[0].finish.cached_tokens, processed / 64 * 64);
  EXPECT_EQ(retry.progress.front().cached, retry.choices[0].finish.cached_tokens);
}

TEST_F(EngineTest, DrainLetsRunningWorkFinishAndRefusesNewWork) {
  start();
  Request request = make_request("a", random_prompt(rng_, 30), 50);
  request.sampling.ignore_eos = true;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_EQ(engine_->submit(request, sink).status, SubmitStatus::kAccepted);
  EXPECT_TRUE(engine_->drain(kPatience));
  EXPECT_EQ(sink->wait().choices[0].tokens.size(), 50u);
  EXPECT_EQ(engine_->submit(make_request("b", {5}, 1), sink).status, SubmitStatus::kDraining);
}

TEST_F(EngineTest, DestructionEndsEveryRequest) {
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 30; ++i) {
    Request request = make_request(std::to_string(i), random_prompt(rng_, 30), 100'000);
    request.sampling.ignore_eos = true;
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_EQ(engine_->submit(request, sinks.back()).status, SubmitStatus::kAccepted);
  }
  engine_.reset();
  for (auto& sink : sinks) EXPECT_EQ(sink->wait().choices[0].finish.reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, SnapshotsAndPredictionsDescribeLiveWork) {
  start();
  EXPECT_TRUE(engine_->healthy());
  Request request = make_request("live", random_prompt(rng_, 100), 200'000);  // ends by cancel_all()
  request.sampling.ignore_eos = true;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_EQ(engine_->submit(request, sink).status, SubmitStatus::kAccepted);
  const auto described = [&] {
    const auto s = engine_->picture();
    return !s->requests.empty() && s->requests[0].generated_tokens > 0;
  };
  const auto deadline = Clock::now() + kPatience;
  while (!described() && Clock::now() < deadline) std::this_thread::sleep_for(5ms);
  const auto s = engine_->picture();
  ASSERT_EQ(s->requests.size(), 1u);
  EXPECT_EQ(s->requests[0].id, "live");
  EXPECT_EQ(s->requests[0].prompt_tokens, 100);
  EXPECT_EQ(s->requests[0].state, RequestState::kDecode);
  EXPECT_GT(s->requests[0].generated_tokens, 0);
  EXPECT_EQ(s->pages_free + s->pages_cached + s->pages_used, s->pages_total);
  EXPECT_TRUE(engine_->healthy());
  EXPECT_GT(engine_->predict_ttft_s(10000), engine_->predict_ttft_s(100));
  engine_->cancel_all();
  sink->wait();
}

// --- one bad request ---

class NanTest : public ::testing::Test {
 protected:
  static constexpr int32_t kPoison = 300;
  NanTest() {
    testing::CheckpointSpec spec = testing::mixed_reach_spec();
    testing::write_checkpoint(spec, dir_.path());
    auto tensors = testing::make_tensors(spec);
    for (auto& tensor : tensors) {
      if (tensor.name != "tok_embeddings.weight") continue;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const size_t row = static_cast<size_t>(spec.config.hidden_size) * sizeof(float);
      for (size_t at = 0; at < row; at += sizeof(nan))
        std::memcpy(tensor.data.data() + kPoison * row + at, &nan, sizeof(nan));
    }
    testing::write_file(dir_ / "model.safetensors", testing::serialize_safetensors(tensors));
  }
  TempDir dir_;
};

TEST_F(NanTest, ANanRequestFailsAloneAndLeavesNothingBehind) {
  TestModel model(dir_.path(), {1, 512, 64, false});
  Engine engine(model.load(), small_config(4 << 20), 7);
  std::mt19937 rng(4);
  const auto clean_prompt = [&](int64_t n) {
    auto prompt = random_prompt(rng, n);
    for (int32_t& t : prompt) t = t == kPoison ? 5 : t;
    return prompt;
  };
  const auto run = [&](const Request& r) {
    auto sink = std::make_shared<CollectingSink>(r.n);
    EXPECT_EQ(engine.submit(r, sink).status, SubmitStatus::kAccepted);
    return sink;
  };
  std::vector<Request> good;
  std::vector<Outcome> expected;
  for (int i = 0; i < 6; ++i) {
    Request r = make_request("g" + std::to_string(i), clean_prompt(50 + 60 * i), 30);
    r.sampling.ignore_eos = true;
    r.sampling.logit_bias = {{kPoison, -100.0f}};
    r.sampling.num_logprobs = 1;
    good.push_back(r);
    expected.push_back(run(r)->wait());
    EXPECT_EQ(expected.back().choices[0].finish.reason, FinishReason::kLength);
  }
  for (int round = 0; round < 4; ++round) {
    // The poison comes late, so that blocks before it are published before anybody knows.
    auto bad_prompt = good[5].prompt;
    const auto tail = clean_prompt(700);
    bad_prompt.insert(bad_prompt.end(), tail.begin(), tail.end());
    bad_prompt[bad_prompt.size() - 40 + static_cast<size_t>(round) * 10] = kPoison;
    Request bad = make_request("bad", bad_prompt, 5);
    bad.n = 2;
    auto bad_sink = run(bad);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const Request& r : good) sinks.push_back(run(r));
    const Outcome failed = bad_sink->wait();
    for (const auto& choice : failed.choices) {
      EXPECT_EQ(choice.finish.reason, FinishReason::kError);
      EXPECT_NE(choice.finish.message.find("NaN"), std::string::npos) << choice.finish.message;
    }
    for (size_t i = 0; i < sinks.size(); ++i) {
      const Outcome o = sinks[i]->wait();
      EXPECT_EQ(o.choices[0].tokens, expected[i].choices[0].tokens) << i;
      EXPECT_TRUE(testing::same_logprobs(o.choices[0].logprobs, expected[i].choices[0].logprobs)) << i;
    }
    auto retry = run(bad);
    // Shares the blocks of good[5] only; what the bad request computed itself is gone.
    EXPECT_LE(retry->wait().choices[0].finish.cached_tokens, 64 * 6);
  }
  ASSERT_TRUE(engine.drain(kPatience));
  EXPECT_EQ(engine.picture()->pages_used, 0);
}

}  // namespace
}  // namespace bam
