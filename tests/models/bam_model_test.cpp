// BamModel against the float64 oracle, for every variant of the family, and against itself: how a prompt was cut, where
// its pages lie and how many threads worked on it never change a bit.
//
// Tolerances, on logits of standard deviation ~1:
//   f32                 2e-4 at 300 tokens.
//   f16, bf16 weights   the same: the oracle is given the rounded weights, and products are accumulated in float32.
//   f16, int8, int4 KV  the oracle rounds keys and values as the cache does. D = rounded oracle - exact oracle is what
//                       the format costs. A value within float32 noise of a rounding boundary may fall to its other
//                       side: a whole step, where rounding costs 1 / sqrt(12) of a step on average. With a fraction f
//                       of such values the root mean square difference is sqrt(12 f) of D's: at most a fifth for f =
//                       0.3 %. Single logits may come near D: max |D| / 2 + 2e-4. A scale that is one half-precision
//                       step off already costs a third of D's root mean square and fails.
#include "models/attention_probe.h"
#include "models/bam.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "kernels/cpu/cpu_backend.h"
#include "tests/reference/model_harness.h"

namespace bam::reference {
namespace {

constexpr int64_t kPromptTokens = 300;
constexpr double kTolerance = 2e-4;
constexpr int64_t kVocab = 512;  // of every variant

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

std::vector<int32_t> prompt() { return random_tokens(kPromptTokens, kVocab); }

// Rows [begin, end) of logits [n, kVocab].
template <typename T>
std::vector<T> rows(const std::vector<T>& logits, int64_t begin, int64_t end) {
  return {logits.begin() + begin * kVocab, logits.begin() + end * kVocab};
}

// Where two sets of logits [n, kVocab] differ first; gtest would print thousands of numbers that look alike.
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " logits";
  const auto [at_a, at_b] =
      std::mismatch(a.begin(), a.end(), b.begin(), [](float x, float y) { return bits_of(x) == bits_of(y); });
  if (at_a == a.end()) return ::testing::AssertionSuccess();
  const int64_t index = at_a - a.begin();
  return ::testing::AssertionFailure() << fmt::format("row {}, token {}: {} and {}, {:.2g} apart", index / kVocab,
                                                      index % kVocab, *at_a, *at_b, double{*at_a} - double{*at_b});
}

std::string variant_name(const ::testing::TestParamInfo<Variant>& info) { return info.param.name; }

class BamModelVariant : public ::testing::TestWithParam<Variant> {};

TEST_P(BamModelVariant, AgreesWithTheOracleHoweverThePromptIsCut) {
  const TestCheckpoint checkpoint(GetParam().spec);
  const std::vector<int32_t> tokens = prompt();
  const std::vector<double> expected = Oracle(checkpoint.config(), checkpoint.weights()).logits(tokens);
  ModelHarness harness(checkpoint);
  const std::vector<float> whole = harness.logits(tokens, kPromptTokens);
  ASSERT_LE(max_difference(whole, expected), kTolerance);
  for (const int64_t chunk : {1, 7, 63, 64, 65, 100}) {  // 1: token by token
    ASSERT_TRUE(same_bits(harness.logits(tokens, chunk), whole)) << "chunks of " << chunk;
  }
}

TEST_P(BamModelVariant, AgreesWithTheOracleAtPageBoundaries) {
  const TestCheckpoint checkpoint(GetParam().spec);
  const std::vector<int32_t> tokens = random_tokens(140, kVocab);
  const std::vector<double> expected = Oracle(checkpoint.config(), checkpoint.weights()).logits(tokens);
  for (const int64_t length : {63, 64, 65, 128, 129}) {
    // A prompt of that length, then three generated tokens.
    ModelHarness harness(checkpoint);
    const std::vector<float> logits = harness.logits({tokens.begin(), tokens.begin() + length}, length);
    ASSERT_LE(max_difference(logits, rows(expected, 0, length)), kTolerance) << length << " tokens";
    for (int64_t i = length; i < length + 3; ++i) {
      const std::vector<float> next = harness.step({{.tokens = {tokens[i]}, .start_pos = i}});
      ASSERT_LE(max_difference(next, rows(expected, i, i + 1)), kTolerance) << "token " << i;
    }
  }
}

TEST_P(BamModelVariant, DenseAttentionAgreesWithTheOracle) {
  const TestCheckpoint checkpoint(GetParam().spec);
  const std::vector<int32_t> tokens = prompt();
  const std::vector<double> expected = Oracle(checkpoint.config(), checkpoint.weights()).logits(tokens);
  ModelHarness harness(checkpoint, {.attention = {.certified = false}});
  EXPECT_LE(max_difference(harness.logits(tokens, 77), expected), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, BamModelVariant, ::testing::ValuesIn(all_variants()), variant_name);

class BamModelExtreme : public ::testing::TestWithParam<Variant> {};

TEST_P(BamModelExtreme, IsFiniteAndAgreesWithTheOracle) {
  const TestCheckpoint checkpoint(GetParam().spec);
  const std::vector<int32_t> tokens = prompt();
  const std::vector<double> expected = Oracle(checkpoint.config(), checkpoint.weights()).logits(tokens);
  for (const bool certified : {true, false}) {
    for (const DType kv_dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kI4}) {
      ModelHarness harness(checkpoint, {.kv_dtype = kv_dtype, .attention = {.certified = certified}});
      const std::vector<float> logits = harness.logits(tokens, 50);
      for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit)) << dtype_name(kv_dtype);
      if (kv_dtype == DType::kF32) {
        EXPECT_LE(max_difference(logits, expected), kTolerance) << (certified ? "certified" : "dense");
      }
    }
  }
}

