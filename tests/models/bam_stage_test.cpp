// A model cut into stages gives the bits of the whole one: logits, pages, counters, and what a probe sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "models/attention_probe.h"
#include "models/attention_walk.h"
#include "models/bam.h"
#include "models/weight_memory.h"
#include "tests/reference/model_harness.h"

namespace bam::reference {
namespace {

constexpr int64_t kTokens = 200, kRows = 96, kPage = 64, kLayers = 4;

// One stage with the pages of one sequence, in order.
struct Stage {
  Stage(Backend& backend, const TestCheckpoint& checkpoint, DType kv_dtype, StageRange range) {
    ModelOptions options;
    options.max_rows = options.max_logit_rows = kRows;
    options.stage = range;
    model = std::make_unique<BamModel>(backend, checkpoint.config(), checkpoint.weights(), options);
    blocks = (kTokens + kPage - 1) / kPage;
    kv.layout = make_kv_layout(kv_dtype, static_cast<int>(checkpoint.config().head_dim), kPage);
    kv.num_pages = blocks * model->num_groups();
    memory = backend.allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
    kv.base = static_cast<std::byte*>(memory->data());
    std::memset(kv.base, 0, memory->size_bytes());
    table.resize(static_cast<size_t>(kv.num_pages));
    std::iota(table.begin(), table.end(), 0);
  }
  std::unique_ptr<BamModel> model;
  KvCacheView kv;
  std::unique_ptr<DeviceBuffer> memory;
  int64_t blocks = 0;
  std::vector<int32_t> table;
};

// Logits [kTokens, vocab] of the tokens, cut into chunks, through all stages.
std::vector<float> run(std::vector<Stage>& stages, const std::vector<int32_t>& tokens, int64_t chunk) {
  const ModelConfig& config = stages.front().model->config();
  std::vector<float> logits(tokens.size() * static_cast<size_t>(config.vocab_size));
  std::vector<float> rows_in(static_cast<size_t>(kRows * config.hidden_size)), rows_out = rows_in;
  for (int64_t begin = 0; begin < kTokens; begin += chunk) {
    const int64_t rows = std::min(chunk, kTokens - begin);
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    const auto piece = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
    for (Stage& stage : stages) {
      const SequenceRows sequence{stage.table.data(), stage.blocks, 0, rows, begin};
      ForwardInput input{piece, {&sequence, 1}, {}};
      if (!stage.model->first_stage()) input.residual_in = rows_in.data();
      std::span<float> to;
      if (stage.model->last_stage()) {
        input.logit_rows = all;
        to = std::span(logits).subspan(static_cast<size_t>(begin * config.vocab_size),
                                       static_cast<size_t>(rows * config.vocab_size));
      } else {
        input.residual_out = rows_out.data();
      }
      stage.model->forward(input, stage.kv, to);
      std::swap(rows_in, rows_out);
    }
  }
  return logits;
}

std::vector<Stage> make_stages(Backend& backend, const TestCheckpoint& checkpoint, DType kv_dtype,
                               const std::vector<int>& split) {
  std::vector<Stage> stages;
  for (int first = 0; const int count : split) {
    stages.emplace_back(backend, checkpoint, kv_dtype, StageRange{first, count});
    first += count;
  }
  return stages;
}

std::vector<std::byte> pages(const std::vector<Stage>& stages) {
  std::vector<std::byte> all;
  for (const Stage& s : stages) all.insert(all.end(), s.kv.base, s.kv.base + s.memory->size_bytes());
  return all;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const std::vector<std::vector<int>> kSplits = {{1, 3}, {1, 2, 1}, {1, 1, 1, 1}};

class BamStages : public ::testing::TestWithParam<Variant> {
 protected:
  BamStages() : checkpoint_(spec()), backend_(make_cpu_backend({.num_threads = 2})) {}
  static testing::CheckpointSpec spec() {
    testing::CheckpointSpec spec = GetParam().spec;
    spec.config.num_layers = kLayers;
    spec.prior.clear();
    return spec;
  }
  TestCheckpoint checkpoint_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(BamStages, GiveTheBitsOfTheWhole) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, checkpoint_.config().vocab_size);
  for (const DType kv_dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kI4}) {
    auto whole = make_stages(*backend_, checkpoint_, kv_dtype, {kLayers});
    const std::vector<float> expected = run(whole, tokens, 70);
    for (const auto& split : kSplits) {
      auto stages = make_stages(*backend_, checkpoint_, kv_dtype, split);
      ASSERT_TRUE(same(run(stages, tokens, 33), expected)) << dtype_name(kv_dtype) << ", " << split.size() << " stages";
      ASSERT_EQ(pages(stages), pages(whole)) << dtype_name(kv_dtype);
    }
  }
}

TEST_P(BamStages, DealOutReportsAndWeights) {
  auto whole = make_stages(*backend_, checkpoint_, DType::kF32, {kLayers});
  auto stages = make_stages(*backend_, checkpoint_, DType::kF32, {1, 2, 1});
  std::vector<int64_t> reach;
  size_t weight_bytes = 0, heads = 0;
  for (const Stage& stage : stages) {
    reach.insert(reach.end(), stage.model->group_reach().begin(), stage.model->group_reach().end());
    for (const HeadReport& head : stage.model->heads()) {
      const HeadReport& expected = whole.front().model->heads()[heads++];
      EXPECT_EQ(head.layer, expected.layer);
      EXPECT_EQ(head.head, expected.head);
      EXPECT_EQ(head.reach, expected.reach);
    }
    weight_bytes += stage.model->weight_bytes();
  }
  EXPECT_EQ(reach, whole.front().model->group_reach());
  EXPECT_EQ(heads, whole.front().model->heads().size());
  EXPECT_EQ(weight_bytes, whole.front().model->weight_bytes());
}

// [layers][heads * head_dim] of a row whose pages are complete, handed from stage to stage.
std::vector<float> row_queries(std::vector<Stage>& stages, int32_t token, int64_t position) {
  std::vector<float> queries, row_in(static_cast<size_t>(stages.front().model->config().hidden_size)), row_out = row_in;
  for (Stage& stage : stages) {
    const SequenceRows row{stage.table.data(), stage.blocks, 0, 1, position};
    const std::vector<float> part = AttentionProbe::queries(*stage.model, stage.kv, row, token,
                                                            stage.model->first_stage() ? nullptr : row_in.data(),
                                                            stage.model->last_stage() ? nullptr : row_out.data());
    queries.insert(queries.end(), part.begin(), part.end());
    std::swap(row_in, row_out);
  }
  return queries;
}

TEST_P(BamStages, HandAProbeOn) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, checkpoint_.config().vocab_size);
  auto whole = make_stages(*backend_, checkpoint_, DType::kF16, {kLayers});
  run(whole, tokens, 70);
  const std::vector<std::byte> before = pages(whole);
  const std::vector<AttentionCounters> counters = whole.front().model->counters();
  const std::vector<float> expected = row_queries(whole, tokens.back(), kTokens - 1);
  EXPECT_EQ(pages(whole), before) << "the row writes what is there";
  EXPECT_EQ(whole.front().model->counters()[0].visited, counters[0].visited);
  for (const auto& split : kSplits) {
    auto stages = make_stages(*backend_, checkpoint_, DType::kF16, split);
    run(stages, tokens, 33);
    EXPECT_TRUE(same(row_queries(stages, tokens.back(), kTokens - 1), expected)) << split.size() << " stages";
  }
}

