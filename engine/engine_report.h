// What the engine says about itself: predictions and the picture of live requests. Reads only; engine thread.
#pragma once

#include "engine/active_request.h"
#include "engine/cost_model.h"
#include "engine/queue_forecast.h"
#include "engine/scheduler.h"
#include "engine/stats.h"

namespace bam {

// What other threads need to predict waiting times; a copy is published with every picture.
struct LoadSummary {
  QueueForecast queue;
  double prefill_ms = 0;     // predicted work of all prompts not read yet
  double prefill_share = 1;  // part of a step's time that prompts get now
  int64_t num_prefills = 0;

  // Predicted milliseconds until a new prompt would have been read.
  double predict_ttft_ms(int64_t prompt_tokens) const;
};

class EngineReport {
 public:
  // All of them outlive the report.
  EngineReport(const Scheduler& scheduler, const StagedKv& kv, const CostModel& cost, const EngineStats& stats);

  // How long a token took in a step with decode rows.
  void note_decode_step(double token_ms);

  // Everything but queued_tokens and attention, which others count.
  EnginePicture picture(Clock::time_point now) const;
  LoadSummary load(Clock::time_point now) const;
  // Predicted until the first token, or until the last possible one if there is a first; queue_ms: predicted work ahead
  // of it in the queue.
  double eta_ms(const ActiveRequest& request, double queue_ms) const;

 private:
  double remaining_prefill_ms(const Sequence& sequence) const;
  double prefill_share() const;
  QueueForecast queue_forecast(Clock::time_point now) const;
  LiveRequest describe_request(const ActiveRequest& request, Clock::time_point now, double queue_ms) const;

  const Scheduler& scheduler_;
  const StagedKv& kv_;
  const CostModel& cost_;
  const EngineStats& stats_;
  double decode_step_ms_ = 0;  // smoothed
};

}  // namespace bam
