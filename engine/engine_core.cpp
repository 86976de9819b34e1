#include "engine/engine_core.h"

#include <algorithm>
#include <new>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/philox.h"

namespace bam {

namespace {

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }
double milliseconds(Clock::duration d) { return 1e3 * seconds(d); }

SchedulerLimits limits_of(const EngineConfig& config, const BamModel& model) {
  return {config.max_num_seqs, config.max_batched_tokens, model.options().max_logit_rows, config.step_target_ms,
          std::chrono::milliseconds(static_cast<int64_t>(1e3 * config.promote_after_s))};
}

// Room for an answer of this length is taken at once, not while it is written.
constexpr int64_t kReservedTokens = 4096;

constexpr size_t kReserveBytes = size_t{256} << 10;
constexpr int kAttempts = 100;
constexpr auto kAttemptPause = std::chrono::milliseconds(10);

std::string reason_of(const std::exception& e) {
  return dynamic_cast<const std::bad_alloc*>(&e) ? "the server is out of memory" : e.what();
}

uint64_t random_key() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

EngineCore::EngineCore(BamModel& model, const KvPlan& plan, EngineStats& stats, TimeSource& time, Observer& observer)
    : model_(model),
      config_(plan.config),
      stats_(stats),
      time_(time),
      observer_(observer),
      page_bytes_(plan.layout.page_bytes()),
      kv_(plan.geometry, plan.num_pages, plan.config.prefix_cache, model.fingerprint()),
      cost_(plan.config.step_target_ms),
      scheduler_(limits_of(plan.config, model), kv_, cost_),
      runner_(model, plan),
      sampler_(static_cast<int32_t>(model.config().vocab_size), model.config().eos_token_ids,
               model.backend().threads()),
      seed_key_(random_key()) {
  if (!config_.device_sampling || !runner_.supports_drawing()) return;
  append_draw_ = [this](const Sequence& sequence, DrawBatch& batch) {
    // The first token of every choice comes from one row: the host draws them all.
    const bool forks = sequence.request->request.n > 1 && !sequence.request->prompt_done;
    return !forks && sampler_.one().plan_draw(*sequence.sampler, batch);
  };
}

void EngineCore::add(Request request, std::shared_ptr<EventSink> sink, Clock::time_point submitted_at) {
  try {
    insert(request, sink, submitted_at);
  } catch (const std::exception& e) {
    reject(request, *sink, reason_of(e));
  }
}

// Changes nothing if it throws.
void EngineCore::insert(Request& request, const std::shared_ptr<EventSink>& sink, Clock::time_point submitted_at) {
  auto owned = std::make_unique<ActiveRequest>();
  ActiveRequest& r = *owned;
  r.request = std::move(request);
  try {
    r.sink = sink;
    r.submitted_at = submitted_at;
    if (r.request.timeout) r.deadline = submitted_at + *r.request.timeout;
    const uint64_t arrival = next_arrival_++;
    const auto random =
        philox4x32({static_cast<uint32_t>(arrival), static_cast<uint32_t>(arrival >> 32), 0, 1}, seed_key_);
    r.seed = r.request.sampling.seed.value_or((uint64_t{random[0]} << 32) | random[1]);
    r.choice_finished.assign(static_cast<size_t>(r.request.n), false);
    r.num_unfinished = r.request.n;

    Sequence& c = add_choice(r);
    c.arrival = arrival;
    c.priority = r.request.priority;
    c.tokens = r.request.prompt;
    c.num_prompt = static_cast<int64_t>(c.tokens.size());
    c.max_len = std::min(c.num_prompt + r.request.sampling.max_tokens, config_.max_model_len);
    c.tokens.reserve(static_cast<size_t>(std::min(c.max_len, c.num_prompt + kReservedTokens)));
    c.blocks.salt = r.request.cache_salt;
    if (r.request.sampling.num_prompt_logprobs >= 0 && c.num_prompt > 1) c.logits_from = 0;
    const size_t sequences = num_sequences_ + static_cast<size_t>(r.request.n);
    scheduler_.reserve(sequences);
    if (touched_.capacity() <= requests_.size()) touched_.reserve(2 * requests_.size() + 8);
    const auto place = requests_.try_emplace(r.request.id).first;
    // No memory is needed from here on.
    place->second = std::move(owned);
    num_sequences_ = sequences;
    ++num_queued_;
    num_queued_tokens_ += c.num_prompt;
    scheduler_.add(c);
  } catch (...) {
    request = std::move(r.request);
    throw;
  }
}

void EngineCore::reject(const Request& request, EventSink& sink, const std::string& why) {
  log::error("request {}: {}", request.id, why);
  observer_.on_done(request.id);
  insist([&] {
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

template <typename F>
void EngineCore::insist(F work) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      reserve_.reset();
      if (attempt > 0) std::this_thread::sleep_for(kAttemptPause);  // others may give some back
    }
  }
  log::error("there is no memory left to say so to a client");
}

Sequence& EngineCore::add_choice(ActiveRequest& r) {
  const int32_t index = static_cast<int32_t>(r.choices.size());
  auto owned = std::make_unique<Sequence>();
  owned->request = &r;
  owned->choice = index;
  owned->sampler.emplace(r.request.sampling, r.seed, index, static_cast<int32_t>(model_.config().vocab_size),
                         r.request.prompt, r.request.constraint ? r.request.constraint->clone_initial() : nullptr);
  r.choices.push_back(std::move(owned));
  return *r.choices.back();
}

void EngineCore::cancel(const std::string& id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  insist([&] { finish_request(*it->second, FinishReason::kCancelled, "cancelled"); });
  deliver();
}

void EngineCore::cancel_all() {
  for (auto& [id, request] : requests_) {
    insist([&] { finish_request(*request, FinishReason::kCancelled, "cancelled"); });
  }
  deliver();
  for (Probe& p : std::exchange(probes_, {})) p.done(Error("cancelled"));
}

void EngineCore::stop(const std::string& id, int32_t choice) {
  const auto it = requests_.find(id);
  // Before the prompt is read there is no text that could have ended.
  if (it == requests_.end() || !it->second->prompt_done || choice < 0 || choice >= it->second->request.n) return;
  if (!it->second->choice_finished[static_cast<size_t>(choice)]) {
    insist([&] { finish_choice(*it->second, choice, FinishReason::kStop, -1, ""); });
  }
  deliver();
}

void EngineCore::pause(const std::string& id) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->paused) return;
  it->second->paused = true;
  stats_.pauses.fetch_add(1, std::memory_order_relaxed);
  for (const auto& c : it->second->choices) scheduler_.pause(*c);
}

