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
  fail_all();
}

void EngineCore::lose_group(const std::string& what) {
  if (forming_ || !device_lost_.empty()) return;
  stats_.group_losses.fetch_add(1, std::memory_order_relaxed);
  num_in_flight_ = 0;
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
  probes_.restart();
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

void EngineCore::advance_probes(bool alone) {
  probes_.drop_stopped();
  if (probes_.empty()) return;
  const double budget_ms = alone ? prefill_budget_ms(scheduler_.limits(), cost_, {}) : config_.step_target_ms / 4;
  int64_t rows = std::max<int64_t>(1, cost_.rows_within(probes_.num_computed(), budget_ms));
  if (!alone) rows = std::min(rows, Scheduler::kQuantumRows);
  try {
    probes_.advance(rows, [this](AttentionProbe& probe, int64_t n) { return runner_->advance_probe(probe, n); });
  } catch (const DeviceLost& e) {
    lose_device(e.what());
  } catch (const PeerLost& e) {
    lose_group(e.what());
  }
}

}  // namespace bam
