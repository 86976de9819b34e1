// A whole model on the emulated device against the CPU backend.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/cuda_emu/backend_test_support.h"
#include "tests/reference/oracle.h"

namespace bam {
namespace {

using cuda_test::make_cuda;
using reference::HarnessOptions;
using reference::ModelHarness;
using reference::TestCheckpoint;

HarnessOptions harness(DType operand, DType kv, int sequences = 1, bool certified = true) {
  HarnessOptions options;
  options.kv_dtype = kv;
  options.num_sequences = sequences;
  options.max_tokens = 128;
  options.attention.certified = certified;
  options.backend = make_cuda(operand);
  return options;
}

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Continues `prompt` greedily.
std::vector<int32_t> greedy(ModelHarness& model, std::vector<int32_t> tokens, int count) {
  const auto vocab = static_cast<size_t>(model.model().config().vocab_size);
  std::vector<int32_t> out;
  int64_t position = 0;
  for (int i = 0; i < count; ++i) {
    const auto logits = model.step({{0, tokens, position}}, {static_cast<int32_t>(tokens.size() - 1)});
    position += static_cast<int64_t>(tokens.size());
    const auto best = std::max_element(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(vocab));
    out.push_back(static_cast<int32_t>(best - logits.begin()));
    tokens = {out.back()};
  }
  return out;
}

class ModelOnDevice : public ::testing::TestWithParam<reference::Variant> {};

TEST_P(ModelOnDevice, Float32GivesTheTokensAndLogitsOfTheCpu) {
  const TestCheckpoint checkpoint(GetParam().spec);
  HarnessOptions cpu_options;
  cpu_options.max_tokens = 128;
  ModelHarness cpu(checkpoint, cpu_options), device(checkpoint, harness(DType::kF32, DType::kF32));
  const auto prompt = reference::random_tokens(70, checkpoint.config().vocab_size);
  const auto expected = cpu.logits(prompt, 70), got = device.logits(prompt, 41);
  double size = 0;
  for (const float value : expected) size = std::max(size, std::fabs(static_cast<double>(value)));
  EXPECT_LT(cuda_test::worst(got, widened(expected)), 1e-4 * std::max(size, 1.0));
  EXPECT_EQ(greedy(device, prompt, 4), greedy(cpu, prompt, 4));
}

TEST_P(ModelOnDevice, TensorCoresStayWithinHalfPrecision) {
  const TestCheckpoint checkpoint(GetParam().spec);
  HarnessOptions cpu_options;
  cpu_options.max_tokens = 128;
  ModelHarness cpu(checkpoint, cpu_options), device(checkpoint, harness(DType::kF16, DType::kF16));
  const auto prompt = reference::random_tokens(70, checkpoint.config().vocab_size);
  const auto expected = cpu.logits(prompt, 70), got = device.logits(prompt, 70);
  double squares = 0;
  for (const float value : expected) squares += static_cast<double>(value) * value;
  const double size = std::sqrt(squares / static_cast<double>(expected.size()));
  const auto difference = reference::difference(got, widened(expected));
  EXPECT_LT(difference.root_mean_square, 0.01 * size);
  EXPECT_GT(difference.root_mean_square, 0) << "half precision cannot be exact";
}

INSTANTIATE_TEST_SUITE_P(Variants, ModelOnDevice, ::testing::ValuesIn(reference::all_variants()),
                         [](const auto& info) { return info.param.name; });

// Formats that the CPU backend has not: the float64 model with keys and values rounded in the same way. A number next
// to a tie of the format may fall to the other side, so the bound is a share of what the rounding itself costs.
TEST(ModelOnDevice, FormatsOfTheDeviceOnlyAgreeWithTheRoundedOracle) {
  const TestCheckpoint checkpoint(reference::all_variants().front().spec);
  const auto tokens = reference::random_tokens(70, checkpoint.config().vocab_size);
  reference::Oracle oracle(checkpoint.config(), checkpoint.weights());
  const std::vector<double> exact = oracle.logits(tokens);
  for (const DType kv : {DType::kFp8, DType::kBF16}) {
    oracle.set_kv_rounding(reference::kv_rounding(kv));
    const std::vector<double> expected = oracle.logits(tokens);
    ModelHarness device(checkpoint, harness(DType::kF32, kv));
    const std::vector<float> got = device.logits(tokens, 33);
    const auto cost = reference::difference(expected, exact), error = reference::difference(got, expected);
    EXPECT_LE(error.largest, 1e-4 + cost.largest / 2) << dtype_name(kv);
    EXPECT_LE(error.root_mean_square, cost.root_mean_square / 5) << dtype_name(kv);
    EXPECT_GT(cost.root_mean_square, 0) << dtype_name(kv);
  }
}

// Alone, in a batch, whole, in chunks and under another order of threads: the same bits.
TEST(ModelOnDevice, BatchInvariance) {
  for (const auto& [operand, kv] : {std::pair{DType::kF16, DType::kF16},
                                    {DType::kF16, DType::kI8},
                                    {DType::kF16, DType::kFp8},
                                    {DType::kBF16, DType::kBF16},
                                    {DType::kF32, DType::kF32},
                                    {DType::kF32, DType::kFp8}}) {
    const TestCheckpoint checkpoint(reference::all_variants().front().spec);
    const auto a = reference::random_tokens(90, checkpoint.config().vocab_size, 1);
    const auto b = reference::random_tokens(25, checkpoint.config().vocab_size, 2);
    ModelHarness alone(checkpoint, harness(operand, kv)), batch(checkpoint, harness(operand, kv, 2));
    const auto whole = alone.logits(a, 90);
    cuda_emu::Config config = cuda_emu::config();
    config.seed = 5;
    config.multiprocessors = 2;
    const cuda_emu::ScopedConfig scope(config);
    const auto vocab = static_cast<size_t>(checkpoint.config().vocab_size);
    std::vector<float> cut;
    int64_t done = 0;
    for (const int64_t count : {3, 1, 60, 1, 25}) {
      const std::vector<int32_t> piece(a.begin() + done, a.begin() + done + count);
      const int64_t other = done < 25 ? std::min<int64_t>(5, 25 - done) : 0;
      std::vector<ModelHarness::Piece> pieces;
      if (other > 0 && done < 25) pieces.push_back({1, {b.begin(), b.begin() + other}, 0});
      pieces.push_back({0, piece, done});
      const auto logits = batch.step(pieces);
      cut.insert(cut.end(), logits.end() - static_cast<std::ptrdiff_t>(static_cast<size_t>(count) * vocab),
                 logits.end());
      done += count;
    }
    ASSERT_EQ(cut.size(), whole.size());
    EXPECT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)), 0)
        << dtype_name(operand) << " " << dtype_name(kv);
  }
}

