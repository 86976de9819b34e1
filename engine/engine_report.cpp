// What the engine says about itself: predictions and the picture of live requests.
#include <algorithm>

#include "engine/engine_core.h"

namespace bam {

double LoadSummary::predict_ttft_ms(int64_t prompt_tokens) const {
  const double own = cost.rows_ms(0, prompt_tokens);
  // Prompts share time equally, so each of the others delays this one by at most its own cost.
  const double others = std::min(prefill_ms, static_cast<double>(num_prefills) * own);
  return (own + others) / prefill_share + cost.step_overhead_ms();
}

double EngineCore::remaining_prefill_ms(const Sequence& s) const {
  return s.num_uncomputed() > 1 ? cost_.rows_ms(s.num_computed, s.num_uncomputed()) : 0;
}

double EngineCore::prefill_share() const {
  StepLoad decode;
  for (const Sequence* s : scheduler_.running()) {
    if (s->num_uncomputed() == 1) decode.add(s->num_computed, 1);
  }
  const double budget = std::max(scheduler_.prefill_budget_ms(decode), 1e-3);
  const double rest = std::max(decode.rows > 0 ? cost_.predict_ms(decode) : 0.0, cost_.step_overhead_ms());
  return budget / (budget + rest);
}

double EngineCore::eta_ms(const ActiveRequest& r, double queue_ms) const {
  const Choice& first = *r.choices.front();
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

LiveRequest EngineCore::describe_request(const ActiveRequest& r, Clock::time_point now, double queue_ms) const {
  LiveRequest live;
  const Choice& first = *r.choices.front();
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

EngineSnapshot EngineCore::snapshot(Clock::time_point now) const {
  EngineSnapshot result;
  double running_ms = 0;
  for (const Sequence* s : scheduler_.running()) running_ms += remaining_prefill_ms(*s);
  // In serving order, so that queue times add up; a request appears with its first choice.
  std::vector<const ActiveRequest*> order;
  for (const auto queue : {scheduler_.running(), scheduler_.waiting()}) {
    for (const Sequence* s : queue) {
      const ActiveRequest* r = static_cast<const Choice*>(s)->request;
      if (std::ranges::find(order, r) == order.end()) order.push_back(r);
    }
  }
  double ahead_ms = running_ms;
  for (const ActiveRequest* r : order) {
    const Choice& first = *r->choices.front();
    double queue_ms = 0;
    if (first.queue == Sequence::Queue::kWaiting) queue_ms = ahead_ms += remaining_prefill_ms(first);
    result.requests.push_back(describe_request(*r, now, queue_ms));
    (r->queued() ? result.waiting : result.running) += 1;
  }
  result.queued_tokens = num_queued_tokens_;
  const BlockPool& pool = kv_.pool();
  result.pages_total = pool.num_total();
  result.pages_free = pool.num_free();
  result.pages_cached = pool.num_cached();
  result.pages_used = pool.num_used();
  result.queued_work_s = 1e-3 * ahead_ms / prefill_share();
  result.attention = model_.counters();
  return result;
}

LoadSummary EngineCore::load() const {
  LoadSummary summary{cost_};
  const uint64_t finished = stats_.generation_len.count();
  const double usual = finished > 0 ? 2 * stats_.generation_len.sum() / static_cast<double>(finished) : 256;
  double tokens = 0;
  for (const auto queue : {scheduler_.running(), scheduler_.waiting()}) {
    for (const Sequence* s : queue) {
      const auto& choice = static_cast<const Choice&>(*s);
      const double ms = remaining_prefill_ms(choice);
      summary.prefill_ms += ms;
      if (choice.request->queued()) summary.queued_prefill_ms += ms;
      summary.num_prefills += ms > 0;
      // Most requests end long before their limit; one that ignores the end of text will not.
      const auto limit = static_cast<double>(s->max_len - s->num_known());
      tokens += choice.request->request.sampling.ignore_eos ? limit : std::min(usual, limit);
    }
  }
  summary.decode_ms = tokens * decode_step_ms_ / static_cast<double>(config_.max_num_seqs);
  summary.prefill_share = prefill_share();
  return summary;
}

}  // namespace bam
