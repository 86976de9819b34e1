// Batch invariance on a real model: tokens and logprobs of a request are the same bits whatever else runs, however
// memory, chunks, pages and threads are arranged, and with and without drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <thread>

#include "engine/kv_geometry.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/mixed_requests.h"
#include "tests/support/manual_time.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::expect_same;
using testing::make_request;
using testing::mixed_requests;
using testing::Outcome;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

// The plain way: nothing in common, nothing guessed.
std::vector<Outcome> run_one_by_one(const std::filesystem::path& checkpoint, EngineConfig config,
                                    const std::vector<Request>& requests) {
  config.prefix_cache = false;
  config.drafts = false;
  TestModel model(checkpoint);
  Engine engine(model.load(), config, 7);
  std::vector<Outcome> outcomes;
  for (const Request& request : requests) {
    auto sink = std::make_shared<CollectingSink>(request.n);
    EXPECT_EQ(engine.submit(request, sink).status, SubmitStatus::kAccepted);
    outcomes.push_back(sink->wait());
  }
  return outcomes;
}

struct Totals {
  explicit Totals(const EngineStats& stats)
      : preemptions(stats.preemptions.load()),
        reach_freed_bytes(stats.reach_freed_bytes.load()),
        pauses(stats.pauses.load()),
        accepted(stats.drafts_accepted.load()),
        rejected(stats.drafts_proposed.load() - accepted) {}
  uint64_t preemptions, reach_freed_bytes, pauses, accepted, rejected;
};

// A reader that stops reading after every few events; somebody else resumes it.
class SlowSink : public CollectingSink {
 public:
  SlowSink(Engine& engine, const Request& request, uint32_t seed)
      : CollectingSink(request.n), engine_(engine), id_(request.id), rng_(seed) {}
  bool on_events(std::vector<Event>&& events) override {
    if (rng_() % 8 == 0) engine_.pause(id_);
    return CollectingSink::on_events(std::move(events));
  }

 private:
  Engine& engine_;
  std::string id_;
  std::mt19937 rng_;
};

// Everything at once, each request paused again and again; resumed in a random order, sometimes for no reason.
Totals run_with_pauses(const std::filesystem::path& checkpoint, EngineConfig config,
                       const std::vector<Request>& requests, const std::vector<Outcome>& expected, uint32_t seed) {
  TestModel model(checkpoint, {2});
  Engine engine(model.load(), config, 7);
  std::vector<std::shared_ptr<SlowSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<SlowSink>(engine, request, seed + static_cast<uint32_t>(sinks.size())));
    EXPECT_EQ(engine.submit(request, sinks.back()).status, SubmitStatus::kAccepted);
  }
  std::mt19937 rng(seed);
  while (!std::ranges::all_of(sinks, [](const auto& sink) { return sink->peek().done(); })) {
    engine.resume(requests[rng() % requests.size()].id);
    std::this_thread::yield();
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests[i], expected[i], sinks[i]->wait());
  EXPECT_TRUE(engine.drain(testing::kPatience));
  EXPECT_EQ(engine.picture()->pages_used, 0);
  return Totals(engine.stats());
}

// Submits everything in a random order with random pauses and compares with the one-by-one runs.
Totals run_together(const std::filesystem::path& checkpoint, EngineConfig config, const std::vector<Request>& requests,
                    const std::vector<Outcome>& expected, int threads, int rounds, uint32_t seed) {
  TestModel model(checkpoint, {threads});
  Engine engine(model.load(), config, 7);
  std::mt19937 rng(seed);
  for (int round = 0; round < rounds; ++round) {
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<std::shared_ptr<CollectingSink>> sinks(requests.size());
    for (const size_t i : order) {
      sinks[i] = std::make_shared<CollectingSink>(requests[i].n);
      const SubmitResult result = engine.submit(requests[i], sinks[i]);
      EXPECT_EQ(result.status, SubmitStatus::kAccepted) << result.message;
      if (rng() % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(rng() % 4));
    }
    for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests[i], expected[i], sinks[i]->wait());
  }
  EXPECT_TRUE(engine.drain(testing::kPatience));
  const auto picture = engine.picture();
  EXPECT_EQ(picture->pages_free + picture->pages_cached, picture->pages_total);
  return Totals(engine.stats());
}

// Holds the engine up until everybody is there.
class GateSink : public CollectingSink {
 public:
  bool on_events(std::vector<Event>&& events) override {
    open_.wait();
    return CollectingSink::on_events(std::move(events));
  }
  void open() { open_.count_down(); }

 private:
  std::latch open_{1};
};

