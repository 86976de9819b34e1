#include "kernels/cpu/attention_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace bam::cpu {
namespace {

using Kind = AttentionPlanner::Kind;

AttentionSpec spec_of(std::vector<int64_t> reach) {
  AttentionSpec spec;
  spec.num_heads = static_cast<int>(reach.size());
  spec.num_kv_heads = spec.num_heads;
  spec.head_dim = 32;
  spec.reach = std::move(reach);
  return spec;
}

TEST(AttentionPlanner, LayersOfOneShapeShareThePlanOfAStep) {
  AttentionPlanner planner(2);
  AttentionSpec first = spec_of({-1, 300}), same = first, other = spec_of({-1, -1});
  same.first_group = 2;
  same.seq_scale = {1, 2};
  const int shape = planner.shape_of(first);
  EXPECT_EQ(planner.shape_of(same), shape);
  EXPECT_NE(planner.shape_of(other), shape);

  std::vector<SequenceRows> rows = {{nullptr, 0, 0, 1, 5000}, {nullptr, 0, 1, 100, 20}};
  const AttentionPlan* plan = &planner.plan(shape, Kind::kWriteAndAttend, rows, true);
  EXPECT_EQ(planner.num_made(), 1u);
  const std::vector<int32_t> table(100);
  std::vector<SequenceRows> elsewhere = rows;  // other pages, other memory: the same plan
  for (SequenceRows& seq : elsewhere) seq.block_table = table.data();
  EXPECT_EQ(&planner.plan(planner.shape_of(same), Kind::kWriteAndAttend, elsewhere, true), plan);
  EXPECT_EQ(planner.num_made(), 1u);
  planner.plan(planner.shape_of(other), Kind::kWriteAndAttend, rows, true);
  EXPECT_EQ(planner.num_made(), 2u);
}

TEST(AttentionPlanner, AnythingThatChangesThePlanMakesANewOne) {
  AttentionPlanner planner(2);
  const int shape = planner.shape_of(spec_of({300, 300}));
  std::vector<SequenceRows> rows = {{nullptr, 0, 0, 1, 5000}};
  EXPECT_GT(planner.plan(shape, Kind::kAttend, rows, true).blocks.front().first_tile, 0);
  EXPECT_EQ(planner.plan(shape, Kind::kAttend, rows, false).blocks.front().first_tile, 0);
  EXPECT_EQ(planner.num_made(), 2u);
  ++rows[0].start_pos;
  planner.plan(shape, Kind::kAttend, rows, false);
  EXPECT_EQ(planner.num_made(), 3u);
  rows.push_back({nullptr, 0, 1, 1, 7});
  EXPECT_EQ(planner.plan(shape, Kind::kAttend, rows, false).blocks.size(), 4u);
  EXPECT_EQ(planner.plan(shape, Kind::kAttend, {}, false).blocks.size(), 0u);
  EXPECT_EQ(planner.num_made(), 5u);
}

TEST(AttentionPlanner, EveryRowOfEveryHeadIsInOneBlockAndEveryBlockInOneTask) {
  AttentionPlanner planner(2);
  const int shape = planner.shape_of(spec_of({-1, 700, 90}));
  const std::vector<SequenceRows> rows = {
      {nullptr, 0, 0, 1, 100'000}, {nullptr, 0, 1, 200, 60}, {nullptr, 0, 201, 1, 0}, {nullptr, 0, 202, 70, 40'000}};
  for (const Kind kind : {Kind::kAttend, Kind::kWriteAndAttend}) {
    const AttentionPlan& plan = planner.plan(shape, kind, rows, true);
    std::vector<int> seen(272 * 3);
    for (const QueryBlock& block : plan.blocks) {
      const SequenceRows& seq = rows[static_cast<size_t>(block.sequence)];
      for (int p = 0; p < block.num_positions; ++p) {
        const int64_t row = seq.row_begin + block.first_row + p;
        EXPECT_EQ((seq.start_pos + block.first_row + p) / kTileKeys, block.diagonal_tile);
        for (int h = block.first_head; h < block.first_head + block.num_heads; ++h)
          ++seen[static_cast<size_t>(row * 3 + h)];
      }
    }
    for (const int count : seen) EXPECT_EQ(count, 1);
    std::vector<int64_t> times(plan.blocks.size());
    for (const AttentionTask& task : plan.tasks) {
      for (int32_t b = task.block; b < task.block + task.num_blocks; ++b) ++times[static_cast<size_t>(b)];
    }
    for (size_t b = 0; b < times.size(); ++b) {
      const QueryBlock& block = plan.blocks[b];
      EXPECT_EQ(times[b], block.split() ? block.last_segment() - block.first_segment() : 1);
    }
  }
}

TEST(BackendDoors, RefuseRowsThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a backend has threads
  const auto backend = make_cpu_backend({});
  const std::vector<float> values(32 * 16);
  const HostMatrix matrix{reinterpret_cast<const std::byte*>(values.data()), DType::kF32, 32, 16};
  const auto weights = backend->make_linear({&matrix, 1}, DType::kF32);
  std::vector<float> in(64), out(128);
  EXPECT_DEATH(backend->linear(*weights, {in.data(), 4, 15}, {out.data(), 4, 32}), "in_features");
  EXPECT_DEATH(backend->linear(*weights, {in.data(), 4, 16}, {out.data(), 4, 31}), "out_features");
  EXPECT_DEATH(backend->linear(*weights, {in.data(), 4, 16}, {out.data(), 3, 32}), "count");
  const int32_t row = 4;
  EXPECT_DEATH(backend->gather_rows({in.data(), 4, 16}, {&row, 1}, {out.data(), 1, 16}), "all_below");
  EXPECT_DEATH(backend->swiglu({in.data(), 2, 32}, {out.data(), 2, 32}), "width");
  const auto buffer = backend->allocate(100 * sizeof(float));
  EXPECT_DEATH(backend->float_rows(*buffer, 11, 10), "size_bytes");
  backend->linear(*weights, {in.data(), 4, 16}, {out.data(), 4, 32});
}

}  // namespace
}  // namespace bam::cpu
