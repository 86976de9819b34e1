// The scheduler's promises one by one, without a model: see engine/scheduler.h.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <numeric>
#include <random>

namespace bam {
namespace {

using namespace std::chrono_literals;

constexpr int kPage = 64;

// A cost model that has seen steps which take ms_per_row for each row and nothing else.
CostModel linear_cost(double ms_per_row) {
  CostModel cost(64 * ms_per_row);
  for (int i = 0; i < 400; ++i) {
    StepLoad load;
    for (int s = 0; s < 1 + i % 5; ++s) load.add((i * 37) % 4000, 1 + (i * 29) % 500);
    cost.observe(load, ms_per_row * static_cast<double>(load.rows));
  }
  return cost;
}

class Harness {
 public:
  explicit Harness(int64_t pages, SchedulerLimits limits = {}, double ms_per_row = 0.1,
                   std::vector<int64_t> reach = {-1})
      : ms_per_row(ms_per_row),
        cost(linear_cost(ms_per_row)),
        kv(KvGeometry(kPage, std::move(reach), limits.max_batched_tokens), pages, true, 1),
        scheduler(limits, kv, cost) {}

  Sequence& add(int64_t prompt, int64_t generate, int32_t priority = 0) {
    Sequence& s = sequences.emplace_back();
    s.arrival = sequences.size();
    s.priority = priority;
    s.tokens.resize(static_cast<size_t>(prompt));
    // Different prompts share nothing.
    std::iota(s.tokens.begin(), s.tokens.end(), static_cast<int32_t>(s.arrival) * 1'000'000);
    s.num_prompt = prompt;
    s.max_len = prompt + generate;
    scheduler.add(s);
    return s;
  }

  // Runs the plan of one step: everything scheduled is computed, who caught up gets a token or ends.
  const SchedulePlan& step() {
    const SchedulePlan& plan = scheduler.schedule(now);
    kv.stage(0).pending_copies().clear();
    ++steps;
    now += std::chrono::microseconds(static_cast<int64_t>(1e3 * ms_per_row * static_cast<double>(plan.load.rows)));
    if (!plan.empty()) cost.observe(plan.load, ms_per_row * static_cast<double>(plan.load.rows));
    for (const ScheduledRows& rows : plan.rows) {
      Sequence& s = *rows.sequence;
      s.num_computed += rows.num_rows;
      kv.commit(s.blocks, s.tokens, s.num_computed);
      if (s.num_uncomputed() > 0) continue;
      if (s.num_known() < s.max_len) s.tokens.push_back(static_cast<int32_t>(s.num_known()));
      if (s.num_known() >= s.max_len) {
        scheduler.remove(s);
        finished.push_back(&s);
      }
    }
    EXPECT_EQ(kv.check_integrity(), "");
    return plan;
  }
  bool is_finished(const Sequence& s) const {
    return std::find(finished.begin(), finished.end(), &s) != finished.end();
  }

