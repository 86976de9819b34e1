// Ranks that are lost: streams go on with the bits that they would have had, or end with one clear error.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "engine/step_wire.h"
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
using testing::run_all;
using testing::small_config;
using testing::Tap;
using testing::TempDir;
using testing::Worker;
using testing::WorkerOptions;

bool begun_to_speak(const Outcome& o) { return o.choices[0].tokens.size() > 3; }

class PipelineLoss : public testing::PipelineSuite {
 protected:
  static const std::vector<Outcome>& expected() {
    static const std::vector<Outcome> expected = said_by_one(small_config());
    return expected;
  }
};

// From the first greeting to the last token, each rank in turn.
TEST_F(PipelineLoss, StreamsGoOnWithTheSameBits) {
  for (const int64_t at : {1, 2, 9, 40, 150}) {
    for (const int victim : {0, 1, 2}) {
      SCOPED_TRACE("rank " + std::to_string(victim) + " at its message " + std::to_string(at));
      Tap tap;
      tap.kills = [=](int rank, int64_t count) { return rank == victim && count == at; };
      Pipeline pipeline(checkpoint(), small_config(), 3, steady_time(), tapped(tap));
      expect_all(expected(), run_all(pipeline.engine(), requests(), static_cast<uint32_t>(at)));
      if (at > 2) {
        EXPECT_EQ(pipeline.engine().stats().group_losses.load(), 1u);
      }
      EXPECT_TRUE(pipeline.engine().ready());
      expect_conserved(pipeline.engine());
    }
  }
}

TEST_F(PipelineLoss, WhileDraining) {
  Tap tap;
  std::atomic<bool> now{false};
  tap.kills = [&](int rank, int64_t) { return rank == 1 && now.exchange(false); };
  Pipeline pipeline(checkpoint(), small_config(), 3, steady_time(), tapped(tap));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::promise<void> begun, draining;
  for (const Request& request : requests()) {
    sinks.push_back(std::make_shared<CollectingSink>(request.n));
    if (sinks.size() == 1) sinks[0]->when(begun_to_speak, [&] { begun.set_value(), draining.get_future().wait(); });
    ASSERT_EQ(pipeline.engine().submit(request, sinks.back()).status, SubmitStatus::kAccepted);
  }
  begun.get_future().wait();
  auto drained = std::async(std::launch::async, [&] { return pipeline.engine().drain(testing::kPatience); });
  auto is_draining = [&, number = 0]() mutable {
    const Request late = make_request("late-" + std::to_string(++number), {5}, 1);
    return pipeline.engine().submit(late, std::make_shared<CollectingSink>()).status == SubmitStatus::kDraining;
  };
  while (!is_draining()) std::this_thread::yield();
  now = true;
  draining.set_value();
  EXPECT_TRUE(drained.get());
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests()[i], expected()[i], sinks[i]->wait());
  EXPECT_EQ(pipeline.engine().stats().group_losses.load(), 1u);
}

// The thread ends; another one takes its place, as a supervisor would start it.
TEST_F(PipelineLoss, ARankRejoinsUnderLoad) {
  Pipeline pipeline(checkpoint(), small_config(), 3);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests()) {
    sinks.push_back(std::make_shared<CollectingSink>(request.n));
    if (sinks.size() == 1) sinks[0]->when(begun_to_speak, [&] { pipeline.worker(2).stop(); });
    ASSERT_EQ(pipeline.engine().submit(request, sinks.back()).status, SubmitStatus::kAccepted);
  }
  EXPECT_EQ(pipeline.worker(2).join(), "");
  while (pipeline.engine().ready()) std::this_thread::yield();
  EXPECT_FALSE(pipeline.engine().picture()->stages.empty());
  pipeline.start(2);
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests()[i], expected()[i], sinks[i]->wait());
  EXPECT_TRUE(pipeline.engine().ready());
  expect_conserved(pipeline.engine());
}

struct Errors {
  int64_t ends = 0, errors = 0;
  std::string message;
};

