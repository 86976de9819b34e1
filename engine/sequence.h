#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/clock.h"
#include "engine/drafter.h"
#include "engine/sampler.h"
#include "engine/score_cache.h"
#include "engine/serving_order.h"
#include "engine/staged_kv.h"

namespace bam {

struct ActiveRequest;

// One of a request's n texts: tokens that are known, and how many of them have their keys and values in the cache. A
// step lets num_computed catch up with the known tokens; when it has, the next token is sampled. Rows are on their way
// between being scheduled and being computed: the next ones need not wait for them.
struct Sequence : ServingRank {
  ActiveRequest* request = nullptr;  // whose choice it is; the scheduler never looks at it

  std::vector<int32_t> tokens;  // known: prompt, then generated
  int64_t num_prompt = 0;
  int64_t num_computed = 0;
  int64_t num_scheduled = 0;  // computed or on their way, guesses not counted
  int64_t max_len = 0;        // most tokens it can ever have
  // Prompt positions from here on all need logits (prompt logprobs, pooling), so they are not taken from the prefix cache.
  int64_t logits_from = INT64_MAX;
  std::optional<PromptScores> scores;  // with prompt logprobs
  bool wants_hidden = false;           // rows that have logits are pooled into an embedding

  StagedBlocks blocks;
  std::optional<SamplerState> sampler;  // set by the engine, unused by the scheduler
  Clock::time_point last_token_at{};    // likewise
  // Its proposal is made before a plan and stays while rows are on their way; nothing: no guesses.
  std::optional<Drafter> drafter;
  int64_t num_drafted = 0, num_accepted = 0;

  // Owned by the scheduler.
  enum class Queue : uint8_t { kNone, kWaiting, kRunning, kPaused };
  Queue queue = Queue::kNone;
  std::optional<Clock::time_point> idle_since;  // its last row, or when the scheduler first saw it without one
  int64_t overtaken = 0;                        // sequences admitted past it while it was first but had no memory
  double virtual_time = 0;                      // prefill time received, for the fair share
  int64_t granted = 0;                          // rows in the plan being made
  int64_t drafted = 0;                          // and beyond them, rows of its drafter's proposal
  int64_t num_preemptions = 0;

  int64_t num_known() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_generated() const { return num_known() - num_prompt; }
  int64_t num_uncomputed() const { return num_known() - num_computed; }
  int64_t num_unscheduled() const { return num_known() - num_scheduled; }
  bool wants_prompt_logits() const { return logits_from < num_prompt; }
};

}  // namespace bam
