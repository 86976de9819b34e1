// How layers are dealt out to stages.
#include "models/stage_split.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "tests/reference/model_harness.h"

namespace bam {
namespace {

std::vector<LayerCost> layers(std::vector<double> flops, double pages = 1) {
  std::vector<LayerCost> costs;
  for (const double f : flops) costs.push_back({f, pages});
  return costs;
}

std::vector<int> counts(const std::vector<StageRange>& stages) {
  std::vector<int> result;
  int next = 0;
  for (const StageRange& stage : stages) {
    EXPECT_EQ(stage.first_layer, next);
    result.push_back(stage.num_layers);
    next += stage.num_layers;
  }
  return result;
}

TEST(StageSplit, EqualLayersAreDealtEvenly) {
  EXPECT_EQ(counts(split_layers(layers(std::vector<double>(12, 1.0)), 4)), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(counts(split_layers(layers(std::vector<double>(12, 1.0)), 1)), (std::vector<int>{12}));
  EXPECT_EQ(counts(split_layers(layers(std::vector<double>(3, 1.0)), 3)), (std::vector<int>{1, 1, 1}));
}

TEST(StageSplit, ACheapLastLayerGoesAlong) {
  EXPECT_EQ(counts(split_layers(layers({1, 1, 1, 1, 0.1}), 2)), (std::vector<int>{2, 3}));
  EXPECT_EQ(counts(split_layers(layers({1, 1, 1, 0.1}), 3)), (std::vector<int>{1, 1, 2}));
}

TEST(StageSplit, AnExpensiveLayerStandsAlone) {
  EXPECT_EQ(counts(split_layers(layers({1, 1, 8, 1, 1}), 3)), (std::vector<int>{2, 1, 2}));
}

TEST(StageSplit, PagesDecideBetweenSplitsThatAreAsFast) {
  std::vector<LayerCost> costs = layers({2, 1, 2, 1, 0.01}, 0);
  costs[0].pages = costs[2].pages = 1;  // 3 | 3.01 either way
  costs[4].pages = 1;
  const auto stages = split_layers(costs, 2);
  const auto shares = stage_shares(costs, stages);
  EXPECT_LE(shares[1].pages, 2.0 / 3 + 1e-9);
  // The slowest stage is never more than 3 % slower than it could be.
  EXPECT_LE(std::max(shares[0].time, shares[1].time) * 6.01, 1.03 * 3.01 + 1e-9);
}

TEST(StageSplit, NoSplitIsFaster) {
  std::srand(7);
  for (int round = 0; round < 200; ++round) {
    const int count = 2 + std::rand() % 7;
    std::vector<double> flops;
    for (int i = 0; i < count; ++i) flops.push_back(1 + std::rand() % 9);
    const auto costs = layers(flops);
    for (int stages = 1; stages <= count; ++stages) {
      const auto slowest = [&](const std::vector<StageRange>& split) {
        double worst = 0;
        for (const StageRange& s : split) {
          worst = std::max(
              worst, std::accumulate(flops.begin() + s.first_layer, flops.begin() + s.first_layer + s.num_layers, 0.0));
        }
        return worst;
      };
      // All splits: a bit per border between layers.
      double best = 1e9;
      for (unsigned borders = 0; borders < 1u << (count - 1); ++borders) {
        if (std::popcount(borders) != stages - 1) continue;
        std::vector<StageRange> split{{0, 1}};
        for (int l = 1; l < count; ++l) {
          if (borders >> (l - 1) & 1) split.push_back({l, 0});
          ++split.back().num_layers;
        }
        best = std::min(best, slowest(split));
      }
      const auto split = split_layers(costs, stages);
      ASSERT_EQ(static_cast<int>(counts(split).size()), stages);
      EXPECT_LE(slowest(split), 1.03 * best + 1e-9);
    }
  }
}

TEST(StageSplit, CostsFollowReachAndTheLastLayerIsCheap) {
  ModelConfig config;
  config.hidden_size = 64, config.intermediate_size = 128, config.num_layers = 3, config.num_heads = 2;
  config.num_kv_heads = 2, config.head_dim = 32, config.vocab_size = 512;
  std::vector<HeadReport> heads(6);
  heads[0].reach = heads[1].reach = 200;  // layer 0 sees nothing far away
  const auto costs = layer_costs(config, heads, 131'072);
  EXPECT_LT(costs[0].flops, costs[1].flops / 10);
  EXPECT_LT(costs[0].pages, 0.01);
  EXPECT_EQ(costs[1].pages, 2);
  EXPECT_LT(costs[2].flops, costs[0].flops);
  EXPECT_EQ(costs[2].pages, 2);
}

TEST(StageSplit, ListsAreChecked) {
  EXPECT_EQ(counts(parse_stage_layers("4,3,5", 12)), (std::vector<int>{4, 3, 5}));
  for (const char* bad : {"", "4", "4,4,5", "4,,4", "4,x", "4,-4,12", "12,", "99999999999", "4,4,4,4"}) {
    EXPECT_THROW(parse_stage_layers(bad, 12), UsageError) << bad;
  }
}

TEST(StageSplit, OfACheckpoint) {
  const reference::TestCheckpoint checkpoint(reference::all_variants().front().spec);
  const auto backend = make_cpu_backend({.num_threads = 1});
  const auto split = split_checkpoint(checkpoint.config(), checkpoint.weights(), {}, *backend, 2);
  EXPECT_EQ(split.back().first_layer + split.back().num_layers, checkpoint.config().num_layers);
  EXPECT_THROW(split_checkpoint(checkpoint.config(), checkpoint.weights(), {}, *backend,
                                static_cast<int>(checkpoint.config().num_layers) + 1),
               UsageError);
}

}  // namespace
}  // namespace bam
