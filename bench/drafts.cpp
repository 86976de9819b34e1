// Tokens per second with and without drafts from the text itself, in turn, in one process.
//
//   bench_drafts --model DIR [--dtype int8] [--streams 1] [--tokens 256] [--rounds 5]
//
// What the model writes is prescribed by a constraint, so that random weights will do: the arithmetic is that of any text.
//   quotes   passages of 24 to 72 tokens of the prompt, two or three new tokens between them
//   misleads three tokens of the prompt again and again, each time followed by something else
//   new      tokens that stand nowhere else
#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/support/runner.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "models/bam.h"
#include "models/weights.h"

namespace bam::bench {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int32_t kFirstToken = 10;  // ids below have meanings

class Prescribed final : public TokenConstraint {
 public:
  explicit Prescribed(Tokens text) : text_(std::move(text)) {}
  void allowed_tokens(std::span<uint32_t> allowed) override {
    const int32_t token = text_[at_];
    allowed[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }
  void accept(int32_t) override { ++at_; }
  bool finished() const override { return at_ == text_.size(); }
  std::unique_ptr<TokenConstraint> clone_initial() const override { return std::make_unique<Prescribed>(text_); }

 private:
  Tokens text_;
  size_t at_ = 0;
};

// Waits for the end and keeps the times of the first and the last token.
class Stopwatch final : public EventSink {
 public:
  bool on_events(std::vector<Event>&& events) override {
    const std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      if (std::holds_alternative<TokenEvent>(event)) {
        if (num_tokens_++ == 0) first_ = Clock::now();
        last_ = Clock::now();
      }
      if (const auto* finish = std::get_if<FinishEvent>(&event)) finish_ = *finish;
    }
    if (finish_) done_.notify_all();
    return true;
  }
  FinishEvent wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return finish_.has_value(); });
    return *finish_;
  }
  Clock::time_point first() const { return first_; }
  Clock::time_point last() const { return last_; }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  int64_t num_tokens_ = 0;
  Clock::time_point first_{}, last_{};
  std::optional<FinishEvent> finish_;
};

struct Text {
  Tokens prompt, answer;
};

class Writer {
 public:
  explicit Writer(int64_t vocab, uint32_t seed) : rng_(seed) {
    for (int32_t t = kFirstToken; t < vocab; ++t) fresh_.push_back(t);
    std::shuffle(fresh_.begin(), fresh_.end(), rng_);
  }
  Text write(const std::string& kind, int64_t prompt_tokens, int64_t tokens) {
    Text text;
    while (std::ssize(text.prompt) < prompt_tokens) text.prompt.push_back(fresh());
    while (std::ssize(text.answer) < tokens) {
      const size_t at = rng_() % (text.prompt.size() - 80);
      if (kind == "quotes") {
        const size_t length = 24 + rng_() % 49;
        text.answer.insert(text.answer.end(), &text.prompt[at], &text.prompt[at + length]);
      } else if (kind == "misleads") {
        text.answer.insert(text.answer.end(), &text.prompt[at], &text.prompt[at + 3]);
      }
      for (size_t i = 0; i < 2 + rng_() % 2; ++i) text.answer.push_back(fresh());
    }
    text.answer.resize(static_cast<size_t>(tokens));
    return text;
  }

 private:
  int32_t fresh() {
    next_ = (next_ + 1) % fresh_.size();
    return fresh_[next_];
  }
  std::mt19937 rng_;
  Tokens fresh_;
  size_t next_ = 0;
};

struct Measured {
  double tokens_per_s = 0;
  int64_t accepted = 0, rejected = 0;
};