void EngineCore::resume(const std::string& id) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || !it->second->paused) return;
  it->second->paused = false;
  for (const auto& c : it->second->choices) {
    scheduler_.resume(*c);
    c->last_token_at = time_.now();  // the reader's time is not ours
  }
}

Clock::time_point EngineCore::queue_deadline(const ActiveRequest& r) const {
  if (config_.queue_timeout_s <= 0 || !r.queued()) return Clock::time_point::max();
  return r.submitted_at +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(config_.queue_timeout_s));
}

Clock::time_point EngineCore::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const auto& [id, request] : requests_) {
    next = std::min({next, request->deadline.value_or(next), queue_deadline(*request)});
  }
  return next;
}

void EngineCore::expire(Clock::time_point now) {
  for (auto& [id, request] : requests_) {
    ActiveRequest& r = *request;
    const double waited_s = seconds(now - r.submitted_at);
    if (r.deadline && now >= *r.deadline) {
      insist([&] {
        finish_request(r, FinishReason::kTimeout,
                       fmt::format("the request was not done within its {:.1f} s", waited_s));
      });
    } else if (now >= queue_deadline(r)) {
      insist([&] {
        finish_request(r, FinishReason::kTimeout, fmt::format("the request waited {:.1f} s in the queue", waited_s));
      });
    }
  }
  deliver();
}

