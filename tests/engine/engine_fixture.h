// A small real model behind a real engine, and sinks that collect what it says.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/backend.h"
#include "models/bam.h"
#include "models/weights.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/temp_dir.h"

namespace bam::testing {

// After so long something hangs. It bounds every wait and measures nothing: no test may need a fast machine.
inline constexpr std::chrono::minutes kPatience{5};

// Everything one request produced.
struct Outcome {
  struct PerChoice {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    int64_t drafted = 0, rejected_drafts = 0;
    bool finished = false;
    FinishEvent finish;
  };
  std::vector<PerChoice> choices;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<ProgressEvent> progress;
  std::optional<AttentionReport> attention;
  bool in_order = true;  // no event after the end, prompt logprobs without holes

  bool done() const {
    for (const PerChoice& c : choices) {
      if (!c.finished) return false;
    }
    return true;
  }
};

class CollectingSink : public EventSink {
 public:
  explicit CollectingSink(int32_t n = 1) { outcome_.choices.resize(static_cast<size_t>(n)); }

  bool on_events(std::vector<Event>&& events) override {
    const std::lock_guard lock(mutex_);
    for (Event& event : events) take(event);
    if (condition_ && condition_(outcome_)) std::exchange(condition_, nullptr), action_();
    changed_.notify_all();
    return !gone_;
  }
  // Before it is submitted: does something while the engine delivers what makes `condition` true, so that nothing else has
  // been computed since, however late another thread would have looked.
  void when(std::function<bool(const Outcome&)> condition, std::function<void()> action) {
    condition_ = std::move(condition);
    action_ = std::move(action);
  }
  // For an action: from these events on nobody is there.
  void is_gone() { gone_ = true; }

  Outcome wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return outcome_.done(); });
    return outcome_;
  }
  // Waits until `ready(outcome so far)` or the end.
  template <typename F>
  void wait_for(F ready) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return outcome_.done() || ready(outcome_); });
  }
  Outcome peek() {
    const std::lock_guard lock(mutex_);
    return outcome_;
  }

 private:
  void take(Event& event) {
    if (outcome_.done()) outcome_.in_order = false;
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      auto& choice = outcome_.choices.at(static_cast<size_t>(token->choice));
      if (choice.finished) outcome_.in_order = false;
      choice.tokens.push_back(token->token);
      choice.drafted += token->drafted ? 1 : 0;
      choice.rejected_drafts += token->rejected_drafts;
      if (token->logprobs) choice.logprobs.push_back(std::move(*token->logprobs));
    } else if (auto* finish = std::get_if<FinishEvent>(&event)) {
      auto& choice = outcome_.choices.at(static_cast<size_t>(finish->choice));
      if (choice.finished) outcome_.in_order = false;
      choice.finished = true;
      choice.finish = *finish;
    } else if (auto* prompt = std::get_if<PromptLogprobsEvent>(&event)) {
      if (prompt->first != static_cast<int64_t>(outcome_.prompt_logprobs.size()) + 1) outcome_.in_order = false;
      for (auto& l : prompt->logprobs) outcome_.prompt_logprobs.push_back(std::move(l));
    } else if (auto* progress = std::get_if<ProgressEvent>(&event)) {
      outcome_.progress.push_back(*progress);
    } else if (auto* attention = std::get_if<AttentionEvent>(&event)) {
      outcome_.attention = std::move(attention->report);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Outcome outcome_;
  bool gone_ = false;
  std::function<bool(const Outcome&)> condition_;
  std::function<void()> action_;
};

// A random checkpoint with near-sighted, wide and flat heads: some pages are freed early, others never.
inline CheckpointSpec mixed_reach_spec() {
  CheckpointSpec spec;
  spec.config = tiny_config();
  spec.config.num_kv_heads = 2;
  spec.config.eos_token_ids = {2};
  // Two query heads share a KV head: groups 0 and 2 are bounded, 1 and 3 are not.
  spec.prior = {{2.0, 1.0, 0.0}, {1.5, 1.2, 0.0}, {-1.0, 0.2, 0.0}, {0.5, -0.3, 0.0}};
  spec.weight_gain = 0.7f;
  return spec;
}

struct TestModelOptions {
  int threads = 1;
  int64_t max_rows = 512;
  int64_t max_logit_rows = 64;
  bool check_finite = true;
  std::string isa = "auto";
};

// Owns the backend that an engine's model refers to; declare it before the engine.
class TestModel {
 public:
  explicit TestModel(const std::filesystem::path& checkpoint, TestModelOptions options = {})
      : checkpoint_(checkpoint),
        options_(options),
        backend_(make_cpu_backend({.num_threads = options.threads, .isa = options.isa})) {}

  std::unique_ptr<BamModel> load() {
    ModelConfig config = load_model_config(checkpoint_);
    ModelOptions options;
    options.max_rows = options_.max_rows;
    options.check_finite = options_.check_finite;
    options.max_logit_rows = options_.max_logit_rows;
    CheckpointWeights weights = load_weights(checkpoint_, config);
    return std::make_unique<BamModel>(*backend_, std::move(config), std::move(weights), options);
  }
  Backend& backend() { return *backend_; }

 private:
  std::filesystem::path checkpoint_;
  TestModelOptions options_;
  std::unique_ptr<Backend> backend_;
};

inline EngineConfig small_config(uint64_t kv_bytes = 64 << 20) {
  EngineConfig config;
  config.kv_memory_bytes = kv_bytes;
  config.max_num_seqs = 16;
  config.max_batched_tokens = 512;
  return config;
}

inline std::vector<int32_t> random_prompt(std::mt19937& rng, int64_t length, int32_t vocab = 512) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = 3 + static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab - 3));
  return prompt;
}

inline Request make_request(std::string id, std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.id = std::move(id);
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

inline bool same_logprobs(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i].logprob, b[i].logprob) || a[i].rank != b[i].rank || a[i].top.size() != b[i].top.size())
      return false;
    for (size_t j = 0; j < a[i].top.size(); ++j) {
      if (a[i].top[j].first != b[i].top[j].first || !same_bits(a[i].top[j].second, b[i].top[j].second)) return false;
    }
  }
  return true;
}

}  // namespace bam::testing
