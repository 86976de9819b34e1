#include "bench/support/runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>

#include "base/error.h"
#include "bench/support/profiling_backend.h"

namespace bam::bench {

Runner::Runner(const RunnerOptions& options, int64_t max_tokens, int64_t sequences) : options_(options) {
  const ModelConfig config = load_model_config(options.model);
  backend_ = make_cpu_backend({.num_threads = options.threads,
                               .isa = options.isa,
                               .math = options.math,
                               .attention_math = options.attention_math});
  if (options.profile) {
    auto profile = std::make_unique<ProfilingBackend>(std::move(backend_));
    profile_ = profile.get();
    backend_ = std::move(profile);
  }
  ModelOptions model_options;
  model_options.weight_dtype = options.weight_dtype;
  model_options.head_dtype = options.head_dtype;
  model_options.max_rows = std::max(options.chunk, sequences);
  model_options.max_logit_rows = std::max(options.logit_rows, sequences);
  model_options.attention.certified = options.certified;
  model_options.kv_dtype = options.kv_dtype;
  model_ = std::make_unique<BamModel>(*backend_, config, load_weights(options.model, config), model_options);
  kv_.layout = make_kv_layout(options.kv_dtype, static_cast<int>(config.head_dim), kTileKeys);
  stride_ = (max_tokens + kTileKeys - 1) / kTileKeys;
  kv_.num_pages = stride_ * model_->num_groups() * sequences;
  memory_ = backend_->allocate(static_cast<size_t>(kv_.num_pages) * kv_.layout.page_bytes());
  // As in a server that has run for a while: the system has handed out these pages before.
  std::memset(memory_->data(), 0, memory_->size_bytes());
  kv_.base = static_cast<std::byte*>(memory_->data());
  tables_.resize(static_cast<size_t>(kv_.num_pages));
  std::iota(tables_.begin(), tables_.end(), 0);
  logits_ = LazyMemory(static_cast<size_t>(sequences * config.vocab_size) * sizeof(float));
}

std::span<const float> Runner::prefill(const std::vector<int32_t>& tokens, int64_t start, int64_t sequence) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int32_t* table = tables_.data() + sequence * stride_ * model_->num_groups();
  for (int64_t begin = 0; begin < count; begin += options_.chunk) {
    const int64_t rows = std::min(options_.chunk, count - begin);
    const SequenceRows seq{table, stride_, 0, rows, start + begin};
    const auto last = static_cast<int32_t>(rows - 1);
    const bool wanted = begin + rows == count;
    model_->forward({std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)),
                     {&seq, 1},
                     std::span(&last, wanted ? 1 : 0)},
                    kv_, std::span(logits_.as<float>(), wanted ? static_cast<size_t>(model_->config().vocab_size) : 0));
  }
  return logits(1);
}

std::vector<float> Runner::prefill_logits(const std::vector<int32_t>& tokens, int64_t wanted) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t vocab = model_->config().vocab_size;
  std::vector<float> result(static_cast<size_t>(wanted * vocab));
  for (int64_t begin = 0; begin < count; begin += options_.chunk) {
    const int64_t rows = std::min(options_.chunk, count - begin);
    const SequenceRows seq{tables_.data(), stride_, 0, rows, begin};
    std::vector<int32_t> logit_rows;
    for (int64_t r = std::max<int64_t>(0, count - wanted - begin); r < rows; ++r)
      logit_rows.push_back(static_cast<int32_t>(r));
    const int64_t first = begin + (logit_rows.empty() ? 0 : logit_rows.front()) - (count - wanted);
    model_->forward(
        {std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)), {&seq, 1}, logit_rows}, kv_,
        logit_rows.empty() ? std::span<float>()
                           : std::span(result).subspan(static_cast<size_t>(first * vocab),
                                                       logit_rows.size() * static_cast<size_t>(vocab)));
  }
  return result;
}

std::span<const float> Runner::decode(const std::vector<int32_t>& tokens, const std::vector<int64_t>& positions) {
  std::vector<SequenceRows> rows;
  std::vector<int32_t> wanted;
  for (size_t s = 0; s < tokens.size(); ++s) {
    rows.push_back({tables_.data() + static_cast<int64_t>(s) * stride_ * model_->num_groups(), stride_,
                    static_cast<int64_t>(s), 1, positions[s]});
    wanted.push_back(static_cast<int32_t>(s));
  }
  const auto logits_wanted = logits(tokens.size());
  model_->forward({tokens, rows, wanted}, kv_, logits_wanted);
  return logits_wanted;
}

std::span<float> Runner::logits(size_t rows) const {
  return {logits_.as<float>(), rows * static_cast<size_t>(model_->config().vocab_size)};
}

int32_t Runner::argmax(int64_t row) const {
  const auto vocab = model_->config().vocab_size;
  const float* begin = logits_.as<float>() + row * vocab;
  return static_cast<int32_t>(std::max_element(begin, begin + vocab) - begin);
}

DType parse_dtype(const std::string& name) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI4}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw UsageError("'{}' is not one of f32, f16, bf16, int8, int4", name);
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return tokens;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int run_program(const char* name, int (*body)(int argc, char** argv), int argc, char** argv) {
  try {
    return body(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace bam::bench