void EngineCore::step() {
  if (!reserve_) reserve_.reset(new (std::nothrow) std::byte[kReserveBytes]);
  const bool scheduled = scheduler_.has_work();
  if (scheduled) step_sequences();
  advance_probes(!scheduled);
}

const SchedulePlan* EngineCore::make_plan(Clock::time_point now) {
  std::string error;
  try {
    scheduler_.schedule(now);
  } catch (const std::exception& e) {
    error = reason_of(e);
  }
  note_admitted(scheduler_.plan(), now);
  if (error.empty()) return &scheduler_.plan();
  shed_youngest(error);
  return nullptr;
}

void EngineCore::shed_youngest(const std::string& why) {
  ActiveRequest* youngest = nullptr;
  for (const auto& [id, r] : requests_) {
    if (!youngest || r->choices.front()->arrival > youngest->choices.front()->arrival) youngest = r.get();
  }
  if (!youngest) return;
  log::error("request {} is given up: {}", youngest->request.id, why);
  insist([&] { finish_request(*youngest, FinishReason::kError, why); });
  deliver();
}

void EngineCore::step_sequences() {
  const auto start = time_.now();
  const SchedulePlan* made = make_plan(start);
  if (!made) return;
  const SchedulePlan& plan = *made;
  try {
    runner_.copy_pages(kv_.pending_copies());
    if (plan.empty()) return;  // all that is left to run was preempted just now
    runner_.run(plan, append_draw_);
    sample_next(plan);
    compute_done(plan, start);
  } catch (const DeviceLost& e) {
    return lose_device(e.what());
  } catch (const std::exception& e) {
    fail_step(plan, reason_of(e));
  }
  deliver();
}

// Everything that follows from what a step computed, but for the delivery of its events.
void EngineCore::compute_done(const SchedulePlan& plan, Clock::time_point start) {
  const auto computed = time_.now();
  for (size_t i = 0; i < plan.rows.size(); ++i) advance(i, plan.rows[i], computed);
  const double step_ms = milliseconds(time_.now() - start);
  cost_.observe(plan.load, step_ms);
  step_ms_ = step_ms_ == 0 ? step_ms : 0.8 * step_ms_ + 0.2 * step_ms;
  if (plan.rows.front().num_rows == 1)
    decode_step_ms_ = decode_step_ms_ == 0 ? step_ms : 0.8 * decode_step_ms_ + 0.2 * step_ms;
  for (const ScheduledRows& rows : plan.rows) {  // now that the predictions know of this step
    Sequence& c = *rows.sequence;
    if (!c.request->prompt_done && !c.request->done()) send_progress(c, computed);
  }
  stats_.steps.fetch_add(1, std::memory_order_relaxed);
  stats_.step_s.observe(1e-3 * step_ms);
  stats_.pages_evicted.store(kv_.num_evicted(), std::memory_order_relaxed);
}

void EngineCore::note_admitted(const SchedulePlan& plan, Clock::time_point now) {
  stats_.preemptions.fetch_add(plan.preempted.size(), std::memory_order_relaxed);
  for (Sequence* s : plan.admitted) {
    ActiveRequest& r = *s->request;
    if (!r.queued()) continue;  // back from a preemption
    r.started_at = now;
    r.cached_tokens = s->num_computed;
    --num_queued_;
    num_queued_tokens_ -= s->num_prompt;
    stats_.queue_s.observe(seconds(now - r.submitted_at));
    if (config_.prefix_cache) {
      stats_.prefix_queries.fetch_add(static_cast<uint64_t>(s->num_prompt), std::memory_order_relaxed);
      stats_.prefix_hits.fetch_add(static_cast<uint64_t>(s->num_computed), std::memory_order_relaxed);
    }
  }
}