// A step of few rows is one graph launch, and every step one wait of the host. The graph of a batch size is made once: later
// steps of it send their inputs in one copy and launch it again, whatever sizes came between.
TEST(ModelOnDevice, DecodeStepsAreGraphsByBatchSize) {
  const TestCheckpoint checkpoint(reference::all_variants().front().spec);
  ModelHarness device(checkpoint, harness(DType::kF16, DType::kF16, 2)),
      plain(checkpoint, harness(DType::kF16, DType::kF16));
  const auto prompt = reference::random_tokens(90, checkpoint.config().vocab_size);
  const auto expected = plain.logits(prompt, 90);  // one step of 90 rows: no graph
  const auto vocab = static_cast<size_t>(checkpoint.config().vocab_size);

  struct Step {
    uint64_t graphs, instantiations;
  };
  const auto expect_step = [&](const std::vector<ModelHarness::Piece>& pieces, const Step& step) {
    std::vector<int32_t> wanted;
    for (const auto& piece : pieces)
      wanted.push_back((wanted.empty() ? -1 : wanted.back()) + static_cast<int32_t>(piece.tokens.size()));
    const cuda_emu::Statistics before = cuda_emu::statistics();
    const auto logits = device.step(pieces, wanted);
    const cuda_emu::Statistics after = cuda_emu::statistics();
    EXPECT_EQ(after.host_waits - before.host_waits, 1u);
    EXPECT_EQ(after.graph_launches - before.graph_launches, step.graphs);
    EXPECT_EQ(after.graph_instantiations - before.graph_instantiations, step.instantiations);
    EXPECT_EQ(after.captures - before.captures, step.instantiations);
    if (step.graphs == 1 && step.instantiations == 0) {
      EXPECT_EQ(after.copies - before.copies, 1u);
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto position = static_cast<size_t>(pieces[i].start_pos) + pieces[i].tokens.size() - 1;
      EXPECT_EQ(std::memcmp(logits.data() + i * vocab, expected.data() + position * vocab, vocab * sizeof(float)), 0)
          << "position " << position << " of sequence " << pieces[i].sequence;
    }
  };
  const auto one = [&](int sequence, int64_t position) {
    return ModelHarness::Piece{sequence, {prompt[static_cast<size_t>(position)]}, position};
  };
  device.step({{0, {prompt.begin(), prompt.begin() + 1}, 0}}, {0});  // sends the embedding
  expect_step({{0, {prompt.begin(), prompt.begin() + 80}, 0}}, {0, 0});
  expect_step({{1, {prompt.begin(), prompt.begin() + 70}, 0}}, {0, 0});
  expect_step({one(0, 80)}, {1, 0});
  expect_step({one(0, 81)}, {1, 0});
  expect_step({one(0, 82), one(1, 70)}, {1, 1});
  expect_step({one(1, 71)}, {1, 1});  // scratch memory moved when two rows needed more
  expect_step({one(0, 83), one(1, 72)}, {1, 0});
  expect_step({one(1, 73)}, {1, 0});
}

