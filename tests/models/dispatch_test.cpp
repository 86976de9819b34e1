// Greedy text does not depend on the instruction set, nor on what certified attention leaves out.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/reference/model_harness.h"

namespace bam::reference {
namespace {

constexpr int64_t kPrompt = 700, kGenerated = 60;  // eleven tiles: local heads skip most of them

struct Format {
  DType weights, kv;
  std::string attention_math = "f32";
};

// nullopt: this CPU does not have the instructions.
std::optional<std::vector<int32_t>> greedy_text(const TestCheckpoint& checkpoint, const std::string& isa,
                                                const Format& format, bool certified) {
  HarnessOptions options;
  options.weight_dtype = format.weights;
  options.kv_dtype = format.kv;
  options.max_tokens = kPrompt + kGenerated;
  options.attention.certified = certified;
  try {
    options.backend = make_cpu_backend({.num_threads = 2, .isa = isa, .attention_math = format.attention_math});
  } catch (const UsageError&) {
    return std::nullopt;
  }
  ModelHarness model(checkpoint, options);
  const int64_t vocab = checkpoint.config().vocab_size;
  std::vector<int32_t> next = random_tokens(kPrompt, vocab), text;
  for (int64_t position = 0; static_cast<int64_t>(text.size()) < kGenerated;) {
    const auto last = static_cast<int32_t>(next.size()) - 1;
    const std::vector<float> logits = model.step({{.tokens = next, .start_pos = position}}, {last});
    position += last + 1;
    text.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    next = {text.back()};
  }
  return text;
}

class Dispatch : public ::testing::TestWithParam<std::string> {};

TEST_P(Dispatch, EveryLevelAndDenseAttentionWriteTheSameGreedyText) {
  const TestCheckpoint checkpoint(find_variant(GetParam()).spec);
  for (const Format& format : {Format{DType::kF32, DType::kF32},
                               {DType::kBF16, DType::kF16},
                               {DType::kI8, DType::kI8},
                               {DType::kI8, DType::kI8, "int8"},
                               {DType::kI4, DType::kI8}}) {
    const auto text = greedy_text(checkpoint, "auto", format, true);
    ASSERT_TRUE(text);
    EXPECT_GT(std::ranges::count_if(*text, [&](int32_t token) { return token != text->front(); }), 5) << "dull text";
    EXPECT_EQ(greedy_text(checkpoint, "auto", format, false), text) << "dense";
    int levels = 0;
    for (const char* isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
      const auto other = greedy_text(checkpoint, isa, format, true);
      if (!other) continue;
      ++levels;
      EXPECT_EQ(other, text) << isa << ", weights " << dtype_name(format.weights) << ", KV " << dtype_name(format.kv)
                             << ", attention in " << format.attention_math;
    }
    EXPECT_GE(levels, 1);  // portable is everywhere
  }
}

INSTANTIATE_TEST_SUITE_P(Family, Dispatch, ::testing::Values("bam_outside_ssmax", "alibi_ssmax", "rope"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace bam::reference