void EngineCore::sample_next(const SchedulePlan& plan) {
  samples_.assign(plan.rows.size(), std::nullopt);
  host_rows_.clear();
  const auto samples = [](const ScheduledRows& rows) {
    const Sequence& s = *rows.sequence;
    return s.num_computed + rows.num_rows == s.num_known() && s.num_known() < s.max_len;
  };
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (!samples(plan.rows[i])) continue;
    if (const std::optional<int32_t> drawn = runner_.drawn(i)) {
      samples_[i] = Sampler::from_draw(*drawn);
      continue;
    }
    Sequence& c = *plan.rows[i].sequence;
    samples_[i].emplace();
    host_rows_.push_back({runner_.logits(i, c.num_known() - 1), &*c.sampler, {}});
  }
  sampler_.sample(host_rows_);
  for (size_t i = 0, row = 0; i < plan.rows.size(); ++i) {
    if (samples_[i] && !runner_.drawn(i)) samples_[i] = std::move(host_rows_[row++].sample);
  }
}

void EngineCore::advance(size_t entry, const ScheduledRows& rows, Clock::time_point now) {
  Sequence& c = *rows.sequence;
  ActiveRequest& r = *c.request;
  if (r.done()) return;  // another choice of this request failed in this step
  c.num_computed += rows.num_rows;
  if (c.wants_prompt_logits() && !send_prompt_logprobs(entry, c)) {
    return fail_request(r, "the model produced NaN logits");
  }
  // Before publishing: pages of a failed request must not reach the cache.
  std::optional<Sample>& sample = samples_[entry];
  const bool caught_up = c.num_uncomputed() == 0;
  if (sample) {
    if (const auto error = sample_error(*sample, c); !error.empty()) return fail_request(r, std::string(error));
  }
  const int64_t freed = kv_.commit(c.blocks, c.tokens, c.num_computed);
  stats_.reach_freed_bytes.fetch_add(static_cast<uint64_t>(freed) * page_bytes_, std::memory_order_relaxed);
  if (!caught_up) return;
  if (!r.prompt_done) send_progress(c, now);

  const bool first = !r.prompt_done;
  if (first) {
    r.prompt_done = true;
    stats_.prompt_tokens.fetch_add(static_cast<uint64_t>(c.num_prompt), std::memory_order_relaxed);
    stats_.prefill_s.observe(seconds(now - *r.started_at));
    if (!sample) return finish_request(r, FinishReason::kLength, "");
    fork_choices(c);
  }
  take_token(c, std::move(*sample), now);
  for (size_t i = 1; first && i < r.choices.size(); ++i) {
    Sample other = sampler_.one().sample(runner_.logits(entry, c.num_computed - 1), *r.choices[i]->sampler);
    if (const auto error = sample_error(other, *r.choices[i]); !error.empty()) {
      return fail_request(r, std::string(error));
    }
    take_token(*r.choices[i], std::move(other), now);
  }
}

std::string_view EngineCore::sample_error(const Sample& sample, const Sequence& sequence) {
  switch (sample.status) {
    case SampleStatus::kOk: return {};
    case SampleStatus::kBadLogits: return "the model produced NaN logits";
    case SampleStatus::kNoToken: break;
  }
  const std::string_view failure = sequence.sampler->constraint_failure();
  return failure.empty() ? "the constraint allows no token" : failure;
}

bool EngineCore::send_prompt_logprobs(size_t entry, Sequence& c) {
  const ModelRunner::LogitRows& rows = runner_.logit_rows(entry);
  const int64_t end = std::min(c.num_computed, c.num_prompt - 1);
  PromptLogprobsEvent event;
  event.first = c.logits_from + 1;
  for (int64_t position = std::max(c.logits_from, rows.first_pos); position < end; ++position) {
    const int32_t next = c.tokens[static_cast<size_t>(position + 1)];
    auto logprobs =
        sampler_.one().logprobs(runner_.logits(entry, position), next, c.request->request.sampling.num_prompt_logprobs);
    if (!logprobs) return false;
    event.logprobs.push_back(std::move(*logprobs));
  }
  if (end > c.logits_from) c.logits_from = end;
  if (c.logits_from >= c.num_prompt - 1) c.logits_from = INT64_MAX;
  if (event.logprobs.empty()) return true;
  touch(*c.request);
  c.request->events.emplace_back(std::move(event));
  return true;
}

