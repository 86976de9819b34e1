// Stages on several ranks: the texts, logprobs and pages of one machine, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "tests/engine/pipeline_fixture.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::expect_conserved;
using testing::expect_same;
using testing::make_request;
using testing::Outcome;
using testing::Pipeline;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;

using testing::run_all;
using testing::Tap;

using PipelineTest = testing::PipelineSuite;

TEST_F(PipelineTest, EveryNumberOfStagesGivesTheSameBits) {
  const auto one = said_by_one(small_config());
  for (const int stages : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(stages) + " stages");
    Pipeline pipeline(checkpoint(), small_config(), stages);
    for (uint32_t round = 0; round < 2; ++round) {  // the second one finds prefixes
      const auto got = run_all(pipeline.engine(), requests(), round);
      expect_all(one, got);
    }
    EXPECT_GT(pipeline.engine().stats().prefix_hits.load(), 1000u);
    EXPECT_GT(pipeline.engine().stats().reach_freed_bytes.load(), 0u);
    EXPECT_GT(pipeline.engine().stats().drafts_accepted.load(), 0u);
    EXPECT_GT(pipeline.engine().stats().drafts_proposed.load(), pipeline.engine().stats().drafts_accepted.load());
    expect_conserved(pipeline.engine());
    EXPECT_EQ(pipeline.engine().picture()->stages.size(), static_cast<size_t>(stages));
    for (const std::string& error : pipeline.shut_down()) EXPECT_EQ(error, "");
  }
}

TEST_F(PipelineTest, EveryKvFormat) {
  const auto backend = make_cpu_backend({.num_threads = 1});
  int formats = 0;
  for (const DType dtype : kKvDtypes) {
    if (!backend->supports_kv(dtype)) continue;
    ++formats;
    SCOPED_TRACE(dtype_name(dtype));
    EngineConfig config = small_config();
    config.kv_dtype = dtype;
    const auto one = said_by_one(config);
    config.max_batched_tokens = 100;
    for (const int stages : {2, 3, 4}) {
      Pipeline pipeline(checkpoint(), config, stages);
      expect_all(one, run_all(pipeline.engine(), requests(), static_cast<uint32_t>(stages)));
    }
  }
  EXPECT_GE(formats, 4);
}

// Nobody wants log-probabilities here, so the last rank draws by itself.
TEST_F(PipelineTest, TokensAreDrawnWhereTheLogitsAre) {
  std::vector<Request> plain = requests();
  std::erase_if(plain, [](const Request& r) { return r.constraint || r.sampling.num_prompt_logprobs >= 0 || r.n > 1; });
  for (Request& r : plain) r.sampling.num_logprobs = -1;
  ASSERT_GT(plain.size(), 6u);
  const auto one = said_by_one(small_config(), plain);
  int64_t tokens = 0;
  for (const Outcome& o : one) tokens += static_cast<int64_t>(o.choices[0].tokens.size());
  int64_t bytes[2] = {};
  for (const bool draws : {false, true}) {
    EngineConfig config = small_config();
    config.device_sampling = draws;
    Tap tap;
    Pipeline pipeline(checkpoint(), config, 3, steady_time(), tapped(tap));
    expect_all(one, run_all(pipeline.engine(), plain), plain);
    bytes[draws] = tap.sent(Channel::kDone);
    if (draws) continue;
    EXPECT_GT(bytes[draws], tokens * pipeline.engine().model_config().vocab_size * 4);
  }
  EXPECT_LT(bytes[1], bytes[0] / 4) << "no logits go over";
}

TEST_F(PipelineTest, LittleMemoryAndFewSlots) {
  uint64_t preemptions = 0;
  const auto one = said_by_one(small_config());
  for (const int stages : {2, 4}) {
    EngineConfig config = small_config();
    config.kv_memory_bytes = stages == 2 ? 600 << 10 : 300 << 10;
    config.max_num_seqs = 4;
    Pipeline pipeline(checkpoint(), config, stages);
    const auto got = run_all(pipeline.engine(), requests(), 5);
    expect_all(one, got);
    preemptions += pipeline.engine().stats().preemptions.load();
    expect_conserved(pipeline.engine());
  }
  EXPECT_GT(preemptions, 0u);
}