Measured measure(Engine& engine, const std::vector<Text>& texts, bool drafts) {
  std::vector<std::shared_ptr<Stopwatch>> watches;
  for (size_t i = 0; i < texts.size(); ++i) {
    Request request;
    request.id = std::to_string(i);
    request.prompt = texts[i].prompt;
    request.sampling.max_tokens = std::ssize(texts[i].answer);
    request.sampling.ignore_eos = true;
    request.constraint = std::make_shared<Prescribed>(texts[i].answer);
    if (!drafts) request.draft.tokens = 0;
    watches.push_back(std::make_shared<Stopwatch>());
    const SubmitResult result = engine.submit(std::move(request), watches.back());
    if (result.status != SubmitStatus::kAccepted) throw Error("{}", result.message);
  }
  Measured m;
  Clock::time_point begin{}, end{};
  int64_t tokens = 0;
  for (const auto& watch : watches) {
    const FinishEvent finish = watch->wait();
    m.accepted += finish.accepted_drafts;
    m.rejected += finish.rejected_drafts;
    tokens += finish.generated_tokens - 1;
    begin = std::max(begin, watch->first());
    end = std::max(end, watch->last());
  }
  m.tokens_per_s = static_cast<double>(tokens) / std::chrono::duration<double>(end - begin).count();
  return m;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(int argc, char** argv) {
  CLI::App app("Tokens per second with and without drafts from the text itself");
  std::string model_dir, dtype = "bf16", kv_dtype = "f16", isa = "auto";
  std::vector<std::string> kinds = {"quotes", "misleads", "new"};
  std::vector<int> streams = {1};
  int64_t tokens = 256, prompt = 512;
  int rounds = 5, threads = 0;
  app.add_option("--model", model_dir, "checkpoint")->required();
  app.add_option("--dtype", dtype, "weights");
  app.add_option("--kv-dtype", kv_dtype, "keys and values");
  app.add_option("--text", kinds, "quotes, misleads, new")->delimiter(',');
  app.add_option("--streams", streams, "texts at once")->delimiter(',');
  app.add_option("--prompt", prompt, "tokens of the prompt, 200 or more");
  app.add_option("--tokens", tokens, "of the answer");
  app.add_option("--rounds", rounds, "of each, in turn; medians are shown");
  app.add_option("--threads", threads, "0: all cores");
  app.add_option("--isa", isa, "auto, portable, avx2, avx512, avx512vnni");
  CLI11_PARSE(app, argc, argv);

  auto backend = make_cpu_backend({.num_threads = threads, .isa = isa});
  ModelConfig model_config = load_model_config(model_dir);
  EngineConfig config;
  config.kv_dtype = parse_dtype(kv_dtype);
  config.prefix_cache = false;
  config.kv_memory_bytes = uint64_t{1} << 30;
  ModelOptions options;
  options.weight_dtype = parse_dtype(dtype);
  options.max_rows = config.max_batched_tokens;
  options.max_logit_rows = 256;
  options.kv_dtype = config.kv_dtype;
  CheckpointWeights weights = load_weights(model_dir, model_config);
  const int64_t vocab = model_config.vocab_size;
  Engine engine(std::make_unique<BamModel>(*backend, model_config, std::move(weights), options), config, 0);
  std::printf("%-9s %7s %12s %12s %7s %14s\n", "text", "streams", "off tok/s", "on tok/s", "on/off", "accepted/made");
  for (const int count : streams) {
    for (const std::string& kind : kinds) {
      std::vector<double> on, off, ratio;
      int64_t accepted = 0, made = 0;
      for (int round = -1; round < rounds; ++round) {  // one to warm up
        Writer writer(vocab, 100 + static_cast<uint32_t>(round));
        std::vector<Text> texts;
        for (int i = 0; i < count; ++i) texts.push_back(writer.write(kind, prompt, tokens));
        const Measured without = measure(engine, texts, false), with = measure(engine, texts, true);
        if (round < 0) continue;
        off.push_back(without.tokens_per_s);
        on.push_back(with.tokens_per_s);
        ratio.push_back(with.tokens_per_s / without.tokens_per_s);
        accepted += with.accepted;
        made += with.accepted + with.rejected;
      }
      std::printf("%-9s %7d %12.1f %12.1f %7.2f %7ld/%-6ld\n", kind.c_str(), count, median(off), median(on),
                  median(ratio), static_cast<long>(accepted), static_cast<long>(made));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace bam::bench

int main(int argc, char** argv) { return bam::bench::run_program("bench_drafts", bam::bench::run, argc, argv); }