void EngineCore::send_progress(Sequence& c, Clock::time_point now) {
  ActiveRequest& r = *c.request;
  const int64_t processed = std::min(c.num_computed, c.num_prompt);
  if (processed <= r.progress_sent) return;  // recomputing after a preemption
  r.progress_sent = processed;
  touch(r);
  r.events.emplace_back(ProgressEvent{c.num_prompt, r.cached_tokens, processed, milliseconds(now - *r.started_at),
                                      processed < c.num_prompt ? eta_ms(r, 0) : 0});
}

void EngineCore::fork_choices(Sequence& first) {
  ActiveRequest& r = *first.request;
  for (int32_t i = 1; i < r.request.n; ++i) {
    Sequence& c = add_choice(r);
    c.arrival = first.arrival;
    c.priority = first.priority;
    c.promoted = first.promoted;
    c.tokens = first.tokens;
    c.num_prompt = first.num_prompt;
    c.max_len = first.max_len;
    c.num_computed = first.num_computed;
    kv_.fork(first.blocks, c.blocks);
    scheduler_.add_running(c);
  }
}

void EngineCore::take_token(Sequence& c, Sample sample, Clock::time_point now) {
  ActiveRequest& r = *c.request;
  const SamplingParams& params = r.request.sampling;
  c.sampler->accept(sample.token);
  c.tokens.push_back(sample.token);
  touch(r);
  r.events.emplace_back(TokenEvent{c.choice, sample.token, std::move(sample.logprobs)});
  stats_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
  if (!r.first_token_at) {
    r.first_token_at = now;
    stats_.ttft_s.observe(seconds(now - r.submitted_at));
  }
  if (c.num_generated() > 1) stats_.inter_token_s.observe(seconds(now - c.last_token_at));
  c.last_token_at = now;

  const bool stop_id = std::ranges::find(params.stop_token_ids, sample.token) != params.stop_token_ids.end();
  if (stop_id || (!params.ignore_eos && is_eos(sample.token))) {
    finish_choice(r, c.choice, FinishReason::kStop, sample.token, "");
  } else if (c.sampler->constraint_finished()) {
    finish_choice(r, c.choice, FinishReason::kStop, -1, "");
  } else if (c.num_known() >= c.max_len) {
    finish_choice(r, c.choice, FinishReason::kLength, -1, "");
  }
}

bool EngineCore::is_eos(int32_t token) const {
  const auto& ids = model_.config().eos_token_ids;
  return std::ranges::find(ids, token) != ids.end();
}

