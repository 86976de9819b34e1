// What a pipeline makes of its time, counted in the time of a machine that is made up: the engine plans, a row costs what
// the test says, and no clock is read. Gaps of streams, sizes of pieces, stages without work.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "engine/engine_core.h"
#include "engine/stage_thread.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/manual_time.h"

namespace bam {
namespace {

using testing::make_request;
using testing::ManualTime;
using testing::random_prompt;

// What a step (weights are read), a row and a key before it cost one machine; stages share it, and each has its own trouble.
struct Machine {
  double trouble_ms, step_ms, row_ms, key_ms;
  std::vector<double> shares;  // [stages]
};

Clock::duration duration_of(double ms) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}

// Ranks that compute nothing and say when they would be done.
class TimedRunner final : public StepRunner {
 public:
  struct Step {
    int64_t rows = 0;
    Clock::time_point begins, done;  // on the first stage, on the last
    double slowest_ms = 0;
    size_t draws = 0;
  };

  TimedRunner(ManualTime& time, Machine machine, StagedKv::Stage stage)
      : time_(time),
        machine_(std::move(machine)),
        sizes_(machine_.shares.size(), stage),
        free_(machine_.shares.size()),
        busy_ms_(machine_.shares.size()) {}

  int depth() const override { return sizes_.size() == 1 ? 1 : static_cast<int>(2 * sizes_.size()); }
  bool accepts() const override {
    return std::ranges::count_if(pending_, [&](const Step& s) { return s.begins > time_.now(); }) <
           static_cast<std::ptrdiff_t>(StageThread::kMaxWaiting);
  }
  bool supports_drawing() const override { return true; }
  void copy_pages(StagedKv& kv) override {
    for (int stage = 0; stage < kv.num_stages(); ++stage) kv.stage(stage).pending_copies().clear();
  }
  void issue(const StepBatch& batch, std::span<const StagedBlocks* const>, StagedKv&) override {
    StepLoad load;
    for (const StepBatch::Entry& entry : batch.entries) load.add(entry.start, entry.num_rows);
    Step step{.rows = load.rows, .begins = {}, .done = time_.now(), .draws = batch.draws.rows.size()};
    for (size_t stage = 0; stage < free_.size(); ++stage) {
      const double ms = machine_.trouble_ms +
                        machine_.shares[stage] * (machine_.step_ms + machine_.row_ms * static_cast<double>(load.rows) +
                                                  machine_.key_ms * load.row_keys);
      const auto begins = std::max(free_[stage], step.done);
      if (stage == 0) step.begins = begins;
      step.done = free_[stage] = begins + duration_of(ms);
      step.slowest_ms = std::max(step.slowest_ms, ms);
      busy_ms_[stage] += ms;
    }
    pending_.push_back(step);
    steps_.push_back(step);
  }
  const StepResult* finish(std::chrono::milliseconds timeout) override {
    const Step step = pending_.front();
    const auto left = step.done - time_.now();
    if (left > Clock::duration::zero() && timeout.count() > 0) time_.advance(std::min<Clock::duration>(left, timeout));
    if (step.done > time_.now()) return nullptr;
    pending_.pop_front();
    result_.drawn.assign(step.draws, 5);
    result_.slowest_ms = step.slowest_ms;
    return &result_;
  }

  std::vector<float> row_queries(const StagedBlocks&, int32_t, int64_t) override { return {}; }
  const KvLayout& layout() const override { return layout_; }
  void read_pages(int, std::span<const int32_t>, std::span<std::byte>) override {}
  void write_pages(int, std::span<const int32_t>, std::span<const std::byte>) override {}
  std::vector<AttentionCounters> counters() override { return {}; }
  std::vector<StagePicture> picture() const override { return std::vector<StagePicture>(sizes_.size()); }
  std::vector<StagedKv::Stage> sizes() const override { return sizes_; }

  const std::vector<Step>& steps() const { return steps_; }
  // Since the last call, of the stage that had most to do.
  double take_busy_ms() {
    const double most = *std::ranges::max_element(busy_ms_);
    std::ranges::fill(busy_ms_, 0);
    return most;
  }

 private:
  ManualTime& time_;
  const Machine machine_;
  const std::vector<StagedKv::Stage> sizes_;
  const KvLayout layout_;
  std::deque<Step> pending_;
  std::vector<Step> steps_;  // all
  std::vector<Clock::time_point> free_;
  std::vector<double> busy_ms_;
  StepResult result_;
};

class TimedSink final : public EventSink {
 public:
  explicit TimedSink(const TimeSource& time) : time_(time) {}
  bool on_events(std::vector<Event>&& events) override {
    for (const Event& event : events) {
      if (std::holds_alternative<TokenEvent>(event)) tokens_.push_back(time_.now());
      if (std::holds_alternative<FinishEvent>(event)) finished_ = true;
    }
    return true;
  }
  const std::vector<Clock::time_point>& tokens() const { return tokens_; }
  bool finished() const { return finished_; }

