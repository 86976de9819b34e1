#include "engine/engine_report.h"

#include <algorithm>

namespace bam {

EngineReport::EngineReport(const Scheduler& scheduler, const StagedKv& kv, const CostModel& cost,
                           const EngineStats& stats)
    : scheduler_(scheduler), kv_(kv), cost_(cost), stats_(stats) {}

void EngineReport::note_decode_step(double token_ms) {
  decode_step_ms_ = decode_step_ms_ == 0 ? token_ms : 0.8 * decode_step_ms_ + 0.2 * token_ms;
}

double LoadSummary::predict_ttft_ms(int64_t prompt_tokens) const {
  const CostModel& cost = queue.cost;
  const double own = cost.rows_ms(0, prompt_tokens);
  // Prompts share time equally, so each of the others delays this one by at most its own cost.
  const double others = std::min(prefill_ms, static_cast<double>(num_prefills) * own);
  return (own + others) / prefill_share + cost.step_overhead_ms();
}

double EngineReport::remaining_prefill_ms(const Sequence& s) const {
  return s.num_uncomputed() > 1 ? cost_.rows_ms(s.num_computed, s.num_uncomputed()) : 0;
}

double EngineReport::prefill_share() const {
  StepLoad decode;
  for (const Sequence* s : scheduler_.running()) {
    if (s->num_uncomputed() == 1) decode.add(s->num_computed, 1);
  }
  const double budget = std::max(prefill_budget_ms(scheduler_.limits(), cost_, decode, decode.rows > 0), 1e-3);
  const double rest = std::max(decode.rows > 0 ? cost_.predict_ms(decode) : 0.0, cost_.step_overhead_ms());
  return budget / (budget + rest);
}

double EngineReport::eta_ms(const ActiveRequest& r, double queue_ms) const {
  const Sequence& first = *r.choices.front();
  if (r.prompt_done) {
    int64_t left = 0;
    for (const auto& c : r.choices) {
      if (!r.choice_finished[static_cast<size_t>(c->choice)]) left = std::max(left, c->max_len - c->num_known());
    }
    return static_cast<double>(left) * decode_step_ms_;
  }
  const double own = remaining_prefill_ms(first);
  double total = queue_ms;
  if (first.queue == Sequence::Queue::kRunning) {
    for (const Sequence* s : scheduler_.running()) total += std::min(own, remaining_prefill_ms(*s));
  }
  return total / prefill_share();
}

LiveRequest EngineReport::describe_request(const ActiveRequest& r, Clock::time_point now, double queue_ms) const {
  LiveRequest live;
  const Sequence& first = *r.choices.front();
  const bool waiting = first.queue == Sequence::Queue::kWaiting;
  live.id = r.request.id;
  live.state = r.queued()      ? RequestState::kQueued
               : r.prompt_done ? RequestState::kDecode
               : waiting       ? RequestState::kPreempted
                               : RequestState::kPrefill;
  if (r.prompt_done) {
    const bool all_waiting = std::ranges::all_of(r.choices, [&](const auto& c) {
      return r.choice_finished[static_cast<size_t>(c->choice)] || c->queue == Sequence::Queue::kWaiting;
    });
    if (all_waiting) live.state = RequestState::kPreempted;
  }
  if (r.paused) live.state = RequestState::kPaused;
  live.priority = r.request.priority;
  live.n = r.request.n;
  live.prompt_tokens = first.num_prompt;
  live.cached_tokens = r.cached_tokens;
  live.processed_tokens = r.prompt_done ? first.num_prompt : std::min(first.num_computed, first.num_prompt);
  for (const auto& c : r.choices) live.generated_tokens += c->num_generated();
  live.age_ms = std::chrono::duration<double, std::milli>(now - r.submitted_at).count();
  live.eta_ms = eta_ms(r, queue_ms);
  return live;
}

EnginePicture EngineReport::picture(Clock::time_point now) const {
  EnginePicture result;
  double running_ms = 0;
  for (const Sequence* s : scheduler_.running()) running_ms += remaining_prefill_ms(*s);
  // In serving order, so that queue times add up; a request appears with its first choice.
  std::vector<const ActiveRequest*> order;
  for (const auto queue : {scheduler_.running(), scheduler_.waiting(), scheduler_.paused()}) {
    for (const Sequence* s : queue) {
      const ActiveRequest* r = s->request;
      if (std::ranges::find(order, r) == order.end()) order.push_back(r);
    }
  }
  double ahead_ms = running_ms;
  for (const ActiveRequest* r : order) {
    const Sequence& first = *r->choices.front();
    double queue_ms = 0;
    if (first.queue == Sequence::Queue::kWaiting) queue_ms = ahead_ms += remaining_prefill_ms(first);
    result.requests.push_back(describe_request(*r, now, queue_ms));
    (r->paused ? result.paused : r->queued() ? result.waiting : result.running) += 1;
  }
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    const BlockPool& pool = kv_.stage(stage).pool();
    result.pages_total += pool.num_total();
    result.pages_free += pool.num_free();
    result.pages_cached += pool.num_cached();
    result.pages_used += pool.num_used();
  }
  result.queued_work_s = 1e-3 * ahead_ms / prefill_share();
  return result;
}