TEST_F(PipelineTest, PausesAndCancels) {
  const auto one = said_by_one(small_config());
  Pipeline pipeline(checkpoint(), small_config(), 3);
  Engine& engine = pipeline.engine();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests()) {
    sinks.push_back(std::make_shared<CollectingSink>(request.n));
    ASSERT_EQ(engine.submit(request, sinks.back()).status, SubmitStatus::kAccepted);
    Request other = request;
    other.id += "-cancelled";
    ASSERT_EQ(engine.submit(other, std::make_shared<CollectingSink>(other.n)).status, SubmitStatus::kAccepted);
  }
  std::mt19937 rng(6);
  while (!std::ranges::all_of(sinks, [](const auto& sink) { return sink->peek().done(); })) {
    const std::string& id = requests()[rng() % requests().size()].id;
    if (rng() % 2) engine.pause(id);
    for (int i = 0; i < 3; ++i) engine.resume(requests()[rng() % requests().size()].id);
    engine.cancel(requests()[rng() % requests().size()].id + "-cancelled");
    std::this_thread::yield();
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests()[i], one[i], sinks[i]->wait());
  engine.cancel_all();
  expect_conserved(engine);
}

TEST_F(PipelineTest, SnapshotsDoNotCareAboutTheSplit) {
  TempDir kv_dir;
  std::mt19937 rng(9);
  const auto document = random_prompt(rng, 900);
  EngineConfig config = small_config();
  config.kv_dir = kv_dir.path();
  Outcome first;
  for (const int saved_by : {1, 3}) {
    {
      Pipeline pipeline(checkpoint(), config, saved_by);
      first = run_all(pipeline.engine(), {make_request("a", document, 20)}).front();
      const auto saved = pipeline.engine().save_snapshot("doc", document, "");
      ASSERT_TRUE(saved.ok()) << saved.error().what();
    }
    for (const int stages : {1, 2, 4}) {
      SCOPED_TRACE(std::to_string(saved_by) + " to " + std::to_string(stages));
      Pipeline pipeline(checkpoint(), config, stages);
      const auto restored = pipeline.engine().restore_snapshot("doc");
      ASSERT_TRUE(restored.ok()) << restored.error().what();
      const Outcome again = run_all(pipeline.engine(), {make_request("a", document, 20)}).front();
      EXPECT_EQ(again.choices[0].tokens, first.choices[0].tokens);
      EXPECT_EQ(again.choices[0].finish.cached_tokens, 896);
      expect_conserved(pipeline.engine());
    }
  }
}

// Stored by different ranks in pages that others had before: the same bytes.
TEST_F(PipelineTest, SnapshotFilesAreTheSameForEverySplit) {
  std::mt19937 rng(10);
  const auto document = random_prompt(rng, 600);
  std::string bytes;
  for (const int stages : {1, 2, 3}) {
    TempDir kv_dir;
    EngineConfig config = small_config(700 << 10);
    config.kv_dir = kv_dir.path();
    Pipeline pipeline(checkpoint(), config, stages);
    for (int i = 0; i < 3; ++i) run_all(pipeline.engine(), {make_request("x", random_prompt(rng, 500), 3)});
    run_all(pipeline.engine(), {make_request("a", document, 2)});
    const auto saved = pipeline.engine().save_snapshot("doc", document, "");
    ASSERT_TRUE(saved.ok()) << saved.error().what();
    std::ifstream file(kv_dir / "doc.bamkv", std::ios::binary);
    const std::string now((std::istreambuf_iterator<char>(file)), {});
    if (stages == 1) bytes = now;
    EXPECT_EQ(now.size(), bytes.size());
    EXPECT_TRUE(now == bytes) << stages << " stages";
  }
}