// Every head's row, by the definition of the model in float64.
TEST_P(BamStages, RowsLookWhereTheOracleLooks) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, checkpoint_.config().vocab_size);
  const ModelConfig& config = checkpoint_.config();
  const int64_t position = kTokens - 1;
  Capture capture;
  Oracle(config, checkpoint_.weights()).logits(tokens, &capture);
  auto whole = make_stages(*backend_, checkpoint_, DType::kF32, {kLayers});
  run(whole, tokens, 70);
  Stage& stage = whole.front();
  const std::vector<float> queries = row_queries(whole, tokens.back(), position);
  const auto look_at = [&](const AttentionLook& look) {
    EXPECT_EQ(check_look(look, config, kTokens), "");
    AttentionWalk walk(AttentionProbe::specs(*stage.model), look, position, queries);
    for (size_t g = 0; g < walk.groups().size(); ++g) {
      const int64_t row = walk.groups()[g].layer * config.num_kv_heads + walk.groups()[g].kv_head;
      for (int64_t block = stage.blocks - 1; block >= 0; --block) {
        const int32_t page = stage.table[static_cast<size_t>(row * stage.blocks + block)];
        walk.add(g, block * kPage, stage.kv.layout,
                 stage.kv.base + page * static_cast<int64_t>(stage.kv.layout.page_bytes()));
      }
    }
    auto report = walk.report();
    EXPECT_TRUE(report);
    return *report;
  };
  const auto expected = [&](const HeadAttention& head, int64_t key) {
    const auto& p = capture.layers[static_cast<size_t>(head.layer)].probabilities;
    return p[static_cast<size_t>((head.head * kTokens + position) * kTokens + key)];
  };
  const AttentionReport keys = look_at({.bins = 4096, .peaks = 3});
  ASSERT_EQ(keys.heads.size(), static_cast<size_t>(kLayers * config.num_heads));
  EXPECT_EQ(keys.bin_keys, 1);
  for (const HeadAttention& head : keys.heads) {
    SCOPED_TRACE(::testing::Message() << "layer " << head.layer << " head " << head.head);
    double total = 0, prior = 0, largest = 0;
    for (int64_t key = 0; key < kTokens; ++key) {
      const auto k = static_cast<size_t>(key);
      EXPECT_NEAR(head.sum[k], expected(head, key), 1e-3 * expected(head, key) + 1e-5) << "key " << key;
      EXPECT_NEAR(head.max[k], head.sum[k], 1e-6 * head.sum[k]);
      total += head.sum[k];
      prior += head.prior[k];
      largest = std::max(largest, double{head.sum[k]});
    }
    EXPECT_NEAR(total, 1, 1e-5);
    EXPECT_NEAR(prior, 1, 1e-5);
    ASSERT_EQ(head.peaks.size(), 3u);
    EXPECT_NEAR(head.peaks[0].weight, largest, 1e-6);
    EXPECT_GE(head.peaks[0].weight, head.peaks[1].weight);
    EXPECT_NEAR(head.peaks[1].weight, head.sum[static_cast<size_t>(head.peaks[1].key)], 1e-6);
  }
  const AttentionReport part = look_at({.layer = 2, .head = 1, .from = 40, .to = 150, .bins = 9, .spans = {{10, 60}}});
  ASSERT_EQ(part.heads.size(), 1u);
  EXPECT_EQ(part.bin_keys, 13);
  const HeadAttention& binned = part.heads[0];
  const HeadAttention& full = keys.heads[static_cast<size_t>(2 * config.num_heads + 1)];
  ASSERT_EQ(binned.sum.size(), 9u);
  double inside = 0, span = 0;
  for (size_t b = 0; b < 9; ++b) {
    const auto begin = full.sum.begin() + 40 + 13 * static_cast<int64_t>(b);
    const auto end = std::min(begin + 13, full.sum.begin() + 150);
    EXPECT_NEAR(binned.sum[b], std::accumulate(begin, end, 0.0), 1e-6);
    EXPECT_NEAR(binned.max[b], *std::max_element(begin, end), 1e-6);
    inside += binned.sum[b];
  }
  for (size_t key = 10; key < 60; ++key) span += full.sum[key];
  EXPECT_NEAR(binned.outside, 1 - inside, 1e-5);
  EXPECT_NEAR(binned.spans[0], span, 1e-5);
}