QueueForecast EngineReport::queue_forecast(Clock::time_point now) const {
  QueueForecast result{.cost = cost_, .limits = scheduler_.limits()};
  const auto finished = [&](FinishReason reason) {
    return static_cast<double>(stats_.finished[static_cast<size_t>(reason)].load(std::memory_order_relaxed));
  };
  // A limit that cuts a text off says nothing about where it would have ended. One text of 256 tokens is assumed.
  const double ended = finished(FinishReason::kStop);
  result.mean_tokens =
      (256 + static_cast<double>(stats_.generated_tokens.load(std::memory_order_relaxed))) / (1 + ended);
  const int tightest = kv_.tightest();
  const KvCache& kv = kv_.stage(tightest);
  result.pages_free = kv.num_available();
  for (const Sequence* s : scheduler_.paused()) result.pages_free += s->blocks.num_pages(tightest);  // give back first
  for (const auto queue : {scheduler_.running(), scheduler_.waiting()}) {
    for (const Sequence* s : queue) {
      const ActiveRequest& r = *s->request;
      const bool waiting = s->queue == Sequence::Queue::kWaiting;
      const int64_t held = s->blocks.num_pages(tightest);
      const int64_t ahead = s->num_known() + (waiting ? 1 : kv.geometry().page_size());
      const int64_t pages = kv.geometry().pages_for(std::min(ahead, s->max_len));
      if (!waiting) result.pages_free -= std::max<int64_t>(0, pages - held);
      ForecastSequence f = forecast_of(r.request, s->max_len, s->num_generated());
      f.arrival = s->arrival;
      f.num_computed = s->num_computed;
      f.num_uncomputed = s->num_uncomputed();
      f.choices = r.prompt_done ? 1 : r.request.n;
      f.promoted = s->promoted;
      f.queued = r.queued();
      f.pages = std::max(pages, held);
      const auto leave_at = [&](Clock::time_point at) {
        f.leaves_ms = std::min(f.leaves_ms, std::chrono::duration<double, std::milli>(at - now).count());
      };
      if (r.deadline) leave_at(*r.deadline);
      // Only of what is still queued then; what has started by that time stays.
      if (r.gives_up_at()) {
        f.gives_up_ms = std::chrono::duration<double, std::milli>(*r.gives_up_at() - now).count();
      }
      (waiting ? result.waiting : result.running).push_back(f);
    }
  }
  return result;
}

LoadSummary EngineReport::load(Clock::time_point now) const {
  LoadSummary summary{queue_forecast(now)};
  for (const auto queue : {scheduler_.running(), scheduler_.waiting()}) {
    for (const Sequence* s : queue) {
      const double ms = remaining_prefill_ms(*s);
      summary.prefill_ms += ms;
      summary.num_prefills += ms > 0;
    }
  }
  summary.prefill_share = prefill_share();
  return summary;
}

}  // namespace bam
