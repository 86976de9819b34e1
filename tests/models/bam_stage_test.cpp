// A model cut into stages gives the bits of the whole one: logits, pages, counters, and what a probe sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "models/attention_probe.h"
#include "models/bam.h"
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

TEST_P(BamStages, HandAProbeOn) {
  const std::vector<int32_t> tokens = random_tokens(150, checkpoint_.config().vocab_size);
  auto whole = make_stages(*backend_, checkpoint_, DType::kF32, {kLayers});
  auto stages = make_stages(*backend_, checkpoint_, DType::kF32, {1, 2, 1});
  std::vector<float> rows_in(static_cast<size_t>(kRows * checkpoint_.config().hidden_size)), rows_out = rows_in;
  for (const int layer : {0, 1, 2, 3}) {
    AttentionProbe expected(*whole.front().model, tokens, layer, 1, 140);
    while (!expected.done()) expected.advance(50);
    std::vector<std::unique_ptr<AttentionProbe>> probes;
    for (Stage& stage : stages) {
      if (stage.model->stage().first_layer > layer) break;
      probes.push_back(std::make_unique<AttentionProbe>(*stage.model, tokens, layer, 1, 140));
    }
    while (!probes.back()->done()) {
      for (size_t s = 0; s < probes.size(); ++s) {
        EXPECT_EQ(probes[s]->passes_on(), s + 1 < probes.size());
        probes[s]->advance(37, s == 0 ? nullptr : rows_in.data(), probes[s]->passes_on() ? rows_out.data() : nullptr);
        std::swap(rows_in, rows_out);
      }
    }
    EXPECT_TRUE(same(probes.back()->result(), expected.result())) << "layer " << layer;
  }
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

}  // namespace
}  // namespace bam::reference
