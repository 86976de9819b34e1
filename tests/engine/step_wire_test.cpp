// Messages between ranks: what was written is read, and nothing else is believed.
#include "engine/step_wire.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/stage_tables.h"

namespace bam::wire {
namespace {

constexpr PlanLimits kLimits{.max_rows = 512,
                             .max_logit_rows = 64,
                             .num_groups = 3,
                             .num_pages = 1000,
                             .page_size = 64,
                             .vocab_size = 512,
                             .max_positions = 4 << 20};

StepPlan some_plan() {
  StepPlan plan;
  plan.ended = {4, 9};
  plan.entries = {{7, 0, 100, 0, 2}, {8, 64, 1, 1, 2}};
  for (int i = 0; i < 3 * 3; ++i) plan.pages.push_back(i * 10);
  plan.logit_rows = {99, 100};
  plan.host_rows = {0};
  plan.draws.rows.push_back({.row = 1, .top_k = 5, .uniform = 0.25, .seen = {0, 1}});
  plan.draws.seen.push_back({3, 1});
  return plan;
}

std::vector<std::byte> encoded(const StepPlan& plan) {
  std::vector<std::byte> message;
  encode({Kind::kStep, 5, 17}, plan, message);
  return message;
}

StepPlan decoded(const std::vector<std::byte>& message) {
  Reader reader(message);
  StepPlan plan;
  decode(reader, kLimits, plan);
  return plan;
}

TEST(StepWire, APlanArrivesAsItWasSent) {
  const auto message = encoded(some_plan());
  const Reader reader(message);
  EXPECT_EQ(reader.head().kind, Kind::kStep);
  EXPECT_EQ(reader.head().epoch, 5u);
  EXPECT_EQ(reader.head().step, 17u);
  const StepPlan plan = decoded(message);
  EXPECT_EQ(plan.num_rows(), 101);
  EXPECT_EQ(encoded(plan), message);
}

TEST(StepWire, EveryCutIsNoticed) {
  const auto message = encoded(some_plan());
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_THROW(decoded({message.begin(), message.begin() + static_cast<std::ptrdiff_t>(size)}), WireError) << size;
  }
  auto longer = message;
  longer.push_back({});
  EXPECT_THROW(decoded(longer), WireError);
}

TEST(StepWire, FieldsOutOfRangeAreRefused) {
  const auto refused = [](auto change) {
    StepPlan plan = some_plan();
    change(plan);
    try {
      decoded(encoded(plan));
    } catch (const WireError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused([](StepPlan&) {}));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[0].table = 0; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[0].num_rows = 0; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[0].num_rows = 600; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[0].start = -1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[0].start = INT64_MAX; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[0].start = 100; }));  // beyond its blocks
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[1].first_block = -1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[1].first_block = 3; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.entries[1].num_blocks = INT64_MAX; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.pages.pop_back(); }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.pages[0] = 1000; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.pages[0] = -2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.logit_rows = {100, 99}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.logit_rows[1] = 101; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.host_rows = {2}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.draws.rows[0].row = 2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.draws.rows[0].seen = {0, 2}; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.draws.rows[0].uniform = 1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.draws.seen[0].token = 512; }));
}

TEST(StepWire, RandomBytesAreSurvived) {
  std::mt19937 rng(3);
  const auto message = encoded(some_plan());
  int read = 0;
  StageTables tables(KvGeometry(64, {-1, 100, -1}, 512));
  std::vector<SequenceRows> rows;
  for (int i = 0; i < 20'000; ++i) {
    auto broken = message;
    for (int flips = 1 + static_cast<int>(rng() % 3); flips-- > 0;) {
      broken[rng() % broken.size()] = static_cast<std::byte>(rng());
    }
    try {
      const StepPlan plan = decoded(broken);
      tables.apply(plan, rows);
      ++read;
    } catch (const WireError&) {
    }
  }
  EXPECT_GT(read, 0) << "not every change is an error";
}

TEST(StepWire, TablesGrowByWhatChanged) {
  StageTables tables(KvGeometry(64, {-1, 100}, 512));
  std::vector<SequenceRows> rows;
  StepPlan plan;
  plan.entries = {{1, 0, 128, 0, 2}};
  plan.pages = {10, 11, 20, 21};
  tables.apply(plan, rows);
  plan.entries = {{1, 128, 65, 2, 4}};
  plan.pages = {12, 13, 22, 23};
  tables.apply(plan, rows);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(std::vector<int32_t>(rows[0].block_table, rows[0].block_table + 4), (std::vector<int32_t>{10, 11, 12, 13}));
  const int32_t* second = rows[0].block_table + rows[0].table_stride;
  EXPECT_EQ(std::vector<int32_t>(second, second + 4), (std::vector<int32_t>{20, 21, 22, 23}));
  // A fork's first block is written to another page.
  plan.entries = {{1, 193, 1, 3, 4}};
  plan.pages = {14, 24};
  tables.apply(plan, rows);
  EXPECT_EQ(rows[0].block_table[3], 14);
  EXPECT_EQ(rows[0].block_table[2], 12);
}

TEST(StepWire, TablesAreChecked) {
  StageTables tables(KvGeometry(64, {-1, 100}, 512));
  std::vector<SequenceRows> rows;
  StepPlan plan;
  plan.entries = {{1, 64, 1, 1, 2}};
  plan.pages = {10, 20};
  EXPECT_THROW(tables.apply(plan, rows), WireError) << "nobody told of its beginning";
  plan.entries = {{1, 320, 1, 0, 6}};
  plan.pages = {1, 2, 3, 4, 5, 6, -1, -1, -1, 7, 8, 9};
  tables.apply(plan, rows);  // out of the second group's reach
  plan.pages[0] = -1;
  EXPECT_THROW(tables.apply(plan, rows), WireError) << "the first group reaches everything";
  plan.pages[0] = 1;
  plan.entries.push_back(plan.entries[0]);
  plan.pages.insert(plan.pages.end(), plan.pages.begin(), plan.pages.end());
  EXPECT_THROW(tables.apply(plan, rows), WireError) << "twice";
  plan = {};
  plan.ended = {1};
  tables.apply(plan, rows);
  EXPECT_EQ(tables.size(), 0u);
}

}  // namespace
}  // namespace bam::wire
