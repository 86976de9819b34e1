// Inter-token gaps of short streams while one long prompt is being read, against the step target.
//
//   engine_gaps MODEL_DIR [prompt_tokens = 100000] [step_target_ms = 50] [streams = 8] [threads = 0]
//
// The streams first run alone (baseline), then beside the prompt. Prompts are random tokens; nothing is cached.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/backend.h"
#include "models/bam.h"
#include "models/weights.h"

namespace {

using bam::Clock;

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

// Remembers when tokens and signs of progress came.
class TimingSink : public bam::EventSink {
 public:
  bool on_events(std::vector<bam::Event>&& events) override {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    for (const bam::Event& event : events) {
      if (std::holds_alternative<bam::TokenEvent>(event)) tokens_.push_back(now);
      if (std::holds_alternative<bam::FinishEvent>(event)) finished_ = true;
      if (const auto* progress = std::get_if<bam::ProgressEvent>(&event)) {
        progress_.push_back(now);
        eta_ms_.push_back(progress->eta_ms);
      }
    }
    changed_.notify_all();
    return !stop_;
  }
  void wait_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ || tokens_.size() >= count; });
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  std::vector<Clock::time_point> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  size_t num_chunks() {
    const std::lock_guard lock(mutex_);
    return progress_.size();
  }
  // What was predicted after this part of the chunks, and what it really took, in seconds.
  std::pair<double, double> eta(double part) {
    const std::lock_guard lock(mutex_);
    const size_t i = static_cast<size_t>(part * static_cast<double>(progress_.size() - 1));
    return {eta_ms_[i] / 1e3, ms_between(progress_[i], tokens_.front()) / 1e3};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Clock::time_point> tokens_, progress_;
  std::vector<double> eta_ms_;
  bool finished_ = false, stop_ = false;
};

std::vector<int32_t> random_tokens(std::mt19937& rng, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  return tokens;
}

// Gaps between neighbouring tokens that both lie in [begin, end].
void report(const char* what, const std::vector<std::shared_ptr<TimingSink>>& streams, Clock::time_point begin,
            Clock::time_point end) {
  std::vector<double> gaps;
  for (const auto& stream : streams) {
    const auto times = stream->tokens();
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i - 1] >= begin && times[i] <= end) gaps.push_back(ms_between(times[i - 1], times[i]));
    }
  }
  if (gaps.empty()) return void(std::printf("%-22s no gaps\n", what));
  std::sort(gaps.begin(), gaps.end());
  const auto at = [&](double q) {
    return gaps[std::min(gaps.size() - 1, static_cast<size_t>(q * static_cast<double>(gaps.size())))];
  };
  std::printf("%-22s p50 %7.2f ms   p99 %7.2f ms   max %7.2f ms   (%zu gaps)\n", what, at(0.5), at(0.99), gaps.back(),
              gaps.size());
}

int run(int argc, char** argv) {
  const auto number = [&](int i, double fallback) { return argc > i ? std::atof(argv[i]) : fallback; };
  const int64_t prompt_tokens = static_cast<int64_t>(number(2, 100'000));
  const double target_ms = number(3, 50);
  const int num_streams = static_cast<int>(number(4, 8));

  auto backend = bam::make_cpu_backend({static_cast<int>(number(5, 0))});
  bam::EngineConfig config;
  config.step_target_ms = target_ms;
  bam::ModelConfig model_config = bam::load_model_config(argv[1]);
  bam::ModelOptions options;
  options.max_rows = config.max_batched_tokens;
  options.max_logit_rows = std::max<int64_t>(config.max_num_seqs, 256);
  bam::CheckpointWeights weights = bam::load_weights(argv[1], model_config);
  bam::Engine engine(std::make_unique<bam::BamModel>(*backend, model_config, std::move(weights), options), config, 0);

  std::mt19937 rng(1);
  std::vector<std::shared_ptr<TimingSink>> streams;
  for (int i = 0; i < num_streams; ++i) {
    bam::Request request;
    request.id = "stream-" + std::to_string(i);
    request.prompt = random_tokens(rng, 32, model_config.vocab_size);
    request.sampling.max_tokens = 1'000'000;
    request.sampling.ignore_eos = true;
    streams.push_back(std::make_shared<TimingSink>());
    const auto result = engine.submit(std::move(request), streams.back());
    if (result.status != bam::SubmitStatus::kAccepted) throw bam::Error("{}", result.message);
  }
  for (const auto& stream : streams) stream->wait_tokens(50);
  const auto alone = Clock::now();
  for (const auto& stream : streams) stream->wait_tokens(250);

  bam::Request request;
  request.id = "long";
  request.prompt = random_tokens(rng, prompt_tokens, model_config.vocab_size);
  request.sampling.max_tokens = 2;
  auto prompt = std::make_shared<TimingSink>();
  const auto begin = Clock::now();
  const auto result = engine.submit(std::move(request), prompt);
  if (result.status != bam::SubmitStatus::kAccepted) throw bam::Error("{}", result.message);
  prompt->wait_tokens(1);
  const auto end = prompt->tokens().front();
  std::printf("%lld prompt tokens in %.2f s, %zu chunks, beside %d streams; step target %.0f ms\n",
              static_cast<long long>(prompt_tokens), ms_between(begin, end) / 1e3, prompt->num_chunks(), num_streams,
              target_ms);
  for (const double part : {0.1, 0.5, 0.9}) {
    const auto [predicted, real] = prompt->eta(part);
    std::printf("time left after %2.0f %% of the chunks: predicted %.2f s, real %.2f s\n", 100 * part, predicted, real);
  }
  report("streams alone", streams, alone, begin);
  report("streams during prefill", streams, begin, end);
  for (const auto& stream : streams) stream->stop();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL_DIR [prompt_tokens] [step_target_ms] [streams] [threads]\n", argv[0]);
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