// Decoding past the end of a tile and to where bounds begin to leave out tiles: every step is one copy to the device, one
// graph that is there already, and the same launches.
TEST(ModelOnDevice, SteadyDecodingIsOneCopyAndOneGraph) {
  const TestCheckpoint checkpoint(reference::all_variants().front().spec);
  HarnessOptions options = harness(DType::kF16, DType::kF16);
  options.max_tokens = 640;
  options.backend = make_cuda();
  ModelHarness device(checkpoint, options);
  const auto tokens = reference::random_tokens(600, checkpoint.config().vocab_size);
  constexpr int64_t kPrompt = 440;
  device.step({{0, {tokens.begin(), tokens.begin() + kPrompt}, 0}}, {});
  const auto decode = [&](int64_t position) {
    device.step({{0, {tokens[static_cast<size_t>(position)]}, position}}, {0});
  };
  decode(kPrompt);
  decode(kPrompt + 1);
  cuda_emu::Statistics before = cuda_emu::statistics();
  decode(kPrompt + 2);
  const uint64_t launches = cuda_emu::statistics().launches - before.launches;
  EXPECT_GT(launches, 10u);
  int64_t made_anew = 0;
  for (int64_t position = kPrompt + 3; position < 600; ++position) {
    before = cuda_emu::statistics();
    decode(position);
    const cuda_emu::Statistics after = cuda_emu::statistics();
    ASSERT_EQ(after.launches - before.launches, launches) << "position " << position;
    ASSERT_EQ(after.graph_launches - before.graph_launches, 1u);
    ASSERT_EQ(after.graph_updates, before.graph_updates);
    ASSERT_EQ(after.host_waits - before.host_waits, 1u);
    made_anew += static_cast<int64_t>(after.captures - before.captures);
    if (after.captures == before.captures) {
      ASSERT_EQ(after.copies - before.copies, 1u) << "position " << position;
      ASSERT_EQ(after.graph_instantiations, before.graph_instantiations);
    }
  }
  // Room for masks and softmax states is asked for when the first tile can be left out, and grows by half.
  EXPECT_LE(made_anew, 3);
}

// Pages beyond every head's reach are freed and full of NaN: no kernel may touch them.
TEST(ModelOnDevice, UnreachablePagesAreNotRead) {
  testing::CheckpointSpec spec = reference::all_variants().front().spec;
  spec.prior.assign(static_cast<size_t>(spec.config.num_heads),
                    PriorParams{4.0, 1.0, 0});  // steep: a reach of a few keys
  spec.seq_scale.assign(static_cast<size_t>(spec.config.num_heads), 0.5f);
  const TestCheckpoint checkpoint(spec);
  HarnessOptions options = harness(DType::kF16, DType::kF16);
  options.max_tokens = 320;
  ModelHarness kept(checkpoint, options);
  options.backend = make_cuda();
  ModelHarness freed(checkpoint, options);
  const auto tokens = reference::random_tokens(300, checkpoint.config().vocab_size);
  const std::vector<int32_t> prompt(tokens.begin(), tokens.end() - 1);
  kept.step({{0, prompt, 0}}, {});
  freed.step({{0, prompt, 0}}, {});
  ASSERT_GT(freed.drop_unreachable_pages(299), 0);
  const auto a = kept.step({{0, {tokens.back()}, 299}}, {0}), b = freed.step({{0, {tokens.back()}, 299}}, {0});
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  EXPECT_FALSE(std::isnan(a.front()));
}

}  // namespace
}  // namespace bam
