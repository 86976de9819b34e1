// Sequences so long that softmax states are joined in several spans: the same bits however the device shares the work.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/cuda_emu/attention_test_support.h"

namespace bam {
namespace {

using cuda_test::Case;

constexpr int64_t kTiles = 530, kOwnTiles = 32;  // the table repeats the pages of the first super-tiles
constexpr int64_t kPosition = kTiles * kTileKeys - 5;

// The row at kPosition, asked for by `sequences` sequences at once, on a device of so many multiprocessors.
std::vector<float> last_row(const Case& test, const std::vector<float>& qkv, bool certified, int multiprocessors,
                            int64_t sequences) {
  cuda_emu::Config config = cuda_emu::config();
  config.multiprocessors = multiprocessors;
  const cuda_emu::ScopedConfig scope(config);
  const auto backend = cuda_test::make_cuda(test.operand);
  const auto layer = backend->make_attention(make_spec(test));
  AttentionLayer* layers[] = {layer.get()};
  backend->reserve_positions(layers, kTiles * kTileKeys);
  const cuda_test::Cache cache(*backend, test);
  const int64_t width = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim,
                out_width = int64_t{test.heads} * test.head_dim;
  const auto operands = cuda_test::to_device(*backend, qkv, test.operand);
  const SequenceRows keys = cache.rows(0, test.tokens);
  backend->write_kv(*layer, cache.view, {&keys, 1}, backend->operand_rows(*operands, test.tokens, width));
  std::vector<int32_t> table(static_cast<size_t>(kTiles));
  for (size_t t = 0; t < table.size(); ++t) table[t] = cache.table[t % kOwnTiles];
  std::vector<SequenceRows> rows;
  std::vector<float> queries;
  for (int64_t s = 0; s < sequences; ++s) {
    rows.push_back({table.data(), kTiles, s, 1, kPosition});
    queries.insert(queries.end(), qkv.begin(), qkv.begin() + width);
  }
  const auto in = cuda_test::to_device(*backend, queries, test.operand);
  const auto out = backend->allocate(static_cast<size_t>(sequences * out_width) * backend->operand_bytes());
  std::vector<AttentionCounters> counters(static_cast<size_t>(test.heads));
  backend->attention(*layer, cache.view, rows, {}, backend->operand_rows(*in, sequences, width),
                     {.certified = certified}, backend->operand_rows(*out, sequences, out_width), counters);
  std::vector<float> all = cuda_test::operands(*backend, *out, static_cast<size_t>(sequences * out_width));
  for (int64_t s = 1; s < sequences; ++s) {
    EXPECT_EQ(std::memcmp(all.data(), all.data() + s * out_width, static_cast<size_t>(out_width) * sizeof(float)), 0);
  }
  all.resize(static_cast<size_t>(out_width));
  return all;
}

class AttentionSpans : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionSpans, GiveTheSameBitsHoweverTheyAreShared) {
  const DType operand = GetParam();
  const Case test{.operand = operand,
                  .kv = operand,
                  .head_dim = 16,
                  .heads = 2,
                  .kv_heads = 1,
                  .tokens = kOwnTiles * kTileKeys,
                  .prior = {{0.05, 0.0, 0}, {0.0, 0.3, 0}}};
  const std::vector<float> qkv = make_qkv(test, 3);
  for (const bool certified : {false, true}) {
    // One block does all of it, sixteen share it, hundreds share it.
    const std::vector<float> whole = last_row(test, qkv, certified, 1, 16);
    for (const auto& [multiprocessors, sequences] : {std::pair{1, 1}, std::pair{108, 2}}) {
      const std::vector<float> split = last_row(test, qkv, certified, multiprocessors, sequences);
      EXPECT_EQ(std::memcmp(whole.data(), split.data(), whole.size() * sizeof(float)), 0)
          << multiprocessors << " multiprocessors, " << sequences << " sequences, certified " << certified;
    }
    if (certified) continue;
    // Against one sum over all keys in double.
    std::vector<float> k, v;
    for (int64_t i = 0; i <= kPosition; ++i) {
      const float* row = qkv.data() + i % test.tokens * (test.heads + 2) * test.head_dim + test.heads * test.head_dim;
      k.insert(k.end(), row, row + test.head_dim);
      v.insert(v.end(), row + test.head_dim, row + 2 * test.head_dim);
    }
    const AttentionSpec spec = make_spec(test);
    for (int h = 0; h < test.heads; ++h) {
      std::vector<double> logits;
      const double c = spec.seq_scale_of(h) * std::log(static_cast<double>(kPosition + 1));
      for (int64_t j = 0; j <= kPosition; ++j) {
        double dot = 0;
        for (int d = 0; d < test.head_dim; ++d) {
          dot +=
              double{qkv[static_cast<size_t>(h * test.head_dim + d)]} * k[static_cast<size_t>(j * test.head_dim + d)];
        }
        logits.push_back(c * (dot / std::sqrt(test.head_dim) + spec.bias_of(h).value(kPosition - j)));
      }
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      std::vector<double> exact(static_cast<size_t>(test.head_dim));
      for (int64_t j = 0; j <= kPosition; ++j) {
        const double weight = std::exp(logits[static_cast<size_t>(j)] - largest);
        sum += weight;
        for (int d = 0; d < test.head_dim; ++d)
          exact[static_cast<size_t>(d)] += weight * v[static_cast<size_t>(j * test.head_dim + d)];
      }
      for (int d = 0; d < test.head_dim; ++d) {
        EXPECT_NEAR(whole[static_cast<size_t>(h * test.head_dim + d)], exact[static_cast<size_t>(d)] / sum,
                    operand == DType::kF32 ? 1e-4 : 3e-3);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, AttentionSpans, ::testing::Values(DType::kF16, DType::kF32),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace bam