  double ms_per_row;
  CostModel cost;
  StagedKv kv;
  Scheduler scheduler;
  std::deque<Sequence> sequences;
  std::vector<const Sequence*> finished;
  int64_t steps = 0;
  Clock::time_point now{};  // every row takes its ms_per_row
};

int64_t rows_of(const SchedulePlan& plan, const Sequence& s) {
  for (const ScheduledRows& rows : plan.rows) {
    if (rows.sequence == &s) return rows.num_rows;
  }
  return 0;
}

TEST(Scheduler, ALoneShortPromptIsReadInOneStep) {
  Harness h(100);
  Sequence& s = h.add(300, 4);
  EXPECT_EQ(rows_of(h.step(), s), 300);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rows_of(h.step(), s), 1);
  EXPECT_TRUE(h.is_finished(s));
  EXPECT_EQ(h.kv.stage(0).pool().num_used(), 0);
}

TEST(Scheduler, MixedStepsKeepToTheTarget) {
  // 0.1 ms per row: 50 ms are 500 rows; 2000 rows (4 targets) without decode rows.
  Harness h(20000, {}, 0.1);
  Sequence& lone = h.add(500'000, 1);
  const SchedulePlan& first = h.step();
  EXPECT_GE(rows_of(first, lone), 1900);
  EXPECT_LE(rows_of(first, lone), 2048);
  std::vector<Sequence*> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(&h.add(20, 1000));
  for (int i = 0; i < 10; ++i) h.step();
  for (int i = 0; i < 50; ++i) {
    const SchedulePlan& plan = h.step();
    const double ms = 0.1 * static_cast<double>(plan.load.rows);
    EXPECT_LE(ms, 54.0);
    EXPECT_GE(ms, 42.0) << "the time left by the streams is used";
    for (Sequence* s : streams) EXPECT_EQ(rows_of(plan, *s), 1) << "a running stream gets its row in every step";
  }
}

TEST(Scheduler, PrefillAdvancesEvenWhenDecodingUsesUpTheTarget) {
  SchedulerLimits limits;
  limits.step_target_ms = 1;
  Harness h(1000, limits, 1.0);  // one row per target
  for (int i = 0; i < 4; ++i) h.add(1, 200);
  while (h.step().load.rows < 4) {
  }
  Sequence& s = h.add(100, 1);
  for (int i = 0; i < 100 && !h.is_finished(s); ++i) {
    const SchedulePlan& plan = h.step();
    if (h.is_finished(s)) break;
    EXPECT_GE(rows_of(plan, s), 1);
    EXPECT_LE(plan.load.rows, 6) << "a quarter more than the decode rows";
  }
  EXPECT_TRUE(h.is_finished(s));
}

// ceil(k (c + q) / B) + 1 steps for a newcomer of cost c among k prefills.
TEST(Scheduler, ShortNewcomersFinishWithinTheStatedBound) {
  for (const int64_t long_ones : {1, 3, 10}) {
    for (const int64_t prompt : {10, 100, 1000}) {
      Harness h(100'000, {}, 0.1);
      for (int64_t i = 0; i < long_ones; ++i) h.add(400'000, 1);
      Sequence& stream = h.add(4, 100'000);
      for (int i = 0; i < 20; ++i) h.step();
      Sequence& newcomer = h.add(prompt, 1);
      const double k = static_cast<double>(long_ones) + 1, c = 0.1 * static_cast<double>(prompt), q = 6.4;
      const double budget = 50.0 - h.cost.predict_ms({1, static_cast<double>(stream.num_computed), 1}) - 0.2;
      const int64_t bound = static_cast<int64_t>(std::ceil(k * (c + q) / budget)) + 1;
      int64_t took = 0;
      while (!h.is_finished(newcomer) && took < 10 * bound) h.step(), ++took;
      EXPECT_LE(took, bound) << long_ones << " long prefills, newcomer of " << prompt;
    }
  }
}

TEST(Scheduler, AStreamOfNewcomersDoesNotStarveALongPrefill) {
  Harness h(100'000, {}, 0.1);
  Sequence& big = h.add(300'000, 1);
  Sequence& stream = h.add(4, 1'000'000);
  h.step();
  // Every step brings a prompt that could fill the step alone.
  const int64_t before = big.num_computed;
  int64_t other = 0;
  for (int i = 0; i < 300; ++i) {
    h.add(600, 1);
    const SchedulePlan& plan = h.step();
    other += plan.load.rows - rows_of(plan, big);
  }
  const int64_t got = big.num_computed - before;
  // At most max_num_seqs prefills share, so its part is at least one in 64; quanta of 64 rows blur it a little.
  EXPECT_GE(got, 300 * 490 / 64 * 9 / 10) << "others got " << other;
  EXPECT_GT(stream.num_computed, 290);
}

TEST(Scheduler, LongPrefillsShareEqually) {
  Harness h(100'000, {}, 0.1);
  std::vector<Sequence*> prefills;
  for (int i = 0; i < 5; ++i) prefills.push_back(&h.add(200'000, 1));
  for (int i = 0; i < 200; ++i) h.step();
  const auto [least, most] = std::minmax_element(prefills.begin(), prefills.end(),
                                                 [](auto* a, auto* b) { return a->num_computed < b->num_computed; });
  EXPECT_GT((*least)->num_computed, 50'000);
  EXPECT_LE((*most)->num_computed - (*least)->num_computed, 2 * Scheduler::kQuantumRows);
}

TEST(Scheduler, BetterClassesGoFirstAndPreemptWorseOnes) {
  SchedulerLimits limits;
  limits.max_num_seqs = 2;
  Harness h(1000, limits, 0.1);
  Sequence& low1 = h.add(100, 500, 5);
  Sequence& low2 = h.add(100, 500, 5);
  for (int i = 0; i < 3; ++i) h.step();
  Sequence& high = h.add(100, 5, -1);
  h.step();
  EXPECT_EQ(high.queue, Sequence::Queue::kRunning);
  EXPECT_EQ(low1.queue, Sequence::Queue::kRunning);
  EXPECT_EQ(low2.queue, Sequence::Queue::kWaiting) << "the youngest of the worst class makes room";
  EXPECT_EQ(low2.num_preemptions, 1);
  while (!h.is_finished(high)) h.step();
  h.step();
  EXPECT_EQ(low2.queue, Sequence::Queue::kRunning);
  EXPECT_GE(low2.num_computed, 64) << "continues from its cached pages";
}

TEST(Scheduler, StarvedWorkIsPromotedAfterTheStatedTimeHoweverFastTheStepsAre) {
  for (const double ms_per_row : {0.1, 10.0}) {
    SchedulerLimits limits;
    limits.max_num_seqs = 1;
    limits.promote_after = std::chrono::milliseconds(500);
    Harness h(1000, limits, ms_per_row);
    h.add(10, 30, 0);
    Sequence& low = h.add(10, 5, 9);
    while (low.queue != Sequence::Queue::kRunning && h.now < Clock::time_point(5s)) {
      h.add(10, 30, 0);  // better work never ends
      h.step();
    }
    EXPECT_GE(h.now, Clock::time_point(500ms)) << ms_per_row;
    // The one that has the slot ends first: 10 rows and 29 more.
    EXPECT_LE(h.now, Clock::time_point(520ms + std::chrono::milliseconds(static_cast<int64_t>(40 * ms_per_row))));
  }
}

TEST(Scheduler, APausedSequenceKeepsItsPagesGetsNoRowAndIsNotStarved) {
  SchedulerLimits limits;
  limits.promote_after = std::chrono::milliseconds(50);
  Harness h(100, limits, 0.1);
  Sequence& a = h.add(100, 2000);
  Sequence& b = h.add(100, 2000);
  h.step();
  h.scheduler.pause(a);
  const int64_t pages = a.blocks.num_pages(), known = a.num_known();
  for (int i = 0; i < 1000; ++i) {
    const SchedulePlan& plan = h.step();
    ASSERT_EQ(rows_of(plan, a), 0);
    ASSERT_EQ(rows_of(plan, b), 1);
  }
  EXPECT_EQ(a.blocks.num_pages(), pages);
  EXPECT_EQ(a.num_known(), known);
  EXPECT_FALSE(a.promoted) << h.now.time_since_epoch().count();
  h.scheduler.resume(a);
  EXPECT_EQ(rows_of(h.step(), a), 1) << "goes on at once from its pages";
  EXPECT_EQ(a.num_preemptions, 0);
  EXPECT_FALSE(a.promoted);
}

TEST(Scheduler, APausedSequenceTakesNoSlot) {
  SchedulerLimits limits;
  limits.max_num_seqs = 2;
  Harness h(100, limits, 0.1);
  Sequence& a = h.add(10, 500);
  Sequence& b = h.add(10, 500);
  Sequence& c = h.add(10, 50);
  h.step();
  EXPECT_EQ(c.queue, Sequence::Queue::kWaiting);
  h.scheduler.pause(a);
  h.step();
  EXPECT_EQ(c.queue, Sequence::Queue::kRunning);
  h.scheduler.resume(a);  // no slot is free: it waits, first in line
  EXPECT_EQ(a.queue, Sequence::Queue::kWaiting);
  EXPECT_EQ(a.blocks.num_pages(), 0);
  while (!h.is_finished(c)) EXPECT_EQ(rows_of(h.step(), a), 0);
  EXPECT_GT(rows_of(h.step(), a), 0);
  EXPECT_GT(b.num_known(), 50);
}

// A paused sequence never holds up another one, however good its own class is.
TEST(Scheduler, PausedSequencesGiveUpTheirPagesFirst) {
  Harness h(10, {}, 0.1);  // ten blocks
  Sequence& paused = h.add(300, 100, -5);
  while (paused.num_generated() < 3) h.step();
  h.scheduler.pause(paused);
  EXPECT_EQ(paused.blocks.num_pages(), 5);
  Sequence& other = h.add(200, 10);
  h.step();
  EXPECT_EQ(paused.blocks.num_pages(), 5) << "there was room for both";
  Sequence& large = h.add(250, 300);
  int64_t taken = 0;
  for (int i = 0; i < 2000 && !h.is_finished(large); ++i) {
    const SchedulePlan& plan = h.step();
    ASSERT_EQ(rows_of(plan, paused), 0);
    taken += static_cast<int64_t>(plan.preempted.size());
  }
  EXPECT_TRUE(h.is_finished(other));
  EXPECT_TRUE(h.is_finished(large));
  EXPECT_EQ(paused.blocks.num_pages(), 0);
  EXPECT_EQ(taken, 1) << "nobody else was preempted";
  EXPECT_EQ(paused.queue, Sequence::Queue::kPaused);
  h.scheduler.resume(paused);
  for (int i = 0; i < 200 && !h.is_finished(paused); ++i) h.step();
  EXPECT_TRUE(h.is_finished(paused));
  EXPECT_EQ(h.kv.stage(0).pool().num_used(), 0);
}

TEST(Scheduler, WhenPagesRunOutTheYoungestGoesAndEverybodyFinishes) {
  Harness h(10, {}, 0.1);  // ten blocks
  Sequence& a = h.add(100, 400);
  Sequence& b = h.add(100, 400);
  int64_t preemptions = 0;
  for (int i = 0; i < 3000 && h.finished.size() < 2; ++i) {
    const SchedulePlan& plan = h.step();
    for (const Sequence* s : plan.preempted) {
      EXPECT_EQ(s, &b) << "never the older one";
      ++preemptions;
    }
  }
  EXPECT_TRUE(h.is_finished(a));
  EXPECT_TRUE(h.is_finished(b));
  EXPECT_EQ(h.finished.front(), &a);
  EXPECT_GE(preemptions, 1);
  EXPECT_LE(preemptions, 3) << "no ping-pong";
}

TEST(Scheduler, AWaitingGiantIsOvertakenABoundedNumberOfTimes) {
  Harness h(100, {}, 0.1);
  Sequence& running = h.add(64 * 50, 2000);
  h.step();
  Sequence& giant = h.add(64 * 90, 1);
  int64_t overtakers = 0;
  int64_t steps_waited = 0;
  while (giant.queue != Sequence::Queue::kRunning && steps_waited < 5000) {
    h.add(30, 3);
    const SchedulePlan& plan = h.step();
    for (const Sequence* s : plan.admitted) {
      if (s == &giant) break;
      ++overtakers;
    }
    ++steps_waited;
  }
  EXPECT_TRUE(h.is_finished(running));
  EXPECT_EQ(overtakers, Scheduler::kMaxOvertakes);
}

TEST(Scheduler, SlotsAndRowsAreLimited) {
  SchedulerLimits limits;
  limits.max_num_seqs = 4;
  limits.max_batched_tokens = 128;
  limits.step_target_ms = 1e6;
  Harness h(1000, limits, 0.1);
  for (int i = 0; i < 10; ++i) h.add(100, 20);
  for (int i = 0; i < 500 && h.finished.size() < 10; ++i) {
    const SchedulePlan& plan = h.step();
    EXPECT_LE(plan.load.rows, 128);
    EXPECT_LE(h.scheduler.running().size(), 4u);
  }
  EXPECT_EQ(h.finished.size(), 10u);
}

TEST(Scheduler, PromptLogprobRowsRespectTheLogitLimit) {
  SchedulerLimits limits;
  limits.max_num_seqs = 4;
  limits.max_logit_rows = 40;
  Harness h(1000, limits, 0.1);
  Sequence& a = h.add(500, 2);
  Sequence& b = h.add(500, 2);
  Sequence& plain = h.add(500, 2);
  a.logits_from = b.logits_from = 0;
  for (int i = 0; i < 200 && h.finished.size() < 3; ++i) {
    const SchedulePlan& plan = h.step();
    int64_t logit_rows = 0;
    for (const ScheduledRows& rows : plan.rows) {
      logit_rows += rows.sequence->wants_prompt_logits() ? rows.num_rows : 1;
    }
    EXPECT_LE(logit_rows, 40);
  }
  EXPECT_EQ(h.finished.size(), 3u);
  EXPECT_EQ(h.finished.front(), &plain);
}

TEST(Scheduler, WorkIsConserved) {
  // As long as somebody has work, some row is computed.
  Harness h(40, {}, 0.1, {-1, 130});
  for (int i = 0; i < 30; ++i) h.add(50 + 37 * i % 700, 1 + 11 * i % 90);
  while (h.finished.size() < 30) {
    ASSERT_GT(h.step().load.rows, 0);
    ASSERT_LT(h.steps, 20000);
  }
}

TEST(CostModel, LearnsFourTermsFromNoisyMeasurements) {
  CostModel cost(50);
  uint32_t state = 1;
  const auto random = [&](uint32_t n) { return (state = state * 1664525u + 1013904223u) / 65536 % n; };
  const auto truth = [](const StepLoad& l) {
    return 0.8 + 0.02 * static_cast<double>(l.rows) + 3e-6 * l.row_keys + 0.05 * static_cast<double>(l.sequences);
  };
  for (int i = 0; i < 500; ++i) {
    StepLoad load;
    const uint32_t decodes = random(20);
    for (uint32_t s = 0; s < decodes; ++s) load.add(random(20000), 1);
    if (random(2) || decodes == 0) load.add(random(50000), 1 + random(800));
    cost.observe(load, truth(load) * (0.95 + 0.001 * random(100)));
  }
  for (const int64_t start : {0, 10'000, 40'000}) {
    for (const int64_t rows : {64, 512}) {
      StepLoad load;
      load.add(start, rows);
      EXPECT_NEAR(cost.predict_ms(load) / truth(load), 1.0, 0.15) << start << " " << rows;
      const int64_t within = cost.rows_within(start, cost.rows_ms(start, rows));
      EXPECT_NEAR(static_cast<double>(within), static_cast<double>(rows), 1.0);
    }
  }
}

TEST(CostModel, OneHiccupMovesAPredictionByABoundedFactor) {
  CostModel cost = linear_cost(0.1);
  StepLoad load;
  load.add(0, 100);
  const double before = cost.predict_ms(load);
  cost.observe(load, 60'000);  // the machine slept
  EXPECT_LE(cost.predict_ms(load), 1.8 * before);
  EXPECT_GT(cost.rows_within(0, 10), 0);
}

TEST(CostModel, AWrongPriorIsCorrectedWithinAFewSteps) {
  for (const double factor : {0.02, 30.0}) {
    CostModel cost(50);
    StepLoad load;
    load.add(0, 64);
    for (int i = 0; i < 12; ++i) cost.observe(load, 50 * factor);
    EXPECT_NEAR(cost.predict_ms(load) / (50 * factor), 1.0, 0.2) << factor;
  }
}

// Streams run alone for a while, then a long prompt comes: the first chunks must not overshoot, and the time left is
// predicted well before half of it is over.
TEST(CostModel, StartsSlowlyAfterDecodeStepsAndPredictsTheRest) {
  for (const double row_ms : {0.02, 0.5}) {
    const auto truth = [&](const StepLoad& l) {
      return 0.4 + row_ms * static_cast<double>(l.rows) + 1e-5 * row_ms * l.row_keys;
    };
    std::mt19937 rng(1);
    std::lognormal_distribution<double> noise(0, 0.15);
    CostModel cost(50);
    StepLoad decode;
    for (int s = 0; s < 8; ++s) decode.add(300, 1);
    for (int i = 0; i < 200; ++i) cost.observe(decode, truth(decode) * noise(rng));
    const int64_t prompt = 100'000;
    int64_t position = 0;
    double worst_ms = 0;
    while (position < prompt) {
      const double budget = std::max(50 - cost.predict_ms(decode), 12.5);
      StepLoad load = decode;
      const int64_t rows =
          std::clamp<int64_t>(cost.rows_within(position, budget), 1, std::min<int64_t>(2048, prompt - position));
      load.add(position, rows);
      worst_ms = std::max(worst_ms, truth(load));
      cost.observe(load, truth(load) * noise(rng));
      position += rows;
      if (position < prompt / 4 || position > prompt * 9 / 10) continue;
      StepLoad rest;
      rest.add(position, prompt - position);
      EXPECT_NEAR(cost.rows_ms(position, prompt - position) / truth(rest), 1.0, 0.4) << "at " << position;
    }
    EXPECT_LT(worst_ms, 70) << row_ms << " ms per row";
  }
}

}  // namespace
}  // namespace bam
