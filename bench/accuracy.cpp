// What compression and certified skipping cost in accuracy, on real text and long prompts.
//   build/bench_accuracy --model DIR --text FILE [--windows 20] [--long 32768] [--passkey 32768]
// Reference: f32 weights, f32 KV, dense attention.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "app/client/passkey_prompt.h"
#include "bench/support/runner.h"
#include "models/tokenizer.h"

namespace bam::bench {
namespace {

struct Variant {
  const char* name;
  DType weights, kv;
  bool certified;
  std::string isa = "auto";
  std::string math = "exact";
  std::string attention_math = "f32";
  std::optional<DType> head = {};
};

struct Score {
  double nll = 0;          // mean over all predicted tokens
  double max_delta = 0;    // against the reference logits
  double same_argmax = 1;  // share of rows
  double same_text = 1;    // share of greedy continuations that are the reference's
};

constexpr int64_t kContinued = 32;  // tokens of a greedy continuation

// The greedy text after a prompt whose last row of logits is `row`.
std::vector<int32_t> continuation(Runner& runner, std::span<const float> row, int64_t position) {
  std::vector<int32_t> text;
  while (static_cast<int64_t>(text.size()) < kContinued) {
    text.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    row = runner.decode({text.back()}, {position++});
  }
  return text;
}

double row_nll(const float* logits, int64_t vocab, int32_t target) {
  const float largest = *std::max_element(logits, logits + vocab);
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += std::exp(static_cast<double>(logits[i]) - largest);
  return std::log(total) + largest - logits[target];
}

Score compare(const std::vector<float>& logits, const std::vector<float>& reference, const std::vector<int32_t>& tokens,
              int64_t rows, int64_t vocab) {
  Score score;
  double same = 0, nll = 0;
  const auto first = static_cast<int64_t>(tokens.size()) - rows;
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = logits.data() + r * vocab, *b = reference.data() + r * vocab;
    for (int64_t i = 0; i < vocab; ++i)
      score.max_delta = std::max(score.max_delta, std::fabs(static_cast<double>(a[i]) - b[i]));
    same += std::max_element(a, a + vocab) - a == std::max_element(b, b + vocab) - b;
    if (r + 1 < rows) nll += row_nll(a, vocab, tokens[static_cast<size_t>(first + r + 1)]);
  }
  score.same_argmax = same / static_cast<double>(rows);
  score.nll = nll / static_cast<double>(rows - 1);
  return score;
}

float largest_left_out(BamModel& model) {
  AttentionCounters all;
  for (const AttentionCounters& head : model.counters()) all += head;
  return all.left_out;
}

void print(const char* name, const Score& s, double reference_nll) {
  std::printf("| %-32s | %9.4f | %+8.4f %% | %9.2g | %7.3f %% | %5.0f %% |\n", name, std::exp(s.nll),
              100 * (std::exp(s.nll - reference_nll) - 1), s.max_delta, 100 * s.same_argmax, 100 * s.same_text);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::string model, text_file;
  int64_t windows = 20, window = 512, long_tokens = 0, passkey_tokens = 0;
  CLI::App app("Accuracy of compressed weights, compressed KV and certified attention against f32 and dense");
  app.add_option("--model", model, "checkpoint folder")->required();
  app.add_option("--text", text_file, "plain text")->required();
  app.add_option("--windows", windows, "windows of text");
  app.add_option("--window", window, "tokens per window");
  app.add_option("--long", long_tokens, "also compare the last 64 rows of one prompt of this many tokens");
  app.add_option("--passkey", passkey_tokens, "the same for a passkey prompt, the key in its middle");
  CLI11_PARSE(app, argc, argv);
  std::ifstream file(text_file);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto tokenizer = Tokenizer::load(model);
  const std::vector<int32_t> text_tokens = tokenizer->encode(text, false);
  const std::vector<Variant> variants = {
      {"f32, KV f32, certified", DType::kF32, DType::kF32, true},
      {"f32, KV f32, certified, avx2", DType::kF32, DType::kF32, true, "avx2"},
      {"f32, KV f32, certified, portable", DType::kF32, DType::kF32, true, "portable"},
      {"f32, KV f16, certified", DType::kF32, DType::kF16, true},
      {"f32, KV int8, certified", DType::kF32, DType::kI8, true},
      {"f32, KV int8 in int8, certified", DType::kF32, DType::kI8, true, "auto", "exact", "int8"},
      {"the same, portable", DType::kF32, DType::kI8, true, "portable", "exact", "int8"},
      {"f32, KV int8 in int8, dense", DType::kF32, DType::kI8, false, "auto", "exact", "int8"},
      {"f32, KV int4, certified", DType::kF32, DType::kI4, true},
      {"f32, KV int4 in int8, certified", DType::kF32, DType::kI4, true, "auto", "exact", "int8"},
      {"bf16, KV f16, certified", DType::kBF16, DType::kF16, true},
      {"bf16 fast, KV f16, certified", DType::kBF16, DType::kF16, true, "auto", "fast"},
      {"int8, KV f16, certified", DType::kI8, DType::kF16, true},
      {"int8, KV int8, certified", DType::kI8, DType::kI8, true},
      {"int8, KV int8 in int8, certified", DType::kI8, DType::kI8, true, "auto", "exact", "int8"},
      {"int4, KV f16, certified", DType::kI4, DType::kF16, true},
      {"int4, KV int8, certified", DType::kI4, DType::kI8, true},
      {"int4, head too, KV f16, certified", DType::kI4, DType::kF16, true, "auto", "exact", "f32", DType::kI4}};
  const auto measure = [&](const std::vector<int32_t>& source, int64_t tokens_each, int64_t count, int64_t rows) {
    const auto options = [&](const Variant& v) {
      return RunnerOptions{.model = model,
                           .weight_dtype = v.weights,
                           .head_dtype = v.head,
                           .kv_dtype = v.kv,
                           .certified = v.certified,
                           .chunk = 512,
                           .logit_rows = 512,
                           .isa = v.isa,
                           .math = v.math,
                           .attention_math = v.attention_math};
    };
    std::printf("\n%ld x %ld tokens, logits of the last %ld rows\n", static_cast<long>(count),
                static_cast<long>(tokens_each), static_cast<long>(rows));
    std::printf(
        "| weights, KV, attention | perplexity | change | max |dlogit| | same argmax | same greedy text, %ld tokens "
        "|\n|---|---|---|---|---|---|\n",
        static_cast<long>(kContinued));
    std::vector<std::vector<float>> references;
    std::vector<std::vector<int32_t>> texts;
    double reference_nll = 0;
    float worst_left_out = 0;
    for (size_t i = 0; i <= variants.size(); ++i) {
      const Variant variant = i == 0 ? Variant{"f32, KV f32, dense", DType::kF32, DType::kF32, false} : variants[i - 1];
      Runner runner(options(variant), tokens_each + kContinued);
      Score total;
      total.same_argmax = total.same_text = 0;
      for (int64_t w = 0; w < count; ++w) {
        const auto begin = source.begin() + w * tokens_each;
        const std::vector<int32_t> tokens(begin, begin + tokens_each);
        std::vector<float> logits = runner.prefill_logits(tokens, rows);
        const int64_t vocab = runner.model().config().vocab_size;
        const auto last = std::span(logits).last(static_cast<size_t>(vocab));
        const std::vector<int32_t> text = continuation(runner, last, tokens_each);
        if (i == 0) {
          references.push_back(logits);
          texts.push_back(text);
        }
        const Score s = compare(logits, references[static_cast<size_t>(w)], tokens, rows, vocab);
        total.same_text += static_cast<double>(text == texts[static_cast<size_t>(w)]) / static_cast<double>(count);
        total.nll += s.nll / static_cast<double>(count);
        total.max_delta = std::max(total.max_delta, s.max_delta);
        total.same_argmax += s.same_argmax / static_cast<double>(count);
      }
      if (i == 0) reference_nll = total.nll;
      print(variant.name, total, reference_nll);
      if (variant.certified) worst_left_out = std::max(worst_left_out, largest_left_out(runner.model()));
    }
    std::printf("certified rows left out at most %.2g of their softmax mass, by the bounds used\n",
                static_cast<double>(worst_left_out));
  };
  const auto available = static_cast<int64_t>(text_tokens.size());
  measure(text_tokens, window, std::min(windows, available / window), window);
  if (long_tokens > 0) measure(text_tokens, std::min(long_tokens, available), 1, 64);
  if (passkey_tokens > 0) {
    std::printf("\nA passkey prompt:");
    const client::PieceEncoder encoder([&](std::string_view piece) { return tokenizer->encode(piece, false); });
    const std::string key = client::make_passkey(1, passkey_tokens, 0.5, 0);
    measure(client::make_passkey_prompt(encoder, passkey_tokens, 0.5, key).ids, passkey_tokens, 1, 64);
  }
  return 0;
}

}  // namespace
}  // namespace bam::bench

int main(int argc, char** argv) { return bam::bench::run_program("bench_accuracy", bam::bench::run, argc, argv); }