TEST_P(BamModelExtreme, FirstTokensOneByOne) {
  const TestCheckpoint checkpoint(GetParam().spec);
  const std::vector<int32_t> tokens = random_tokens(5, kVocab);
  const std::vector<double> expected = Oracle(checkpoint.config(), checkpoint.weights()).logits(tokens);
  ModelHarness harness(checkpoint);
  for (int64_t i = 0; i < 5; ++i) {
    const std::vector<float> logits = harness.step({{.tokens = {tokens[i]}, .start_pos = i}});
    EXPECT_LE(max_difference(logits, rows(expected, i, i + 1)), kTolerance) << "token " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Priors, BamModelExtreme, ::testing::ValuesIn(extreme_variants()), variant_name);

class BamModelStorage : public ::testing::TestWithParam<const char*> {
 protected:
  Variant variant() const { return find_variant(GetParam()); }
};

TEST_P(BamModelStorage, SixteenBitWeights) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    // A checkpoint of that type as it is, and a float32 one asked to run in it.
    testing::CheckpointSpec spec = variant().spec;
    spec.dtype = dtype;
    const TestCheckpoint stored(spec);
    ModelHarness stored_harness(stored, {.weight_dtype = dtype});
    const std::vector<int32_t> tokens = prompt();
    EXPECT_LE(
        max_difference(stored_harness.logits(tokens, 100), Oracle(stored.config(), stored.weights()).logits(tokens)),
        kTolerance)
        << dtype_name(dtype);

    const TestCheckpoint exact(variant().spec);
    const RoundedWeights rounded(exact.weights(), dtype);
    ModelHarness rounding_harness(exact, {.weight_dtype = dtype});
    const std::vector<float> logits = rounding_harness.logits(tokens, 100);
    EXPECT_LE(max_difference(logits, Oracle(exact.config(), rounded.weights()).logits(tokens)), kTolerance)
        << dtype_name(dtype);
    EXPECT_TRUE(same_bits(rounding_harness.logits(tokens, 7), logits));
  }
}