// Everything in one moment and without a clock, so that the schedule is the same on every machine. The preemptions.
uint64_t run_crowded(const std::filesystem::path& checkpoint, EngineConfig config, const std::vector<Request>& requests,
                     const std::vector<Outcome>& expected, int threads) {
  TestModel model(checkpoint, {threads});
  testing::ManualTime time;
  Engine engine(model.load(), config, 7, time);
  auto gate = std::make_shared<GateSink>();
  EXPECT_EQ(engine.submit(make_request("gate", {5}, 1), gate).status, SubmitStatus::kAccepted);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>(request.n));
    EXPECT_EQ(engine.submit(request, sinks.back()).status, SubmitStatus::kAccepted);
  }
  gate->open();
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests[i], expected[i], sinks[i]->wait());
  const Totals totals(engine.stats());
  EXPECT_EQ(totals.accepted > 50, config.drafts) << totals.accepted;
  EXPECT_EQ(totals.rejected > 50, config.drafts) << totals.rejected;
  return totals.preemptions;
}

class Invariance : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_->path());
    requests_ = new std::vector<Request>(mixed_requests());
    expected_ = new std::vector<Outcome>(run_one_by_one(dir_->path(), small_config(), *requests_));
  }
  static void TearDownTestSuite() {
    delete expected_;
    delete requests_;
    delete dir_;
  }

  uint64_t run(EngineConfig config, int threads, int rounds, uint32_t seed) {
    const Totals totals = run_together(dir_->path(), config, *requests_, *expected_, threads, rounds, seed);
    EXPECT_GT(totals.reach_freed_bytes, 0u);
    return totals.preemptions;
  }

  // Just enough memory for the longest request alone, in the given pages.
  uint64_t tight_memory(int page_size, int64_t spare_pages, DType dtype = DType::kF16) {
    TestModel model(dir_->path());
    const auto loaded = model.load();
    int64_t longest = 0;
    for (const Request& r : *requests_) {
      longest = std::max(longest, static_cast<int64_t>(r.prompt.size()) + r.sampling.max_tokens);
    }
    const KvGeometry geometry(page_size, loaded->group_reach(), 512);
    const KvLayout layout = make_kv_layout(dtype, static_cast<int>(loaded->config().head_dim), page_size);
    return static_cast<uint64_t>(geometry.pages_for(longest) + spare_pages) * layout.page_bytes();
  }

  static TempDir* dir_;
  static std::vector<Request>* requests_;
  static std::vector<Outcome>* expected_;
};
TempDir* Invariance::dir_ = nullptr;
std::vector<Request>* Invariance::requests_ = nullptr;
std::vector<Outcome>* Invariance::expected_ = nullptr;

TEST_F(Invariance, TheModelFreesPagesOfSomeGroupsOnly) {
  TestModel model(dir_->path());
  const auto reach = model.load()->group_reach();
  EXPECT_TRUE(std::ranges::any_of(reach, [](int64_t r) { return r >= 0 && r < 400; }));
  EXPECT_TRUE(std::ranges::any_of(reach, [](int64_t r) { return r < 0; }));
}

TEST_F(Invariance, OneByOneRunsAreSane) {
  for (size_t i = 0; i < requests_->size(); ++i) {
    const Request& r = (*requests_)[i];
    const Outcome& o = (*expected_)[i];
    EXPECT_TRUE(o.in_order);
    for (const auto& c : o.choices) {
      EXPECT_TRUE(c.finish.reason == FinishReason::kLength || c.finish.reason == FinishReason::kStop)
          << c.finish.message;
      EXPECT_EQ(c.finish.generated_tokens, static_cast<int64_t>(c.tokens.size()));
      EXPECT_EQ(c.logprobs.size(), c.tokens.size());
    }
    const size_t prompt_rows = r.sampling.num_prompt_logprobs >= 0 ? r.prompt.size() - 1 : 0;
    EXPECT_EQ(o.prompt_logprobs.size(), prompt_rows);
    ASSERT_FALSE(o.progress.empty());
    EXPECT_EQ(o.progress.back().processed, static_cast<int64_t>(r.prompt.size()));
  }
}

TEST_F(Invariance, Together) { run(small_config(), 1, 2, 1); }

TEST_F(Invariance, InOneMoment) { run_crowded(dir_->path(), small_config(), *requests_, *expected_, 2); }

TEST_F(Invariance, TogetherWithoutDrafts) {
  EngineConfig config = small_config();
  config.drafts = false;
  run(config, 2, 2, 10);
}

TEST_F(Invariance, TogetherWithoutPrefixCache) {
  EngineConfig config = small_config();
  config.prefix_cache = false;
  run(config, 1, 1, 2);
}