std::vector<Variant> some_variants() {
  std::vector<Variant> variants = all_variants(), some;
  for (size_t i = 0; i < variants.size(); i += 5) some.push_back(variants[i]);
  for (const Variant& v : variants) {
    if (v.spec.config.position_encoding == PositionEncoding::kSinusoidal) some.push_back(v);
  }
  std::ranges::sort(some, {}, &Variant::name);
  const auto twice = std::ranges::unique(some, {}, &Variant::name);
  some.erase(twice.begin(), twice.end());
  return some;
}

INSTANTIATE_TEST_SUITE_P(Some, BamStages, ::testing::ValuesIn(some_variants()),
                         [](const auto& info) { return info.param.name; });

// `bam inspect` tells it from config.json.
TEST(MatrixBytes, AreWhatAStageHolds) {
  const TestCheckpoint checkpoint({.config = testing::tiny_config()});
  const auto backend = make_cpu_backend({.num_threads = 1});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI4}) {
    for (const StageRange range : {StageRange{}, StageRange{0, 1}, StageRange{1, 1}}) {
      ModelOptions options{.weight_dtype = dtype};
      options.stage = range;
      const BamModel model(*backend, checkpoint.config(), checkpoint.weights(), options);
      EXPECT_EQ(matrix_bytes(checkpoint.config(), options), model.weight_bytes())
          << dtype_name(dtype) << ", layers from " << range.first_layer << ", " << range.num_layers;
    }
  }
}

}  // namespace
}  // namespace bam::reference
