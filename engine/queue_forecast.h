// When will the queue have room? Plays the schedule forward: sequences leave their slots when their texts end, waiting
// ones take these in order, and every step costs what the cost model says. See scheduler.h for the rules it imitates.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/cost_model.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/serving_order.h"

namespace bam {

// A sequence as far as the forecast needs it. Plain numbers: taken between two steps, used by any thread.
struct ForecastSequence : ServingRank {
  int64_t num_prompt = 0;
  int64_t num_computed = 0;
  int64_t num_uncomputed = 0;
  int64_t limit = 0;    // most tokens that each choice may still get
  int64_t certain = 0;  // of these, how many it gets in any case
  int32_t choices = 1;  // sequences it becomes once its prompt is read
  bool queued = false;  // counts as waiting until it is scheduled
  int64_t pages = 0;    // held; while waiting: needed to start
  // When its time is over, and when it is if it is still waiting then; from the forecast's start.
  double leaves_ms = std::numeric_limits<double>::infinity();
  double gives_up_ms = std::numeric_limits<double>::infinity();
};

// A request that has generated so many tokens, in a context of max_len; nothing of it is computed yet.
ForecastSequence forecast_of(const Request& request, int64_t max_len, int64_t generated);

struct QueueForecast {
  CostModel cost;
  SchedulerLimits limits;
  double mean_tokens = 256;  // of a text that may end at any token, if nothing cut it off
  double pace = 1;           // real time by what the cost model says: it knows the usual step, not the mean
  int64_t pages_free = 0;    // for newcomers
  std::vector<ForecastSequence> running;  // in serving order
  std::vector<ForecastSequence> waiting;  // likewise

  // What must have left the queue.
  struct Goal {
    int64_t requests = 0;
    int64_t tokens = 0;
  };
  // Milliseconds until `goal` is reached or nothing is queued. `late`: sequences queued after the others.
  double ms_until(Goal goal, std::span<const ForecastSequence> late) const;
  // What the cost model says about the next step.
  double step_ms() const;
};

}  // namespace bam