Errors errors_of(const std::vector<Outcome>& outcomes) {
  Errors result;
  for (const Outcome& o : outcomes) {
    EXPECT_TRUE(o.in_order);
    for (const auto& choice : o.choices) {
      result.ends += choice.finished;
      if (choice.finish.reason != FinishReason::kError) continue;
      ++result.errors;
      result.message = choice.finish.message;
    }
  }
  return result;
}

TEST_F(PipelineLoss, WithoutReplayEveryRequestHasOneError) {
  Tap tap;
  tap.kills = [](int rank, int64_t count) { return rank == 2 && count == 30; };
  EngineConfig config = small_config();
  config.replay_limit = 0;
  Pipeline pipeline(checkpoint(), config, 3, steady_time(), tapped(tap));
  std::promise<std::string> lost;
  pipeline.engine().on_device_lost([&](const std::string& what) { lost.set_value(what); });
  const auto outcomes = run_all(pipeline.engine(), requests());
  const Errors errors = errors_of(outcomes);
  int64_t choices = 0;
  for (const Request& r : requests()) choices += r.n;
  EXPECT_EQ(errors.ends, choices);
  EXPECT_GT(errors.errors, choices / 2);
  EXPECT_NE(errors.message.find("rank 2 is lost"), std::string::npos) << errors.message;
  EXPECT_NE(lost.get_future().get().find("rank 2 is lost"), std::string::npos);
  EXPECT_FALSE(pipeline.engine().healthy());
  EXPECT_EQ(pipeline.engine().submit(make_request("late", {5}, 1), std::make_shared<CollectingSink>()).status,
            SubmitStatus::kDraining);
}

TEST_F(PipelineLoss, ARequestThatLosesRankAfterRankIsGivenUp) {
  Tap tap;
  std::atomic<int> kills{3};
  tap.kills = [&](int rank, int64_t count) { return rank == 1 && count % 40 == 0 && kills-- > 0; };
  Pipeline pipeline(checkpoint(), small_config(), 2, steady_time(), tapped(tap));
  Request endless = make_request("endless", {5, 6, 7}, 2000);
  endless.sampling.ignore_eos = true;
  const Errors errors = errors_of(run_all(pipeline.engine(), {endless}));
  EXPECT_EQ(errors.errors, 1);
  EXPECT_NE(errors.message.find("3 ranks were lost"), std::string::npos) << errors.message;
  EXPECT_TRUE(pipeline.engine().healthy());
  expect_all(expected(), run_all(pipeline.engine(), requests()));  // the server goes on
}

