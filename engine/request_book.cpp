#include "engine/request_book.h"

#include <utility>

#include "base/log.h"

namespace bam {

RequestBook::RequestBook(Scheduler& scheduler, MemoryReserve& reserve, EngineStats& stats, TimeSource& time,
                         Observer& observer)
    : scheduler_(scheduler), reserve_(reserve), stats_(stats), time_(time), observer_(observer) {}

void RequestBook::insert(std::unique_ptr<ActiveRequest>& owned) {
  ActiveRequest& r = *owned;
  const size_t sequences = num_sequences_ + static_cast<size_t>(r.request.n);
  scheduler_.reserve(sequences);
  if (touched_.capacity() <= requests_.size()) touched_.reserve(2 * requests_.size() + 8);
  const auto place = requests_.try_emplace(r.request.id).first;
  // No memory is needed from here on.
  place->second = std::move(owned);
  num_sequences_ = sequences;
  ++num_queued_;
  num_queued_tokens_ += static_cast<int64_t>(r.request.prompt.size());
  scheduler_.add(*r.choices.front());
}

void RequestBook::reject(const Request& request, EventSink& sink, const std::string& why) {
  log::error("request {}: {}", request.id, why);
  observer_.on_done(request.id);
  reserve_.insist([&] {
    std::vector<Event> events;
    for (int32_t i = 0; i < request.n; ++i) {
      FinishEvent event;
      event.choice = i;
      event.reason = FinishReason::kError;
      event.prompt_tokens = static_cast<int64_t>(request.prompt.size());
      event.message = "the request could not be started: " + why;
      events.emplace_back(std::move(event));
    }
    sink.on_events(std::move(events));
  });
  stats_.finished[static_cast<size_t>(FinishReason::kError)].fetch_add(static_cast<uint64_t>(request.n),
                                                                       std::memory_order_relaxed);
}

void RequestBook::leave_queue(ActiveRequest& r, Clock::time_point now) {
  r.started_at = now;
  --num_queued_;
  num_queued_tokens_ -= static_cast<int64_t>(r.request.prompt.size());
  stats_.queue_s.observe(to_seconds(now - r.submitted_at));
}

ActiveRequest* RequestBook::find(const std::string& id) {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

ActiveRequest* RequestBook::youngest() {
  ActiveRequest* youngest = nullptr;
  for (const auto& [id, r] : requests_) {
    if (!youngest || r->choices.front()->arrival > youngest->choices.front()->arrival) youngest = r.get();
  }
  return youngest;
}

void RequestBook::touch(ActiveRequest& r) {
  if (r.touched) return;
  r.touched = true;
  touched_.push_back(&r);
}

void RequestBook::say(ActiveRequest& r, Event event) {
  touch(r);
  r.events.push_back(std::move(event));
}

void RequestBook::finish_choice(ActiveRequest& r, int32_t index, FinishReason reason, int32_t stop_token,
                                std::string_view message) {
  const auto now = time_.now();
  r.events.reserve(r.events.size() + static_cast<size_t>(r.num_unfinished));  // the rest needs no memory
  FinishEvent event;
  event.choice = index;
  event.reason = reason;
  event.stop_token = stop_token;
  event.prompt_tokens = static_cast<int64_t>(r.request.prompt.size());
  event.cached_tokens = r.cached_tokens;
  event.message = message;
  event.dead_end = r.dead_end;
  if (index < static_cast<int32_t>(r.choices.size())) {
    Sequence& c = *r.choices[static_cast<size_t>(index)];
    scheduler_.remove(c);
    event.generated_tokens = c.num_generated();
    event.accepted_drafts = c.num_accepted;
    event.rejected_drafts = c.num_drafted - c.num_accepted;
  }
  if (r.first_token_at) {
    stats_.decode_s.observe(to_seconds(now - *r.first_token_at));
    stats_.generation_len.observe(static_cast<double>(event.generated_tokens));
    if (event.generated_tokens > 1) {
      stats_.mean_token_s.observe(to_seconds(now - *r.first_token_at) /
                                  static_cast<double>(event.generated_tokens - 1));
    }
  }
  stats_.finished[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  say(r, std::move(event));
  r.choice_finished[static_cast<size_t>(index)] = true;
  if (--r.num_unfinished > 0) return;
  int64_t longest = 0;
  for (const auto& choice : r.choices) longest = std::max<int64_t>(longest, choice->num_generated());
  stats_.longest_choice.observe(static_cast<double>(longest));
  stats_.asked_tokens.observe(static_cast<double>(r.request.sampling.max_tokens));
  stats_.asked_choices.observe(r.request.n);
  if (r.started_at) stats_.inference_s.observe(to_seconds(now - *r.started_at));
  stats_.e2e_s.observe(to_seconds(now - r.submitted_at));
  stats_.prompt_len.observe(static_cast<double>(r.request.prompt.size()));
  if (r.queued()) {
    --num_queued_;
    num_queued_tokens_ -= static_cast<int64_t>(r.request.prompt.size());
  }
}

void RequestBook::finish_request(ActiveRequest& r, FinishReason reason, std::string_view message) {
  for (int32_t i = 0; i < r.request.n; ++i) {
    if (!r.choice_finished[static_cast<size_t>(i)]) finish_choice(r, i, reason, -1, message);
  }
}

void RequestBook::end_all(FinishReason reason, std::string_view message) {
  for (const auto& [id, request] : requests_) end_request(*request, reason, message);
  deliver();
}

// False: nobody is listening, or whoever does has no memory to do so.
bool RequestBook::hand_over(ActiveRequest& r) {
  try {
    return r.sink->on_events(std::move(r.events));
  } catch (const std::exception& e) {
    log::error("request {}: its events could not be delivered: {}", r.request.id, e.what());
    return false;
  }
}

void RequestBook::deliver() {
  if (!touched_.empty()) observer_.before_events();
  for (size_t i = 0; i < touched_.size(); ++i) {
    ActiveRequest& r = *touched_[i];
    if (r.done()) observer_.on_done(r.request.id);
    const bool listening = r.events.empty() || hand_over(r);
    r.events.clear();  // a sink that took nothing leaves its room for the next step
    if (!listening && !r.done()) {
      end_request(r, FinishReason::kCancelled, "nobody is listening");
      r.events.clear();
      observer_.on_done(r.request.id);
    }
    r.touched = false;
    if (!r.done()) continue;
    num_sequences_ -= static_cast<size_t>(r.request.n);
    requests_.erase(requests_.find(r.request.id));
  }
  touched_.clear();
}

}  // namespace bam
