#include "kernels/cpu/attention_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

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

// Two layers of one shape, one of another, and pages for one sequence of up to 128 tokens.
struct PlannedLayers {
  static constexpr int kDim = 32;
  PlannedLayers() {
    for (const auto& reach : {std::vector<int64_t>{-1, 300}, {-1, 300}, {-1, -1}}) {
      layers.push_back(backend.make_attention(spec_of(reach)));
      AttentionLayer* const each[] = {layers.back().get()};
      backend.reserve_positions(each, 128);
    }
    kv.layout = make_kv_layout(DType::kF32, kDim, kTileKeys);
    kv.num_pages = static_cast<int64_t>(table.size());
    memory = backend.allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
    kv.base = static_cast<std::byte*>(memory->data());
  }
  void step(int64_t position) {
    const SequenceRows row{table.data(), 2, 0, 1, position};
    for (const auto& layer : layers) {
      backend.write_and_attend(*layer, kv, {&row, 1}, {qkv.data(), 1, 6 * kDim}, {}, {out.data(), 1, 2 * kDim},
                               counters);
    }
  }

  CpuBackend backend{{.num_threads = 1}};
  std::vector<std::unique_ptr<AttentionLayer>> layers;
  std::vector<int32_t> table = {0, 1, 2, 3};  // two groups of two pages
  KvCacheView kv;
  std::unique_ptr<DeviceBuffer> memory;
  std::vector<float> qkv = std::vector<float>(6 * kDim, 0.5f), out = std::vector<float>(2 * kDim);
  std::vector<AttentionCounters> counters = std::vector<AttentionCounters>(2);
};

TEST(AttentionPlanner, AStepIsPlannedOncePerShape) {
  PlannedLayers model;
  for (uint64_t step = 0; step < 20; ++step) {
    model.step(static_cast<int64_t>(step));
    EXPECT_EQ(model.backend.planner().num_made(), 2 * (step + 1));
  }
}

}  // namespace
}  // namespace bam::cpu
