#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_cache.h"

namespace bam {

// One choice of one request as the scheduler sees it: tokens that are known, and how many of them have their keys and
// values in the cache. A step lets num_computed catch up with the known tokens; when it has, the next token is sampled.
struct Sequence {
  uint64_t arrival = 0;  // order of submission; choices of one request share it
  int32_t choice = 0;
  int32_t priority = 0;  // lower is earlier

  std::vector<int32_t> tokens;  // known: prompt, then generated
  int64_t num_prompt = 0;
  int64_t num_computed = 0;
  int64_t max_len = 0;  // most tokens it can ever have
  // Prompt positions from here on all need logits (prompt logprobs), so they are never taken from the prefix cache.
  int64_t logits_from = INT64_MAX;

  BlockTable blocks;

  // Owned by the scheduler.
  enum class Queue : uint8_t { kNone, kWaiting, kRunning };
  Queue queue = Queue::kNone;
  bool promoted = false;    // waited so long that it goes before every class
  int64_t idle_steps = 0;   // steps in a row without a row
  int64_t overtaken = 0;    // sequences admitted past it while it was first but had no memory
  double virtual_time = 0;  // prefill time received, for the fair share
  int64_t granted = 0;      // rows in the plan being made
  int64_t num_preemptions = 0;

  int64_t num_known() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_uncomputed() const { return num_known() - num_computed; }
  bool wants_prompt_logits() const { return logits_from < num_prompt; }
};

// The order in which sequences are served and, backwards, preempted.
inline bool served_before(const Sequence& a, const Sequence& b) {
  if (a.promoted != b.promoted) return a.promoted;
  if (!a.promoted && a.priority != b.priority) return a.priority < b.priority;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.choice < b.choice;
}

inline bool same_class(const Sequence& a, const Sequence& b) {
  return a.promoted == b.promoted && (a.promoted || a.priority == b.priority);
}

}  // namespace bam
