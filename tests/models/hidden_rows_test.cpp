// Rows that are pooled: they come behind the final norm, and the output head is computed for those alone that want it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "models/bam.h"
#include "tests/reference/model_harness.h"

namespace bam::reference {
namespace {

TEST(HiddenRows, TheHeadIsComputedForRowsThatWantIt) {
  constexpr int64_t kRows = 12;
  const TestCheckpoint checkpoint({.config = testing::tiny_config()});
  const ModelConfig& config = checkpoint.config();
  const auto vocab = static_cast<size_t>(config.vocab_size), hidden = static_cast<size_t>(config.hidden_size);
  const auto backend = make_cpu_backend({.num_threads = 2});
  BamModel model(*backend, config, checkpoint.weights(), {.max_rows = kRows, .max_logit_rows = kRows});
  KvCacheView kv;
  kv.layout = make_kv_layout(DType::kF32, static_cast<int>(config.head_dim), kTileKeys);
  kv.num_pages = model.num_groups();
  const auto memory = backend->allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
  kv.base = static_cast<std::byte*>(memory->data());
  std::vector<int32_t> table(static_cast<size_t>(kv.num_pages)), wanted(kRows);
  std::iota(table.begin(), table.end(), 0);
  std::iota(wanted.begin(), wanted.end(), 0);
  const std::vector<int32_t> tokens = random_tokens(kRows, config.vocab_size);
  const SequenceRows sequence{table.data(), 1, 0, kRows, 0};

  std::vector<float> all(kRows * vocab), some(kRows * vocab, NAN), rows(kRows * hidden, NAN);
  ForwardInput input{tokens, {&sequence, 1}, wanted};
  model.forward(input, kv, all);
  const std::vector<int32_t> head_rows{2, 3, 11};
  input.hidden = rows.data();
  input.head_rows = head_rows;
  model.forward(input, kv, some);
  for (const float value : rows) ASSERT_TRUE(std::isfinite(value));
  for (int32_t r = 0; r < kRows; ++r) {
    const bool asked = std::ranges::find(head_rows, r) != head_rows.end();
    for (size_t i = 0; i < vocab; ++i) {
      const size_t at = static_cast<size_t>(r) * vocab + i;
      ASSERT_TRUE(asked ? some[at] == all[at] : std::isnan(some[at])) << "row " << r << ", token " << i;
    }
  }
}

}  // namespace
}  // namespace bam::reference
