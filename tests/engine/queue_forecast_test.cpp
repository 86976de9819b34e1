// The forecast against the schedule itself, played in virtual time without a model.
#include "engine/queue_forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <deque>
#include <numeric>
#include <random>
#include <set>

namespace bam {
namespace {

constexpr int kPage = 64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double true_ms(const StepLoad& load) {
  return 1.0 + 0.1 * static_cast<double>(load.rows) + 2e-6 * load.row_keys + 0.05 * static_cast<double>(load.sequences);
}

CostModel learnt_cost() {
  CostModel cost(50);
  for (int i = 0; i < 600; ++i) {
    StepLoad load;
    for (int s = 0; s < 1 + i % 7; ++s) load.add((i * 37) % 4000, i % 3 == 0 ? 1 : 1 + (i * 29) % 400);
    cost.observe(load, true_ms(load));
  }
  return cost;
}

// The real scheduler, and a clock that the steps move on.
class World {
 public:
  World(SchedulerLimits limits, int64_t pages)
      : cost(learnt_cost()),
        limits(limits),
        kv(KvGeometry(kPage, {-1}, limits.max_batched_tokens), pages, true, 1),
        scheduler(limits, kv, cost) {}

  void add(int64_t prompt, int64_t generate) {
    Sequence& s = sequences.emplace_back();
    s.arrival = sequences.size();
    s.tokens.resize(static_cast<size_t>(prompt));
    std::iota(s.tokens.begin(), s.tokens.end(), static_cast<int32_t>(s.arrival) * 100'000);
    s.num_prompt = prompt;
    s.max_len = prompt + generate;
    scheduler.add(s);
  }

  void step() {
    const SchedulePlan& plan =
        scheduler.schedule(Clock::time_point(std::chrono::microseconds(static_cast<int64_t>(1e3 * now_ms))));
    kv.stage(0).pending_copies().clear();
    for (const Sequence* s : plan.admitted) {
      if (!started.insert(s->arrival).second) continue;
      ++left_requests;
      left_tokens += s->num_prompt;
      left_at_ms = now_ms;  // a place is free as soon as the step begins
    }
    now_ms += true_ms(plan.load);
    for (const ScheduledRows& rows : plan.rows) {
      Sequence& s = *rows.sequence;
      s.num_computed += rows.num_rows;
      kv.commit(s.blocks, s.tokens, s.num_computed);
      if (s.num_uncomputed() > 0) continue;
      if (s.num_known() < s.max_len) s.tokens.push_back(static_cast<int32_t>(s.num_known()));
      if (s.num_known() >= s.max_len) scheduler.remove(s);
    }
  }

  ForecastSequence describe(const Sequence& s) const {
    const bool waiting = s.queue == Sequence::Queue::kWaiting;
    ForecastSequence f;
    f.arrival = s.arrival;
    f.num_prompt = s.num_prompt;
    f.num_computed = s.num_computed;
    f.num_uncomputed = s.num_uncomputed();
    f.limit = f.certain = s.max_len - s.num_known();
    f.queued = !started.contains(s.arrival);
    f.pages = waiting ? kv.stage(0).geometry().pages_for(s.num_known() + 1) : s.blocks.num_pages();
    return f;
  }

  QueueForecast forecast() const {
    QueueForecast result{.cost = cost, .limits = limits};
    result.pages_free = kv.stage(0).num_available();
    for (const Sequence* s : scheduler.running()) result.running.push_back(describe(*s));
    for (const Sequence* s : scheduler.waiting()) result.waiting.push_back(describe(*s));
    return result;
  }

  // Steps until the goal is reached: the truth.
  double run_until(QueueForecast::Goal goal) {
    const double from = now_ms;
    const int64_t requests = left_requests + goal.requests, tokens = left_tokens + goal.tokens;
    while ((left_requests < requests || left_tokens < tokens) && started.size() < sequences.size()) step();
    return left_at_ms - from;
  }

  CostModel cost;
  SchedulerLimits limits;
  StagedKv kv;
  Scheduler scheduler;
  std::deque<Sequence> sequences;
  std::set<uint64_t> started;
  double now_ms = 0, left_at_ms = 0;
  int64_t left_requests = 0, left_tokens = 0;
};

TEST(QueueForecast, AgreesWithTheScheduleItImitates) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  double worst = 1, sum = 0;
  int count = 0;
  for (int scene = 0; scene < 60; ++scene) {
    World world({.max_num_seqs = pick(1, 8)}, 100'000);
    const int64_t requests = pick(4, 24);
    for (int64_t i = 0; i < requests; ++i) world.add(pick(5, scene % 2 ? 3000 : 60), pick(2, 400));
    for (int64_t warm = pick(1, 60); warm > 0; --warm) world.step();
    const int64_t queued = requests - world.left_requests;
    if (queued == 0) continue;
    QueueForecast::Goal goal;
    if (scene % 3 == 0) {
      for (const Sequence* s : world.scheduler.waiting()) goal.tokens += s->num_prompt / 2;
    } else {
      goal.requests = scene % 3 == 1 ? 1 : pick(1, queued);
    }
    const double told = world.forecast().ms_until(goal, {});
    const double truth = world.run_until(goal);
    // A step is the finest unit of the schedule: what is due within one or two of them says little as a ratio.
    const double step_ms = 4 * world.limits.step_target_ms;
    const double ratio = (told + step_ms) / (truth + step_ms);
    EXPECT_GT(ratio, 1 / 1.3) << "scene " << scene << ": told " << told << " ms, was " << truth << " ms";
    EXPECT_LT(ratio, 1.3) << "scene " << scene << ": told " << told << " ms, was " << truth << " ms";
    worst = std::max({worst, ratio, 1 / ratio});
    sum += std::log(ratio);
    ++count;
  }
  ASSERT_GT(count, 40);
  std::printf("told / true over %d scenes: mean factor %.2f, worst factor %.2f\n", count, std::exp(sum / count), worst);
}

TEST(QueueForecast, WaitsForMemoryAsTheSchedulerDoes) {
  World world({.max_num_seqs = 8}, 24);  // pages for one of these prompts and a half
  for (int i = 0; i < 3; ++i) world.add(1000, 100);
  world.step();
  ASSERT_EQ(world.left_requests, 1);
  const double told = world.forecast().ms_until({.requests = 1}, {});
  const double truth = world.run_until({.requests = 1});
  EXPECT_NEAR(told, truth, 0.3 * truth);
}

QueueForecast one_slot(int64_t tokens) {
  QueueForecast forecast{.cost = learnt_cost(), .limits = {.max_num_seqs = 1}};
  forecast.pages_free = 1000;
  ForecastSequence& s = forecast.running.emplace_back();
  s.arrival = 1;
  s.num_prompt = s.num_computed = 10;
  s.num_uncomputed = 1;
  s.limit = s.certain = tokens;
  return forecast;
}

ForecastSequence queued(uint64_t arrival, int64_t prompt) {
  ForecastSequence s;
  s.arrival = arrival;
  s.num_prompt = s.num_uncomputed = prompt;
  s.limit = s.certain = 10;
  s.queued = true;
  return s;
}

TEST(QueueForecast, CountsWhatHasNotReachedTheEngineYet) {
  const QueueForecast forecast = one_slot(1000);
  const std::vector<ForecastSequence> late = {queued(2, 50), queued(3, 50)};
  const double first = forecast.ms_until({.requests = 1}, late);
  EXPECT_NEAR(first, 1000 * 1.2, 300);
  EXPECT_GT(forecast.ms_until({.requests = 2}, late), first);
  EXPECT_EQ(forecast.ms_until({.requests = 1}, {}), 0) << "nothing is queued";
}

TEST(QueueForecast, DeadlinesAndQueueTimeoutsMakeRoomToo) {
  QueueForecast forecast = one_slot(100'000);
  forecast.waiting.push_back(queued(2, 50));
  const double without = forecast.ms_until({.requests = 1}, {});
  EXPECT_GT(without, 60'000);
  forecast.waiting[0].gives_up_ms = 3000;
  EXPECT_NEAR(forecast.ms_until({.requests = 1}, {}), 3000, 100);
  forecast.waiting[0].gives_up_ms = kInfinity;
  forecast.running[0].leaves_ms = 5000;
  EXPECT_NEAR(forecast.ms_until({.requests = 1}, {}), 5000, 100);
}

TEST(QueueForecast, OfManyTextsThatMayEndAtAnyTimeOneEndsSoon) {
  QueueForecast few = one_slot(4000), many = few;
  few.running[0].certain = 0;
  few.waiting.push_back(queued(1000, 20));
  many.limits.max_num_seqs = 32;
  many.running.clear();
  for (uint64_t i = 1; i <= 32; ++i) {
    many.running.push_back(few.running[0]);
    many.running.back().arrival = i;
  }
  many.waiting = few.waiting;
  few.mean_tokens = many.mean_tokens = 200;
  StepLoad step;
  for (int i = 0; i < 32; ++i) step.add(10, 1);
  // The first of 32 is expected after a 32nd of the mean.
  EXPECT_LT(many.ms_until({.requests = 1}, {}), 40 * true_ms(step));
}

TEST(QueueForecast, EndsAtItsHorizon) {
  QueueForecast forecast = one_slot(int64_t{1} << 40);
  forecast.waiting.push_back(queued(2, 50));
  const double told = forecast.ms_until({.requests = 1}, {});
  EXPECT_GE(told, 3.5e6);
  EXPECT_TRUE(std::isfinite(told));
}

}  // namespace
}  // namespace bam