TEST_P(BamModelStorage, CompressedKeysAndValues) {
  const TestCheckpoint checkpoint(variant().spec);
  const std::vector<int32_t> tokens = prompt();
  Oracle oracle(checkpoint.config(), checkpoint.weights());
  const std::vector<double> exact = oracle.logits(tokens);
  for (const DType kv_dtype : {DType::kF16, DType::kI8, DType::kI4}) {
    oracle.set_kv_rounding(kv_rounding(kv_dtype));
    const std::vector<double> rounded = oracle.logits(tokens);
    const Difference cost = difference(rounded, exact);
    ModelHarness harness(checkpoint, {.kv_dtype = kv_dtype});
    const std::vector<float> logits = harness.logits(tokens, kPromptTokens);
    const Difference error = difference(logits, rounded);
    EXPECT_LE(error.largest, kTolerance + cost.largest / 2) << dtype_name(kv_dtype);
    EXPECT_LE(error.root_mean_square, cost.root_mean_square / 5) << dtype_name(kv_dtype);
    RecordProperty(fmt::format("{} cost, error", dtype_name(kv_dtype)),
                   fmt::format("max {:.1e} {:.1e}, rms {:.1e} {:.1e}", cost.largest, error.largest,
                               cost.root_mean_square, error.root_mean_square));
    for (const int64_t chunk : {1, 65}) {
      EXPECT_TRUE(same_bits(harness.logits(tokens, chunk), logits))
          << dtype_name(kv_dtype) << " in chunks of " << chunk;
    }
  }
}

