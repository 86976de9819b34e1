// Steps on their way: issued, finished, or lost with the device or with a rank.
#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/engine_core.h"
#include "transport/transport.h"

namespace bam {

namespace {

// How often the ranks are looked after: while there is no work, and while they come together.
constexpr auto kWatchIdle = std::chrono::milliseconds(200), kWatchForming = std::chrono::milliseconds(10);

}  // namespace

std::string reason_of(const std::exception& e) {
  return dynamic_cast<const std::bad_alloc*>(&e) ? "the server is out of memory" : e.what();
}

void EngineCore::fill(Flight& flight, const SchedulePlan& plan, Clock::time_point start) const {
  flight.rows = plan.rows;
  flight.load = plan.load;
  flight.start = start;
  flight.stays.clear();
  flight.tables.clear();
  flight.batch.clear();
  for (const ScheduledRows& rows : plan.rows) {
    flight.stays.push_back(rows.sequence->blocks.id);
    flight.tables.push_back(&rows.sequence->blocks);
    flight.batch.append(rows, sampler_.append_draw());
  }
}

bool EngineCore::issue_step() {
  const auto start = time_.now();
  const SchedulePlan* plan = make_plan(start);
  if (!plan) return true;
  try {
    runner_->copy_pages(kv_);
    if (plan->empty()) return false;  // all that is left to run was preempted just now, or is on its way
    Flight& flight = flights_[(first_flight_ + num_in_flight_) % flights_.size()];
    fill(flight, *plan, start);
    runner_->issue(flight.batch, flight.tables, kv_);
    ++num_in_flight_;
    return true;
  } catch (const DeviceLost& e) {
    lose_device(e.what());
  } catch (const PeerLost& e) {
    lose_group(e.what());
  } catch (const std::exception& e) {
    fail_step(plan->rows, reason_of(e));
    book_.deliver();
  }
  return true;
}

bool EngineCore::finish_step(std::chrono::milliseconds timeout) {
  Flight& flight = flights_[first_flight_];
  const StepResult* result = nullptr;
  try {
    result = runner_->finish(timeout);
    if (!result) return false;
    first_flight_ = (first_flight_ + 1) % flights_.size();
    --num_in_flight_;
    if (!result->error.empty()) throw Error("{}", result->error);
    sample_next(flight, *result);
    compute_done(flight, *result);
  } catch (const DeviceLost& e) {
    lose_device(e.what());
    return true;
  } catch (const PeerLost& e) {
    lose_group(e.what());
    return true;
  } catch (const std::exception& e) {
    if (!result) {  // what was issued cannot be told apart any more
      lose_group(reason_of(e));
      return true;
    }
    for (size_t i = flight.rows.size(); i-- > 0;) {
      if (!sequence_of(flight, i)) flight.rows.erase(flight.rows.begin() + static_cast<std::ptrdiff_t>(i));
    }
    fail_step(flight.rows, reason_of(e));
  }
  book_.deliver();
  return true;
}

void EngineCore::lose_device(const std::string& what) {
  if (device_lost_.empty()) log::error("{}", what);
  device_lost_ = what;
  num_in_flight_ = 0;
  deferred_.clear();
  fail_all();
}

void EngineCore::lose_group(const std::string& what) {
  if (forming_ || !device_lost_.empty()) return;
  stats_.group_losses.fetch_add(1, std::memory_order_relaxed);
  num_in_flight_ = 0;
  deferred_.clear();
  if (config_.replay_limit == 0) return lose_device(what);
  log::error("{}; what it had is computed again", what);
  for (const auto& [id, r] : book_.live()) {
    if (std::ranges::none_of(r->choices, [](const auto& c) { return c->blocks.id != 0; })) continue;
    stats_.replays.fetch_add(1, std::memory_order_relaxed);
    if (++r->num_losses <= config_.replay_limit) continue;
    reserve_.insist([&] {
      book_.finish_request(*r, FinishReason::kError,
                           fmt::format("{} ranks were lost while the request ran: {}", r->num_losses, what));
    });
  }
  scheduler_.give_back_all();
  kv_.reset(runner_->sizes());
  runner_->form_again();
  forming_ = true;
  book_.deliver();
}

void EngineCore::watch() {
  try {
    if (!forming_) return runner_->watch();
    std::string failure;
    switch (runner_->group(failure)) {
      case GroupState::kForming: return;
      case GroupState::kFailed: forming_ = false; return lose_device(failure);
      case GroupState::kReady: break;
    }
    kv_.reset(runner_->sizes());
    forming_ = false;
  } catch (const PeerLost& e) {
    lose_group(e.what());
  }
}

Clock::time_point EngineCore::next_watch(Clock::time_point now) const {
  if (kv_.num_stages() == 1) return Clock::time_point::max();
  return now + (forming_ ? kWatchForming : kWatchIdle);
}

// The last row's pages are committed when the look is over: what the row reads must not be freed before.
void EngineCore::begin_look(Sequence& c, Clock::time_point now) {
  ActiveRequest& r = *c.request;
  if (!r.prompt_done) {
    send_progress(c, now);
    r.prompt_done = true;
    stats_.prompt_tokens.fetch_add(static_cast<uint64_t>(c.num_prompt), std::memory_order_relaxed);
    stats_.prefill_s.observe(std::chrono::duration<double>(now - *r.started_at).count());
  }
  scheduler_.pause(c);
  looks_.add(c, r.request.id);
}

void EngineCore::advance_looks(bool alone) {
  Sequence* c = nullptr;
  while (!c) {
    if (looks_.empty()) return;
    const AttentionLooks::Look& look = looks_.oldest();
    ActiveRequest* r = book_.find(look.request);
    Sequence* first = r && !r->done() ? r->choices.front().get() : nullptr;
    if (first && first->arrival == look.arrival && first->blocks.id == look.stay) {
      c = first;
      break;
    }
    if (first && first->arrival == look.arrival) scheduler_.resume(*first);
    looks_.drop_oldest();
  }
  const int64_t pages = alone ? AttentionLooks::kPagesAlone : AttentionLooks::kPagesBeside;
  try {
    if (looks_.advance(*c, *c->request->request.look, *runner_, kv_, pages)) finish_look(*c);
  } catch (const DeviceLost& e) {
    lose_device(e.what());
  } catch (const PeerLost& e) {
    lose_group(e.what());
  } catch (const std::exception& e) {
    looks_.drop_oldest();
    book_.end_request(*c->request, FinishReason::kError, reason_of(e));
    book_.deliver();
  }
}

void EngineCore::finish_look(Sequence& c) {
  std::optional<AttentionReport> report = looks_.report();
  looks_.drop_oldest();
  if (!report) {
    fail_request(*c.request, "the model produced NaN logits");
  } else {
    kv_.commit(c.blocks, c.tokens, c.num_computed);
    book_.say(*c.request, AttentionEvent{*std::move(report)});
    book_.finish_request(*c.request, FinishReason::kLength, "");
  }
  book_.deliver();
}

}  // namespace bam