void EngineCore::finish_choice(ActiveRequest& r, int32_t index, FinishReason reason, int32_t stop_token,
                               std::string message) {
  const auto now = time_.now();
  r.events.reserve(r.events.size() + static_cast<size_t>(r.num_unfinished));  // the rest needs no memory
  FinishEvent event;
  event.choice = index;
  event.reason = reason;
  event.stop_token = stop_token;
  event.prompt_tokens = static_cast<int64_t>(r.request.prompt.size());
  event.cached_tokens = r.cached_tokens;
  event.message = std::move(message);
  if (index < static_cast<int32_t>(r.choices.size())) {
    Sequence& c = *r.choices[static_cast<size_t>(index)];
    scheduler_.remove(c);
    event.generated_tokens = c.num_generated();
  }
  if (r.first_token_at) {
    stats_.decode_s.observe(seconds(now - *r.first_token_at));
    stats_.generation_len.observe(static_cast<double>(event.generated_tokens));
  }
  stats_.finished[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  touch(r);
  r.events.emplace_back(std::move(event));
  r.choice_finished[static_cast<size_t>(index)] = true;
  if (--r.num_unfinished > 0) return;
  stats_.e2e_s.observe(seconds(now - r.submitted_at));
  stats_.prompt_len.observe(static_cast<double>(r.request.prompt.size()));
  if (r.queued()) {
    --num_queued_;
    num_queued_tokens_ -= static_cast<int64_t>(r.request.prompt.size());
  }
}

void EngineCore::finish_request(ActiveRequest& r, FinishReason reason, const std::string& message) {
  for (int32_t i = 0; i < r.request.n; ++i) {
    if (!r.choice_finished[static_cast<size_t>(i)]) finish_choice(r, i, reason, -1, message);
  }
}

void EngineCore::fail_request(ActiveRequest& r, const std::string& message) {
  log::warn("request {}: {}", r.request.id, message);
  const int64_t own_blocks_from = r.cached_tokens / kv_.geometry().page_size();
  for (const auto& c : r.choices) insist([&] { kv_.quarantine(c->blocks, c->tokens, own_blocks_from); });
  insist([&] { finish_request(r, FinishReason::kError, message); });
}

// Nothing of the step is published yet or all of it is right: what these requests have in the cache may stay.
void EngineCore::fail_step(const SchedulePlan& plan, const std::string& what) {
  log::error("a step failed: {}", what);
  for (const ScheduledRows& rows : plan.rows) {
    ActiveRequest& r = *rows.sequence->request;
    insist([&] { finish_request(r, FinishReason::kError, "the step failed: " + what); });
  }
}

void EngineCore::lose_device(const std::string& what) {
  if (device_lost_.empty()) log::error("{}", what);
  device_lost_ = what;
  fail_all();
}

void EngineCore::fail_all() {
  for (auto& [id, request] : requests_) insist([&] { finish_request(*request, FinishReason::kError, device_lost_); });
  deliver();
}

void EngineCore::touch(ActiveRequest& r) {
  if (r.touched) return;
  r.touched = true;
  touched_.push_back(&r);
}

// False: nobody is listening, or whoever does has no memory to do so.
bool EngineCore::hand_over(ActiveRequest& r) {
  try {
    return r.sink->on_events(std::move(r.events));
  } catch (const std::exception& e) {
    log::error("request {}: its events could not be delivered: {}", r.request.id, e.what());
    return false;
  }
}

void EngineCore::deliver() {
  if (!touched_.empty()) observer_.before_events(*this);
  for (size_t i = 0; i < touched_.size(); ++i) {
    ActiveRequest& r = *touched_[i];
    if (r.done()) observer_.on_done(r.request.id);
    const bool listening = r.events.empty() || hand_over(r);
    r.events.clear();  // a sink that took nothing leaves its room for the next step
    if (!listening && !r.done()) {
      insist([&] { finish_request(r, FinishReason::kCancelled, "nobody is listening"); });
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

void EngineCore::add_probe(std::unique_ptr<AttentionProbe> probe, std::stop_token stop, ProbeDone done) {
  probes_.push_back({std::move(probe), std::move(stop), std::move(done)});
}

void EngineCore::advance_probes(bool alone) {
  std::erase_if(probes_, [](Probe& p) {
    if (p.stop.stop_requested()) p.done(Error("cancelled"));
    return p.stop.stop_requested();
  });
  if (probes_.empty()) return;
  Probe& p = probes_.front();
  Result<std::vector<float>> result = Error("");
  try {
    const double budget_ms = alone ? prefill_budget_ms(scheduler_.limits(), cost_, {}) : config_.step_target_ms / 4;
    int64_t rows = std::max<int64_t>(1, cost_.rows_within(p.probe->num_computed(), budget_ms));
    if (!alone) rows = std::min(rows, Scheduler::kQuantumRows);
    p.probe->advance(rows);
    if (!p.probe->done()) return;
    result = p.probe->result();
  } catch (const DeviceLost& e) {
    lose_device(e.what());
    result = Error("{}", e.what());
  } catch (const std::exception& e) {
    result = Error("{}", e.what());
  }
  const ProbeDone done = std::move(p.done);
  probes_.pop_front();
  done(std::move(result));
}

}  // namespace bam