TEST_P(BamModelStorage, SameBitsForEveryThreadCountAndPageSize) {
  const TestCheckpoint checkpoint(variant().spec);
  const std::vector<int32_t> tokens = prompt();
  for (const DType kv_dtype : {DType::kF32, DType::kI8}) {
    const std::vector<float> expected =
        ModelHarness(checkpoint, {.kv_dtype = kv_dtype, .num_threads = 1}).logits(tokens, kPromptTokens);
    for (const int num_threads : {1, 2, 3}) {
      for (const int page_size : {64, 128, 256}) {
        ModelHarness harness(checkpoint, {.kv_dtype = kv_dtype, .page_size = page_size, .num_threads = num_threads});
        EXPECT_TRUE(same_bits(harness.logits(tokens, 90), expected))
            << num_threads << " threads, pages of " << page_size;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Some, BamModelStorage,
                         ::testing::Values("bam_outside_ssmax", "bam_inside_global", "bam_outside_ssmax_shifted",
                                           "alibi_6_heads_ssmax", "rope", "rope_local_100_ssmax", "sinusoidal",
                                           "t5_ssmax"),
                         [](const auto& info) { return std::string(info.param); });

TEST(BamModel, SelectedRowsHaveTheSameLogits) {
  for (const char* name : {"bam_outside_ssmax", "rope_local_24", "nope"}) {
    const TestCheckpoint checkpoint(find_variant(name).spec);
    const std::vector<int32_t> tokens = prompt();
    ModelHarness harness(checkpoint);
    const std::vector<float> all = harness.logits(tokens, kPromptTokens);
    const std::vector<int32_t> selected = {0, 63, 64, 200, 299};
    const std::vector<float> some = harness.step({{.tokens = tokens}}, selected);
    for (size_t i = 0; i < selected.size(); ++i) {
      EXPECT_TRUE(same_bits(rows(some, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1),
                            rows(all, selected[i], selected[i] + 1)))
          << name << " row " << selected[i];
    }
    EXPECT_TRUE(harness.step({{.tokens = tokens}}, {}).empty());  // a chunk in the middle of a prompt
  }
}

// All layers of this model have one shape. In the last one a prompt's rows end at K and V: who is left is planned apart.
TEST(BamModel, PlansAttentionOncePerStepNotPerLayer) {
  testing::CheckpointSpec spec = find_variant("nope").spec;
  spec.config.num_layers = 5;
  const TestCheckpoint checkpoint(spec);
  const auto backend = std::make_shared<cpu::CpuBackend>(BackendOptions{.num_threads = 2});
  ModelHarness harness(checkpoint, {.backend = backend});
  const std::vector<int32_t> tokens = prompt();
  const auto plans_of = [&](int64_t begin, int64_t end) {
    const uint64_t before = backend->planner().num_made();
    harness.step({{.tokens = {tokens.begin() + begin, tokens.begin() + end}, .start_pos = begin}}, {0});
    return backend->planner().num_made() - before;
  };
  EXPECT_EQ(plans_of(0, 100), 2u);
  for (int64_t at = 100; at < 140; ++at) EXPECT_EQ(plans_of(at, at + 1), 1u) << at;
}

TEST(BamModel, SequencesInOneStepDoNotSeeEachOther) {
  for (const char* name : {"bam_outside_ssmax", "rope_local_24_ssmax", "sinusoidal", "alibi"}) {
    const TestCheckpoint checkpoint(find_variant(name).spec);
    const std::vector<int32_t> a = random_tokens(150, kVocab, 1), b = random_tokens(150, kVocab, 2),
                               c = random_tokens(150, kVocab, 3);
    ModelHarness alone(checkpoint);
    const std::vector<float> expected_a = alone.logits(a, 150), expected_b = alone.logits(b, 150),
                             expected_c = alone.logits(c, 150);

    ModelHarness together(checkpoint, {.num_sequences = 3});
    const auto piece = [](int sequence, const std::vector<int32_t>& tokens, int64_t begin, int64_t end) {
      return ModelHarness::Piece{sequence, {tokens.begin() + begin, tokens.begin() + end}, begin};
    };
    together.step({piece(0, a, 0, 100), piece(1, b, 0, 1)});
    // One decoding, one in the middle of its prompt, one beginning.
    const std::vector<float> logits = together.step({piece(0, a, 100, 101), piece(1, b, 1, 91), piece(2, c, 0, 65)});
    EXPECT_TRUE(same_bits(rows(logits, 0, 1), rows(expected_a, 100, 101))) << name;
    EXPECT_TRUE(same_bits(rows(logits, 1, 91), rows(expected_b, 1, 91))) << name;
    EXPECT_TRUE(same_bits(rows(logits, 91, 156), rows(expected_c, 0, 65))) << name;
  }
}

TEST(BamModel, RecycledPagesLeaveNoTrace) {
  for (const DType kv_dtype : {DType::kF32, DType::kI4}) {
    const TestCheckpoint checkpoint(find_variant("bam_outside_ssmax").spec);
    const std::vector<int32_t> tokens = random_tokens(190, kVocab);
    const std::vector<float> expected = ModelHarness(checkpoint, {.kv_dtype = kv_dtype}).logits(tokens, 190);
    ModelHarness used(checkpoint, {.kv_dtype = kv_dtype});
    used.logits(random_tokens(300, kVocab, 99), 300);
    EXPECT_TRUE(same_bits(used.logits(tokens, 31), expected)) << dtype_name(kv_dtype);
  }
}

TEST(BamModel, PagesOutOfReachAreNeverRead) {
  // Steep priors and a window: pages fall out of reach while the sequence grows.
  testing::CheckpointSpec local = find_variant("bam_outside_ssmax").spec;
  local.prior = {{.alpha = 1, .beta = 1.3, .theta_mu = 0},
                 {.alpha = 2, .beta = 1.1, .theta_mu = 0.5},
                 {.alpha = 1.5, .beta = 1.2, .theta_mu = -0.5},
                 {.alpha = 1, .beta = 1.5, .theta_mu = 0}};
  for (const testing::CheckpointSpec& spec : {local, find_variant("rope_local_24_ssmax").spec}) {
    const TestCheckpoint checkpoint(spec);
    const std::vector<int32_t> tokens = prompt();
    const std::vector<float> expected = ModelHarness(checkpoint).logits(tokens, kPromptTokens);
    ModelHarness harness(checkpoint);
    std::vector<float> logits;
    int64_t num_dropped = 0;
    for (int64_t i = 0; i < kPromptTokens; ++i) {
      num_dropped += harness.drop_unreachable_pages(i);
      const std::vector<float> row = harness.step({{.tokens = {tokens[i]}, .start_pos = i}});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits(logits, expected));
    EXPECT_GT(num_dropped, 0);
  }
}

TEST(BamModel, TiedEmbeddingsAreTheOutputHead) {
  const TestCheckpoint checkpoint(find_variant("bam_outside_ssmax_tied").spec);
  EXPECT_EQ(checkpoint.weights().output.to_f32(), checkpoint.weights().tok_embeddings.to_f32());
}

class BamModelLongPrompt : public ::testing::TestWithParam<const char*> {};

// Long enough for tiles to be left out, with bounds of single tiles and of whole groups of them.
TEST_P(BamModelLongPrompt, LeavesTilesOutAndAgreesWithTheOracle) {
  constexpr int64_t kTokens = 2100;
  const TestCheckpoint checkpoint(find_variant(GetParam()).spec);
  const std::vector<int32_t> tokens = random_tokens(kTokens, kVocab);
  const std::vector<double> expected = Oracle(checkpoint.config(), checkpoint.weights()).logits(tokens);
  ModelHarness harness(checkpoint, {.max_tokens = kTokens});
  const std::vector<float> whole = harness.logits(tokens, kTokens);
  EXPECT_LE(max_difference(whole, expected), kTolerance);
  uint64_t skipped = 0;
  for (const AttentionCounters& counters : harness.model().counters()) skipped += counters.skipped;
  EXPECT_GT(skipped, 0u);
  EXPECT_TRUE(same_bits(harness.logits(tokens, 333), whole));
  // Prefill all but the last tokens, then decode them.
  constexpr int64_t kPrompt = 2040;
  harness.logits({tokens.begin(), tokens.begin() + kPrompt}, 512);
  for (int64_t i = kPrompt; i < kTokens; ++i) {
    ASSERT_TRUE(same_bits(harness.step({{.tokens = {tokens[i]}, .start_pos = i}}), rows(whole, i, i + 1))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Some, BamModelLongPrompt,
                         ::testing::Values("bam_outside_ssmax", "bam_inside_global", "bam_outside_ssmax_shifted",
                                           "alibi_ssmax", "rope_local_100_ssmax"),
                         [](const auto& info) { return std::string(info.param); });

// One row of the table: the largest error of each way to compute the same logits.
std::vector<std::pair<std::string, double>> errors_of(const TestCheckpoint& checkpoint) {
  const std::vector<int32_t> tokens = prompt();
  Oracle oracle(checkpoint.config(), checkpoint.weights());
  const std::vector<double> expected = oracle.logits(tokens);
  const auto whole = [&](const HarnessOptions& options) {
    return ModelHarness(checkpoint, options).logits(tokens, kPromptTokens);
  };
  std::vector<std::pair<std::string, double>> errors;
  ModelHarness harness(checkpoint);
  errors.emplace_back("prefill", max_difference(harness.logits(tokens, kPromptTokens), expected));
  errors.emplace_back("by 7", max_difference(harness.logits(tokens, 7), expected));
  errors.emplace_back("decode", max_difference(harness.logits(tokens, 1), expected));
  errors.emplace_back("dense", max_difference(whole({.attention = {.certified = false}}), expected));
  const RoundedWeights rounded(checkpoint.weights(), DType::kBF16);
  errors.emplace_back("bf16", max_difference(whole({.weight_dtype = DType::kBF16}),
                                             Oracle(checkpoint.config(), rounded.weights()).logits(tokens)));
  for (const DType kv_dtype : {DType::kF16, DType::kI8, DType::kI4}) {
    oracle.set_kv_rounding(kv_rounding(kv_dtype));
    errors.emplace_back(fmt::format("KV {}", dtype_name(kv_dtype)),
                        max_difference(whole({.kv_dtype = kv_dtype}), oracle.logits(tokens)));
  }
  return errors;
}

// Markdown, for documents and reports:
//   build/bam_models_tests --gtest_filter=BamModel.PrintsTableOfErrors
TEST(BamModel, PrintsTableOfErrors) {
  fmt::print(
      "max |logit - float64 oracle| over {} tokens. bf16 and KV columns: the oracle rounds weights, keys and values "
      "alike; what remains there are values that fell to the other side of a rounding boundary.\n\n",
      kPromptTokens);
  std::vector<Variant> variants = all_variants();
  for (Variant& variant : extreme_variants()) {
    variant.name = "extreme_" + variant.name;
    variants.push_back(std::move(variant));
  }
  bool has_header = false;
  for (const Variant& variant : variants) {
    const TestCheckpoint checkpoint(variant.spec);
    const auto errors = errors_of(checkpoint);
    std::string names, line, values;
    for (const auto& [name, error] : errors) {
      names += fmt::format(" {:>8} |", name);
      line += fmt::format("{:-<10}|", "");
      values += fmt::format(" {:8.1e} |", error);
      if (!name.starts_with("KV")) {
        EXPECT_LE(error, kTolerance) << variant.name << " " << name;
      }
    }
    if (!std::exchange(has_header, true)) {
      fmt::print("| {:<38} | head_dim | heads |{}\n|{:-<40}|----------|-------|{}\n", "variant", names, "", line);
    }
    const ModelConfig& config = checkpoint.config();
    fmt::print("| {:<38} | {:>8} | {:>5} |{}\n", variant.name, config.head_dim,
               fmt::format("{}/{}", config.num_heads, config.num_kv_heads), values);
  }
}

// Resident kilobytes of this process's mappings of a file.
int64_t resident_kb(const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t total = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.find(path.string()) != std::string::npos;
    if (inside && line.starts_with("Rss:")) total += std::stoll(line.substr(4));
  }
  return total;
}

TEST(BamModelMemory, PackedWeightsDoNotStayResidentInTheFileToo) {
  testing::CheckpointSpec spec{.config = testing::tiny_config()};
  spec.config.hidden_size = 512;
  spec.config.intermediate_size = 2048;
  testing::TempDir dir;
  testing::write_checkpoint(spec, dir.path());
  const ModelConfig config = load_model_config(dir.path());
  CheckpointWeights weights = load_weights(dir.path(), config);
  const auto file_kb = static_cast<int64_t>(weights.file_bytes / 1024);
  ASSERT_GT(file_kb, 8 * 1024);
  const auto backend = make_cpu_backend({.num_threads = 1});
  const BamModel model(*backend, config, std::move(weights), {});
  EXPECT_GT(model.weight_bytes() / 1024, static_cast<size_t>(file_kb * 3 / 4)) << "packed";
  EXPECT_LT(resident_kb(dir.path() / "model.safetensors"), file_kb / 8);
}

// A served checkpoint's file may be overwritten or cut short: nothing is read from it once the model stands.
TEST(BamModelFiles, AModelOutlivesItsFile) {
  const testing::TempDir dir;
  testing::CheckpointSpec spec{.config = testing::tiny_config()};
  testing::write_checkpoint(spec, dir.path());
  const ModelConfig config = load_model_config(dir.path());
  const auto backend = make_cpu_backend({.num_threads = 1});
  BamModel model(*backend, config, load_weights(dir.path(), config), {});
  const KvLayout layout = make_kv_layout(DType::kF32, static_cast<int>(config.head_dim), kTileKeys);
  const auto memory = backend->allocate(static_cast<size_t>(model.num_groups()) * layout.page_bytes());
  const KvCacheView kv{static_cast<std::byte*>(memory->data()), model.num_groups(), layout};
  std::vector<int32_t> table(static_cast<size_t>(model.num_groups()));
  std::iota(table.begin(), table.end(), 0);
  const auto queries = [&](int32_t token) {
    return AttentionProbe::queries(model, kv, {table.data(), 1, 0, 1, 0}, token);
  };
  const std::vector<float> before = queries(7);
  const double bias = AttentionProbe::specs(model)[1].bias_of(2).value(9);
  std::filesystem::resize_file(dir / "model.safetensors", 100);
  EXPECT_EQ(queries(7), before);
  EXPECT_NE(queries(8), before);  // another token's row
  EXPECT_EQ(AttentionProbe::specs(model)[1].bias_of(2).value(9), bias);
}

TEST(BamModelFiles, AFileThatChangesDuringTheLoadIsNoticed) {
  const testing::TempDir dir;
  testing::CheckpointSpec spec{.config = testing::tiny_config()};
  testing::write_checkpoint(spec, dir.path());
  const ModelConfig config = load_model_config(dir.path());
  const auto backend = make_cpu_backend({.num_threads = 1});
  CheckpointWeights weights = load_weights(dir.path(), config);
  std::filesystem::last_write_time(dir / "model.safetensors",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  try {
    BamModel model(*backend, config, std::move(weights), {});
    FAIL() << "built from a file that was rewritten meanwhile";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.safetensors: changed while it was loaded"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace bam::reference