TEST_F(Invariance, SmallChunksAndTwoThreads) {
  EngineConfig config = small_config();
  config.max_batched_tokens = 37;
  config.step_target_ms = 1;
  run(config, 2, 1, 3);
}

TEST_F(Invariance, LargerPages) {
  EngineConfig config = small_config();
  config.page_size = 128;
  run(config, 2, 2, 4);
}

TEST_F(Invariance, FewSlots) {
  EngineConfig config = small_config();
  config.max_num_seqs = 2;
  run(config, 1, 2, 5);
}

TEST_F(Invariance, ConstantPreemption) {
  for (const int page_size : {64, 128}) {
    EngineConfig config = small_config(tight_memory(page_size, 3));
    config.page_size = page_size;
    run(config, 1, 1, 6);
    run_crowded(dir_->path(), config, *requests_, *expected_, 1);
    config.drafts = false;
    // The schedule is always the same: 3 with large pages, far more with small ones.
    EXPECT_GE(run_crowded(dir_->path(), config, *requests_, *expected_, 1), page_size == 64 ? 20u : 3u);
  }
}

TEST_F(Invariance, ConstantPreemptionWithoutPrefixCache) {
  EngineConfig config = small_config(tight_memory(64, 3));
  config.prefix_cache = false;
  run_crowded(dir_->path(), config, *requests_, *expected_, 2);
  config.drafts = false;
  EXPECT_GT(run_crowded(dir_->path(), config, *requests_, *expected_, 2), 10u);
}

TEST_F(Invariance, RandomPauses) {
  const Totals roomy = run_with_pauses(dir_->path(), small_config(), *requests_, *expected_, 40);
  EXPECT_GT(roomy.pauses, 30u);
  EngineConfig config = small_config(tight_memory(64, 3));
  const Totals tight = run_with_pauses(dir_->path(), config, *requests_, *expected_, 41);
  EXPECT_GT(tight.pauses, 30u);
  config.max_num_seqs = 2;
  config.prefix_cache = false;
  EXPECT_GT(run_with_pauses(dir_->path(), config, *requests_, *expected_, 42).pauses, 30u);
}

// All but one token of a prompt are in the cache: its row is a decode row, and the row that all choices begin with.
TEST_F(Invariance, ChoicesThatBeginWithOneRow) {
  std::mt19937 rng(77);
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) {
    Request r = make_request("r" + std::to_string(i), testing::random_prompt(rng, 125), 60);
    for (const int32_t token : {11, 12, 13, 11}) r.prompt.push_back(token);
    r.n = 3;
    r.sampling.temperature = 1;
    r.sampling.seed = 31 + static_cast<uint64_t>(i);
    testing::narrow(r.sampling);
    r.draft.ngram = 1;
    requests.push_back(std::move(r));
  }
  const auto expected = run_one_by_one(dir_->path(), small_config(), requests);
  const Totals totals = run_together(dir_->path(), small_config(), requests, expected, 1, 3, 11);
  EXPECT_GT(totals.accepted, 0u);
}

TEST_F(Invariance, EveryKvDtype) {
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI4}) {
    SCOPED_TRACE(dtype_name(dtype));
    EngineConfig config = small_config();
    config.kv_dtype = dtype;
    const auto expected = run_one_by_one(dir_->path(), config, *requests_);
    config.kv_memory_bytes = tight_memory(64, 8, dtype);
    config.max_batched_tokens = 100;
    run_together(dir_->path(), config, *requests_, expected, 2, 2, 8);
    run_crowded(dir_->path(), config, *requests_, expected, 2);
  }
}

TEST_F(Invariance, EveryPositionEncoding) {
  for (const PositionEncoding encoding :
       {PositionEncoding::kAlibi, PositionEncoding::kNope, PositionEncoding::kRope, PositionEncoding::kRopeLocal,
        PositionEncoding::kSinusoidal, PositionEncoding::kT5, PositionEncoding::kBam}) {
    SCOPED_TRACE(position_encoding_name(encoding));
    TempDir dir;
    testing::CheckpointSpec spec;
    spec.config = testing::tiny_config(encoding, encoding != PositionEncoding::kBam);
    testing::write_checkpoint(spec, dir.path());
    EngineConfig config = small_config();
    const auto expected = run_one_by_one(dir.path(), config, *requests_);
    config.max_batched_tokens = 90;
    config.kv_memory_bytes = 1 << 20;
    run_together(dir.path(), config, *requests_, expected, 2, 1, 9);
  }
}

}  // namespace
}  // namespace bam
