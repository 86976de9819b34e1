// Numbers the engine publishes. Written by the engine thread with relaxed atomics, read by anyone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_options.h"

namespace bam {

// Cumulative histogram with fixed bounds, Prometheus semantics (counts[i]: values <= bounds[i], last: +Inf).
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  std::vector<uint64_t> cumulative_counts() const;
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<uint64_t> count_{0};
  std::atomic<double> sum_{0};
};

// Of the store of prefixes that replicas share. Written by its threads.
struct PrefixStoreStats {
  std::atomic<uint64_t> hits{0}, misses{0}, timeouts{0}, errors{0};  // prompts; what the store could not do
  std::atomic<uint64_t> restored_tokens{0}, read_bytes{0}, written_bytes{0};
  std::atomic<uint64_t> refused_objects{0};  // damaged
  std::atomic<uint64_t> dropped_writes{0};   // prompts that were not written: too many at once, or the store is away
};

struct EngineStats {
  EngineStats();
  std::atomic<uint64_t> steps{0}, prompt_tokens{0}, generated_tokens{0}, preemptions{0}, pauses{0};
  std::atomic<uint64_t> deferred_samples{0};                     // by the budget of masks
  std::atomic<uint64_t> prefix_queries{0}, prefix_hits{0};       // in tokens
  std::atomic<uint64_t> drafts_proposed{0}, drafts_accepted{0};  // guesses computed along, and those that were right
  std::array<std::atomic<uint64_t>, 5> finished{};               // by FinishReason
  std::atomic<uint64_t> reach_freed_bytes{0}, pages_evicted{0};
  std::atomic<uint64_t> group_losses{0}, replays{0};  // of ranks; requests that were computed again because of them
  std::shared_ptr<PrefixStoreStats> store = std::make_shared<PrefixStoreStats>();  // threads may outlive the engine
  Histogram ttft_s, inter_token_s, e2e_s, queue_s, prefill_s, decode_s, prompt_len, generation_len, step_s;
  Histogram inference_s, mean_token_s, step_tokens;       // first step to the end; per choice; rows of a step
  Histogram longest_choice, asked_tokens, asked_choices;  // per request: its longest choice, max_tokens, n
};

// One stage of the model: all of it, or a rank's layers.
struct StagePicture {
  int first_layer = 0, num_layers = 0;
  std::string device;
  int64_t pages_total = 0, pages_free = 0, pages_cached = 0, pages_used = 0;
  uint64_t steps = 0;
  double busy_ms = 0;  // of all steps
  double wait_ms = 0;  // for rows of steps that were planned; rank 0: for room to issue another
  double step_ms = 0;  // smoothed

  void add_step(double ms) {
    ++steps;
    busy_ms += ms;
    step_ms = step_ms == 0 ? ms : 0.8 * step_ms + 0.2 * ms;
  }
};

enum class RequestState : uint8_t { kQueued, kPrefill, kDecode, kPreempted, kPaused };

struct LiveRequest {
  std::string id;
  RequestState state = RequestState::kQueued;
  int32_t priority = 0, n = 1;
  int64_t prompt_tokens = 0, cached_tokens = 0, processed_tokens = 0, generated_tokens = 0;
  double age_ms = 0, eta_ms = 0;  // ETA to the first token while queued or in prefill, else to max_tokens
};

// A consistent picture taken by the engine thread between two steps.
struct EnginePicture {
  std::vector<LiveRequest> requests;
  int64_t running = 0, waiting = 0, paused = 0;  // requests
  int64_t queued_tokens = 0;
  int64_t pages_total = 0, pages_free = 0, pages_cached = 0, pages_used = 0;
  double queued_work_s = 0;                  // cost model: seconds of work before a new request would start
  double last_step_age_s = 0;                // since the last finished step, 0 when idle
  std::vector<AttentionCounters> attention;  // [layer * heads + head]
  std::vector<StagePicture> stages;
  bool ready = true;  // false: a rank was lost, and its group is being formed again
};

}  // namespace bam