TEST_F(PipelineLoss, AGroupThatDoesNotComeBackEndsTheServer) {
  EngineConfig config = small_config();
  config.group_timeout_s = 1.5;
  Pipeline pipeline(checkpoint(), config, 2);
  std::promise<std::string> lost;
  pipeline.engine().on_device_lost([&](const std::string& what) { lost.set_value(what); });
  Request endless = make_request("endless", {5, 6, 7}, 100'000);
  endless.sampling.ignore_eos = true;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_EQ(pipeline.engine().submit(endless, sink).status, SubmitStatus::kAccepted);
  sink->wait_for(begun_to_speak);
  pipeline.worker(1).stop();
  EXPECT_NE(lost.get_future().get().find("did not come together within 1.5 s"), std::string::npos);
  EXPECT_EQ(sink->wait().choices[0].finish.reason, FinishReason::kError);
}

// Rank 0 does not say goodbye: the worker does not wait for another one until the group's time is over.
TEST_F(PipelineLoss, AWorkerThatLosesRankZeroEnds) {
  for (const bool comes_back : {false, true}) {
    auto sources = make_local_sources(2);
    Worker worker({.checkpoint = checkpoint(), .range = {3, 3}, .config = small_config()}, *sources[1]);
    const auto welcome = [&](uint64_t& epoch) {
      auto transport = sources[0]->form(std::chrono::minutes(5), epoch);
      std::vector<std::byte> message;
      EXPECT_TRUE(transport->receive(1, Channel::kDone, message, std::chrono::minutes(5)));
      EXPECT_EQ(wire::Reader(message).head().kind, wire::Kind::kHello);
      wire::Writer answer(message, {wire::Kind::kWelcome, epoch, 0});
      transport->send(1, Channel::kPlan, message);
      return transport;
    };
    uint64_t epoch = 0;
    auto transport = welcome(epoch);
    if (comes_back) {
      transport->abort("rank 0 forms a new group");
      transport = welcome(epoch);  // the worker comes, too
      std::vector<std::byte> message;
      wire::Writer end(message, {wire::Kind::kEnd, epoch, 0});
      transport->send(1, Channel::kPlan, message);
    }
    transport.reset();
    const std::string said = worker.join();
    EXPECT_EQ(said, comes_back ? "" : "rank 0 is lost: it left the group");
  }
}

// Rank 2 hears from rank 1 that rank 0 is gone, and only then that it had said goodbye.
TEST_F(PipelineLoss, AGoodbyeThatComesLateIsStillOne) {
  Tap tap;
  std::atomic<int> late{0};
  tap.overtaken = [&](int rank, std::span<const std::byte> message) {
    return rank == 2 && wire::Reader(message).head().kind == wire::Kind::kEnd && ++late > 0;
  };
  Pipeline pipeline(checkpoint(), small_config(), 3, steady_time(), tapped(tap));
  run_all(pipeline.engine(), {make_request("a", {5, 6, 7}, 3)});
  for (const std::string& error : pipeline.shut_down()) EXPECT_EQ(error, "");
  EXPECT_EQ(late.load(), 1);
}

// What rank 0 and the rank itself say when they do not fit together.
std::pair<std::string, std::string> refusal(const WorkerOptions& first, const WorkerOptions& second) {
  auto sources = make_local_sources(2);
  Worker worker(second, *sources[1]);
  std::string said;
  try {
    const auto backend = make_cpu_backend({.num_threads = 1, .isa = first.isa});
    Engine engine(testing::load_stage(*backend, first), first.config, first.tokenizer, steady_time(), sources[0].get());
  } catch (const Error& e) {
    said = e.what();
  }
  return {said, worker.join()};
}

TEST_F(PipelineLoss, RanksThatDoNotFitAreRefusedByOneLine) {
  TempDir other;
  testing::CheckpointSpec spec = testing::layered_spec();
  spec.seed = 99;
  testing::write_checkpoint(spec, other.path());
  const WorkerOptions first{.checkpoint = checkpoint(), .range = {0, 3}, .config = small_config()};
  const auto expect_refusal = [&](const std::string& what, const std::function<void(WorkerOptions&)>& change) {
    WorkerOptions second = first;
    second.range = {3, 3};
    change(second);
    const auto [said, heard] = refusal(first, second);
    EXPECT_NE(said.find("rank 0"), std::string::npos) << said;
    EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
    EXPECT_NE(said.find(what), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
    EXPECT_EQ(said, heard);
  };
  expect_refusal("the checkpoint", [&](WorkerOptions& o) { o.checkpoint = other.path(); });
  expect_refusal("the tokenizer", [](WorkerOptions& o) { o.tokenizer = 8; });
  expect_refusal("the weight format", [](WorkerOptions& o) { o.weight_dtype = DType::kBF16; });
  expect_refusal("the KV format", [](WorkerOptions& o) { o.config.kv_dtype = DType::kI8; });
  expect_refusal("layer", [](WorkerOptions& o) { o.range = {4, 2}; });
  if (make_cpu_backend({.num_threads = 1})->numerics() !=
      make_cpu_backend({.num_threads = 1, .isa = "portable"})->numerics()) {
    expect_refusal("the kind of arithmetic", [](WorkerOptions& o) { o.isa = "portable"; });
  }
}

}  // namespace
}  // namespace bam