TEST_F(PipelineTest, AttentionOfEveryLayer) {
  std::mt19937 rng(11);
  Request request = make_request("look", random_prompt(rng, 1500), 0);
  request.look = AttentionLook{.bins = 50, .peaks = 3, .spans = {{100, 120}}};
  std::optional<AttentionReport> expected_report;
  for (const int stages : {1, 2, 4}) {
    Pipeline pipeline(checkpoint(), small_config(), stages);
    auto stream = std::make_shared<CollectingSink>();
    Request endless = make_request("stream", {5, 6, 7}, 3000);
    endless.sampling.ignore_eos = true;
    ASSERT_EQ(pipeline.engine().submit(endless, stream).status, SubmitStatus::kAccepted);
    for (int round = 0; round < 2; ++round) {
      auto sink = std::make_shared<CollectingSink>();
      ASSERT_EQ(pipeline.engine().submit(request, sink).status, SubmitStatus::kAccepted);
      const Outcome outcome = sink->wait();
      ASSERT_TRUE(outcome.attention) << outcome.choices[0].finish.message;
      ASSERT_EQ(outcome.attention->heads.size(), 24u);
      if (!expected_report) expected_report = outcome.attention;
      EXPECT_EQ(*outcome.attention, *expected_report) << stages << " stages";
    }
    pipeline.engine().cancel_all();
    stream->wait();
    expect_conserved(pipeline.engine());
  }
}

TEST_F(PipelineTest, EmbeddingsComeFromTheLastStage) {
  struct Sink final : CollectingSink {
    bool on_events(std::vector<Event>&& events) override {
      for (const Event& event : events) {
        if (const auto* e = std::get_if<EmbeddingEvent>(&event)) values = e->values;
      }
      return CollectingSink::on_events(std::move(events));
    }
    std::vector<float> values;
  };
  std::mt19937 rng(14);
  const auto prompt = random_prompt(rng, 300);
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    std::vector<float> expected_values;
    for (const int stages : {1, 3}) {
      Pipeline pipeline(checkpoint(), small_config(), stages);
      Request request = make_request("a", prompt, 1);
      request.pooling = pooling;
      auto sink = std::make_shared<Sink>();
      ASSERT_EQ(pipeline.engine().submit(request, sink).status, SubmitStatus::kAccepted);
      sink->wait();
      if (stages == 1) expected_values = sink->values;
      EXPECT_EQ(sink->values.size(), static_cast<size_t>(pipeline.engine().model_config().hidden_size));
      EXPECT_EQ(sink->values, expected_values);
    }
  }
}

TEST_F(PipelineTest, WhatGoesOverABoundary) {
  Tap tap;
  EngineConfig config = small_config();
  config.step_target_ms = 4000;  // whole chunks
  {
    std::mt19937 rng(12);
    Pipeline pipeline(checkpoint(), config, 2, steady_time(), tapped(tap));
    run_all(pipeline.engine(), {make_request("warm", random_prompt(rng, 3000), 1)});
    const int64_t plans = tap.sent(Channel::kPlan), rows = tap.sent(Channel::kActivations);
    const int64_t tokens = 20'000;
    run_all(pipeline.engine(), {make_request("long", random_prompt(rng, tokens), 1)});
    const auto row_bytes = static_cast<double>(tokens * pipeline.engine().model_config().hidden_size * 4);
    EXPECT_NEAR(static_cast<double>(tap.sent(Channel::kActivations) - rows) / row_bytes, 1.0, 0.02);
    EXPECT_LT(static_cast<double>(tap.sent(Channel::kPlan) - plans), 0.01 * row_bytes);
  }
}

// The last stage takes ten times as long as it would.
TEST_F(PipelineTest, ASlowStageDoesNotPileUpActivations) {
  using SteadyClock = std::chrono::steady_clock;
  Tap tap;
  SteadyClock::time_point taken{};
  tap.before_receive = [&](int rank, Channel channel) {
    if (rank != 2 || channel != Channel::kActivations) return;
    if (taken != SteadyClock::time_point{}) std::this_thread::sleep_for(9 * (SteadyClock::now() - taken));
    taken = SteadyClock::now();
  };
  std::mt19937 rng(13);
  EngineConfig config = small_config();
  config.max_batched_tokens = 64;
  Pipeline pipeline(checkpoint(), config, 3, steady_time(), tapped(tap));
  run_all(pipeline.engine(), {make_request("long", random_prompt(rng, 4000), 4)});
  const int64_t depth = 6, step_bytes = 64 * pipeline.engine().model_config().hidden_size * 4;
  EXPECT_GT(tap.most_buffered.load(), step_bytes) << "there was something to hold back";
  EXPECT_LE(tap.most_buffered.load(), depth * (step_bytes + 256));
}

}  // namespace
}  // namespace bam