 private:
  const TimeSource& time_;
  std::vector<Clock::time_point> tokens_;
  bool finished_ = false;
};

struct NoObserver final : EngineCore::Observer {
  void before_events() override {}
  void on_done(const std::string&) override {}
};

class PipelinePace : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new testing::TempDir;
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_->path());
  }
  static void TearDownTestSuite() { delete dir_; }

  PipelinePace() : owner_(dir_->path()), model_(owner_.load()) {
    config_.max_model_len = 200'000;
    config_.drafts = false;
  }

  static Machine fast(std::vector<double> shares) { return {0.1, 0.2, 0.025, 2e-7, std::move(shares)}; }
  static Machine slow(std::vector<double> shares) { return {0.1, 10, 2, 1e-5, std::move(shares)}; }
  static std::vector<double> even(int stages) { return std::vector<double>(static_cast<size_t>(stages), 1.0 / stages); }

  void start(const Machine& machine) {
    const KvGeometry geometry(64, {-1}, config_.max_batched_tokens);
    const StagedKv::Stage stage{geometry, 2 * geometry.pages_for(config_.max_model_len)};
    auto runner = std::make_unique<TimedRunner>(time_, machine, stage);
    runner_ = runner.get();
    const std::vector<StagedKv::Stage> sizes = runner->sizes();
    core_ = std::make_unique<EngineCore>(*model_, config_, std::move(runner), sizes, stats_, time_, observer_);
  }
  std::shared_ptr<TimedSink> add(int64_t prompt, int64_t tokens) {
    auto sink = std::make_shared<TimedSink>(time_);
    Request request = make_request("r" + std::to_string(++added_), random_prompt(rng_, prompt), tokens);
    request.sampling.ignore_eos = true;
    core_->add(std::move(request), sink, time_.now());
    return sink;
  }
  void read(int64_t prompt) {
    const auto sink = add(prompt, 1);
    while (!sink->finished()) core_->step();
  }
  std::vector<std::shared_ptr<TimedSink>> add_streams() {
    std::vector<std::shared_ptr<TimedSink>> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(add(20 + 10 * i, 100'000));
    return streams;
  }

  // The longest that a stream waits for a token after its first while a prompt is read; it was there before or comes
  // in the middle.
  double longest_gap_ms(const Machine& machine, int64_t prompt, bool streams_first) {
    start(machine);
    read(prompt / 4);  // the cost model learns
    std::vector<std::shared_ptr<TimedSink>> streams;
    const auto all_run = [&] {
      return std::ranges::all_of(streams, [](const auto& s) { return s->tokens().size() > 4; });
    };
    if (streams_first) {
      streams = add_streams();
      while (!all_run()) core_->step();
    }
    const auto begin = time_.now();
    const size_t first_step = runner_->steps().size();
    const auto reader = add(prompt, 1);
    if (!streams_first) {
      while (runner_->steps().size() < first_step + 8) core_->step();
      streams = add_streams();
    }
    while (!reader->finished()) core_->step();
    EXPECT_TRUE(all_run());
    Clock::duration longest{};
    for (const auto& stream : streams) {
      const auto& times = stream->tokens();
      for (size_t i = 1; i < times.size(); ++i) {
        if (times[i] > begin) longest = std::max(longest, times[i] - times[i - 1]);
      }
    }
    core_->cancel_all();
    while (core_->has_work() && core_->step()) {
    }
    return ms_between({}, Clock::time_point(longest));
  }

  testing::TestModel owner_;
  std::unique_ptr<BamModel> model_;
  EngineConfig config_;
  EngineStats stats_;
  ManualTime time_;
  NoObserver observer_;
  std::mt19937 rng_{5};
  int added_ = 0;
  TimedRunner* runner_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  static testing::TempDir* dir_;
};
testing::TempDir* PipelinePace::dir_ = nullptr;

TEST_F(PipelinePace, StreamsBesideAPromptWaitNoLongerThanOnOneMachine) {
  for (const bool is_slow : {false, true}) {
    for (const bool streams_first : {true, false}) {
      const auto gap = [&](std::vector<double> shares) {
        return longest_gap_ms(is_slow ? slow(std::move(shares)) : fast(std::move(shares)), is_slow ? 4'000 : 100'000,
                              streams_first);
      };
      const double one = gap({1.0});
      for (const int stages : {2, 3, 4, 8}) {
        EXPECT_LE(gap(even(stages)), 1.2 * one)
            << stages << " stages, slow: " << is_slow << ", streams first: " << streams_first;
      }
      EXPECT_LE(gap({0.62, 0.38}), 1.2 * one);
      EXPECT_LE(gap({0.3, 0.3, 0.3, 0.1}), 1.2 * one);
    }
  }
}

// A piece is as much work for all stages together as a step for one machine.
TEST_F(PipelinePace, NobodyWaitingPiecesAreAsLargeAsOnOneMachine) {
  const auto steps_of_prompt = [&](std::vector<double> shares) {
    start(slow(std::move(shares)));
    read(2'000);
    const size_t before = runner_->steps().size();
    read(8'000);
    return runner_->steps().size() - before;
  };
  const size_t one = steps_of_prompt({1.0});
  for (const int stages : {2, 4}) {
    EXPECT_LE(steps_of_prompt(even(stages)), one + one / 5) << stages << " stages";
  }
}

// Filling and draining the pipe is what is lost: a piece's time where stages are equal, less where they are not.
TEST_F(PipelinePace, TheSlowestStageIsNearlyAlwaysBusy) {
  const std::pair<std::vector<double>, double> wanted[] = {
      {{0.5, 0.5}, 0.975}, {{0.62, 0.38}, 0.993}, {{0.38, 0.62}, 0.993}, {{0.3, 0.3, 0.3, 0.1}, 0.975}};
  for (const int64_t prompt : {32'768, 131'072}) {
    for (const auto& [shares, least] : wanted) {
      start(fast(shares));
      read(4'096);
      runner_->take_busy_ms();
      const auto begin = time_.now();
      read(prompt);
      const double busy = runner_->take_busy_ms() / ms_between(begin, time_.now());
      EXPECT_GT(busy, least) << prompt << " tokens, the first stage has " << shares.front() << " of the work";
    }
  }
}

}  // namespace
}  // namespace bam
