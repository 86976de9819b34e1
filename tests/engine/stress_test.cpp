// Many threads submit, cancel, disconnect and look; meant for the thread sanitizer, useful without.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace bam {
namespace {

using namespace std::chrono_literals;
using testing::make_request;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

// Counts ends and goes away, or cancels through the engine, after a few tokens.
class FickleSink : public EventSink {
 public:
  FickleSink(Engine& engine, std::string id, int32_t n, int patience, bool hang_up, std::atomic<int64_t>& ended)
      : engine_(engine), id_(std::move(id)), choices_(n), patience_(patience), hang_up_(hang_up), ended_(ended) {}
  ~FickleSink() override { EXPECT_TRUE(choices_ == 0 || gone_) << id_ << " was dropped without an end"; }

  void give_up() { gone_ = true; }  // never accepted: no end will come

  bool on_events(std::vector<Event>&& events) override {
    EXPECT_FALSE(gone_) << "called after saying no";
    for (const Event& event : events) {
      if (std::holds_alternative<TokenEvent>(event)) --patience_;
      if (std::holds_alternative<FinishEvent>(event) && --choices_ == 0) ++ended_;
    }
    if (patience_ > 0 || choices_ == 0) return true;
    if (!hang_up_) {
      engine_.cancel(id_);
      return true;
    }
    gone_ = true;
    ++ended_;
    return false;
  }

 private:
  Engine& engine_;
  std::string id_;
  int32_t choices_;
  int patience_;
  bool hang_up_, gone_ = false;
  std::atomic<int64_t>& ended_;
};

TEST(EngineStress, SubmitCancelAndDisconnectFromManyThreads) {
  TempDir dir;
  testing::write_checkpoint(testing::mixed_reach_spec(), dir.path());
  TestModel model(dir.path(), {2});
  EngineConfig config = small_config(2 << 20);
  config.max_queue = 32;
  config.max_model_len = 2000;
  std::atomic<int64_t> ended{0}, accepted{0}, refused{0};
  {
    Engine engine(model.load(), config, 7);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 rng(t);
        for (int i = 0; !stop; ++i) {
          const std::string id = std::to_string(t) + "-" + std::to_string(i);
          Request request = make_request(id, random_prompt(rng, 1 + static_cast<int64_t>(rng() % 700)),
                                         1 + static_cast<int64_t>(rng() % 60));
          request.n = rng() % 5 == 0 ? 3 : 1;
          request.priority = static_cast<int32_t>(rng() % 3);
          request.sampling.temperature = 1.0f;
          if (rng() % 6 == 0) request.timeout = std::chrono::milliseconds(rng() % 50);
          auto sink =
              std::make_shared<FickleSink>(engine, id, request.n, static_cast<int>(rng() % 80), rng() % 2 == 0, ended);
          const SubmitResult result = engine.submit(std::move(request), sink);
          if (result.status == SubmitStatus::kAccepted) {
            ++accepted;
            if (rng() % 4 == 0) engine.cancel(id);
          } else {
            ++refused;
            sink->give_up();
            std::this_thread::sleep_for(2ms);
          }
        }
      });
    }
    threads.emplace_back([&] {
      while (!stop) {
        const auto s = engine.picture();
        EXPECT_EQ(s->pages_free + s->pages_cached + s->pages_used, s->pages_total);
        engine.healthy();
        engine.predict_ttft_s(1000);
        engine.stats().step_s.cumulative_counts();
        std::this_thread::sleep_for(1ms);
      }
    });
    const auto wait_for_accepted = [&](int64_t count) {
      while (accepted < count) std::this_thread::sleep_for(1ms);
    };
    wait_for_accepted(1500);
    engine.cancel_all();
    wait_for_accepted(accepted + 100);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    if (engine.drain(testing::kPatience)) {
      EXPECT_EQ(engine.picture()->pages_used, 0);
    } else {
      ADD_FAILURE() << "requests are left over";
    }
  }
  EXPECT_EQ(ended.load(), accepted.load()) << "every accepted request ends exactly once";
  EXPECT_GT(accepted.load(), 20);
}

TEST(EngineStress, DestructionWhileOthersSubmit) {
  TempDir dir;
  testing::write_checkpoint(testing::mixed_reach_spec(), dir.path());
  TestModel model(dir.path());
  std::atomic<int64_t> ended{0};
  int64_t accepted = 0;
  {
    Engine engine(model.load(), small_config(), 7);
    std::mt19937 rng(1);
    for (int i = 0; i < 200; ++i) {
      const std::string id = std::to_string(i);
      auto sink = std::make_shared<FickleSink>(engine, id, 1, 1'000'000, false, ended);
      Request request = make_request(id, random_prompt(rng, 100), 500);
      accepted += engine.submit(std::move(request), sink).status == SubmitStatus::kAccepted;
    }
  }
  EXPECT_EQ(ended.load(), accepted);
}

}  // namespace
}  // namespace bam
