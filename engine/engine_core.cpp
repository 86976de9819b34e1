#include "engine/engine_core.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/model_runner.h"
#include "engine/philox.h"
#include "transport/transport.h"

namespace bam {

namespace {

SchedulerLimits limits_of(const EngineConfig& config, const BamModel& model, int depth, size_t stages) {
  return {config.max_num_seqs,
          config.max_batched_tokens,
          model.options().max_logit_rows,
          config.step_target_ms,
          static_cast<int>(stages),
          depth,
          std::chrono::milliseconds(static_cast<int64_t>(1e3 * config.promote_after_s))};
}

// How long the thread waits for a result before it looks at its inbox again.
constexpr auto kStepPatience = std::chrono::milliseconds(2);

// Room for an answer of this length is taken at once, not while it is written.
constexpr int64_t kReservedTokens = 4096;

// Log-probabilities of prompts for who asks again: half a million tokens with one alternative take 8 MiB.
constexpr size_t kScoreBytes = size_t{64} << 20;

uint64_t random_key() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

EngineCore::EngineCore(BamModel& model, const KvPlan& plan, EngineStats& stats, TimeSource& time, Observer& observer)
    : EngineCore(model, plan.config, std::make_unique<ModelRunner>(model, plan), {{plan.geometry, plan.num_pages}},
                 stats, time, observer) {}

EngineCore::EngineCore(BamModel& model, const EngineConfig& config, std::unique_ptr<StepRunner> runner,
                       const std::vector<StagedKv::Stage>& stages, EngineStats& stats, TimeSource& time,
                       Observer& observer)
    : model_(model),
      config_(config),
      stats_(stats),
      time_(time),
      page_bytes_(runner->page_bytes()),
      kv_(stages, config.prefix_cache, model.fingerprint()),
      cost_(config.step_target_ms),
      scheduler_(limits_of(config, model, runner->depth(), stages.size()), kv_, cost_),
      book_(scheduler_, reserve_, stats, time, observer),
      report_(scheduler_, kv_, cost_, stats),
      runner_(std::move(runner)),
      flights_(static_cast<size_t>(runner_->depth())),
      // While steps are under way the backend's threads have work.
      sampler_(model, config.max_num_seqs, config.device_sampling && runner_->supports_drawing(), config.mask_work,
               runner_->depth() == 1 ? model.backend().threads() : nullptr),
      looks_(model),
      seed_key_(random_key()) {
  for (Flight& flight : flights_) {
    const auto sequences = static_cast<size_t>(config_.max_num_seqs);
    flight.rows.reserve(sequences);
    flight.stays.reserve(sequences);
    flight.tables.reserve(sequences);
    flight.batch.reserve(config_.max_batched_tokens, config_.max_num_seqs, model.options().max_logit_rows);
  }
  kv_.set_score_bytes(kScoreBytes);
  alive_.reserve(static_cast<size_t>(config_.max_num_seqs));
  sampled_.reserve(DraftParams::kMaxTokens + 1);
}

void EngineCore::add(Request request, std::shared_ptr<EventSink> sink, Clock::time_point submitted_at) {
  try {
    insert(request, sink, submitted_at);
  } catch (const std::exception& e) {
    book_.reject(request, *sink, reason_of(e));
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
    if (config_.queue_timeout_s > 0) {
      const std::chrono::duration<double> patience(config_.queue_timeout_s);
      r.queue_deadline = submitted_at + std::chrono::duration_cast<Clock::duration>(patience);
    }
    const uint64_t arrival = next_arrival_++;
    const auto random =
        philox4x32({static_cast<uint32_t>(arrival), static_cast<uint32_t>(arrival >> 32), 0, 1}, seed_key_);
    r.seed = r.request.sampling.seed.value_or((uint64_t{random[0]} << 32) | random[1]);
    r.choice_finished.assign(static_cast<size_t>(r.request.n), false);
    r.num_unfinished = r.request.n;

    if (may_draft(r.request)) {
      r.prompt_ngrams.emplace(r.request.draft.ngram, static_cast<int64_t>(r.request.prompt.size()));
      r.events.reserve(static_cast<size_t>(r.request.n * (1 + r.request.draft.tokens)));
    }
    Sequence& c = add_choice(r);
    c.arrival = arrival;
    c.priority = r.request.priority;
    c.tokens = r.request.prompt;
    c.num_prompt = static_cast<int64_t>(c.tokens.size());
    c.max_len = std::min(c.num_prompt + r.request.sampling.max_tokens, config_.max_model_len);
    c.tokens.reserve(static_cast<size_t>(std::min(c.max_len, c.num_prompt + kReservedTokens)));
    c.blocks.salt = r.request.cache_salt;
    const bool all_rows = r.request.sampling.num_prompt_logprobs >= 0 || r.request.pooling == Pooling::kMean;
    if (all_rows && c.num_prompt > 1) c.logits_from = 0;
    c.wants_hidden = r.request.pooling != Pooling::kNone;
    if (c.wants_prompt_logits() && !c.wants_hidden) c.scores.emplace(r.request.sampling.num_prompt_logprobs);
    book_.insert(owned);
    if (store_) hold(r);
  } catch (...) {
    request = std::move(r.request);
    throw;
  }
}

Sequence& EngineCore::add_choice(ActiveRequest& r) {
  const int32_t index = static_cast<int32_t>(r.choices.size());
  auto owned = std::make_unique<Sequence>();
  owned->request = &r;
  owned->choice = index;
  owned->sampler.emplace(r.request.sampling, r.seed, index, static_cast<int32_t>(model_.config().vocab_size),
                         r.request.prompt, r.request.constraint ? r.request.constraint->clone_initial() : nullptr);
  if (r.prompt_ngrams) {
    std::vector<int32_t> ends = r.request.sampling.stop_token_ids;
    const std::vector<int32_t>& eos = model_.config().eos_token_ids;
    if (!r.request.sampling.ignore_eos) ends.insert(ends.end(), eos.begin(), eos.end());
    owned->drafter.emplace(r.request.draft, *r.prompt_ngrams, std::move(ends), r.request.sampling.max_tokens);
  }
  r.choices.push_back(std::move(owned));
  return *r.choices.back();
}

void EngineCore::cancel(const std::string& id) {
  ActiveRequest* r = book_.find(id);
  if (!r) return;
  book_.end_request(*r, FinishReason::kCancelled, "cancelled");
  book_.deliver();
}

void EngineCore::cancel_all() {
  book_.end_all(FinishReason::kCancelled, "cancelled");
  looks_.clear();
  deferred_.clear();
}

void EngineCore::stop(const std::string& id, int32_t choice) {
  ActiveRequest* r = book_.find(id);
  // Before the prompt is read there is no text that could have ended.
  if (!r || !r->prompt_done || choice < 0 || choice >= r->request.n) return;
  if (!r->choice_finished[static_cast<size_t>(choice)]) {
    reserve_.insist([&] { book_.finish_choice(*r, choice, FinishReason::kStop, -1, ""); });
  }
  book_.deliver();
}

void EngineCore::pause(const std::string& id) {
  ActiveRequest* r = book_.find(id);
  if (!r || r->paused) return;
  r->paused = true;
  stats_.pauses.fetch_add(1, std::memory_order_relaxed);
  for (const auto& c : r->choices) scheduler_.pause(*c);
}

void EngineCore::resume(const std::string& id) {
  ActiveRequest* r = book_.find(id);
  if (!r || !r->paused) return;
  r->paused = false;
  if (r->held_until) return;
  for (const auto& c : r->choices) {
    scheduler_.resume(*c);
    c->last_token_at = time_.now();  // the reader's time is not ours
  }
}

Clock::time_point EngineCore::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const auto& [id, r] : book_.live()) {
    next = std::min({next, r->deadline.value_or(next), r->gives_up_at().value_or(next), r->held_until.value_or(next)});
  }
  return next;
}

void EngineCore::expire(Clock::time_point now) {
  for (const auto& [id, request] : book_.live()) {
    ActiveRequest& r = *request;
    const double waited_s = to_seconds(now - r.submitted_at);
    if (r.held_until && now >= *r.held_until) {
      if (store_) store_->gave_up();
      let_go(r);
    }
    if (r.deadline && now >= *r.deadline) {
      reserve_.insist([&] {
        book_.finish_request(r, FinishReason::kTimeout,
                             fmt::format("the request was not done within its {:.1f} s", waited_s));
      });
    } else if (r.gives_up_at() && now >= *r.gives_up_at()) {
      reserve_.insist([&] {
        book_.finish_request(r, FinishReason::kTimeout,
                             fmt::format("the request waited {:.1f} s in the queue", waited_s));
      });
    }
  }
  book_.deliver();
}

bool EngineCore::step() {
  reserve_.refill();
  if (forming_) return false;
  // What has arrived goes out first: whoever hears of it may say something before more rows are issued.
  if (num_in_flight_ > 0 && finish_step(std::chrono::milliseconds(0))) return true;
  const bool scheduled = scheduler_.has_work();
  bool worked = scheduled && num_in_flight_ < flights_.size() && runner_->accepts() && issue_step();
  bool finished = false;
  if (num_in_flight_ == flights_.size() || (num_in_flight_ > 0 && !worked)) {
    finished = finish_step(worked || !deferred_.empty() ? std::chrono::milliseconds(0) : kStepPatience);
  }
  worked = worked || finished;
  if (!finished && !deferred_.empty()) {  // while a step is computed elsewhere, or there is none
    sample_deferred();
    worked = true;
  }
  if (!looks_.empty()) {
    advance_looks(!scheduled);
    worked = true;
  }
  return worked;
}

const SchedulePlan* EngineCore::make_plan(Clock::time_point now) {
  std::string error;
  propose_drafts();
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
  ActiveRequest* youngest = book_.youngest();
  if (!youngest) return;
  log::error("request {} is given up: {}", youngest->request.id, why);
  book_.end_request(*youngest, FinishReason::kError, why);
  book_.deliver();
}

// Everything that follows from what a step computed, but for the delivery of its events.
void EngineCore::compute_done(const Flight& flight, const StepResult& result) {
  const auto computed = time_.now();
  int64_t num_rows = 0;
  for (size_t i = 0; i < flight.rows.size(); ++i) {
    num_rows += flight.rows[i].num_rows;
    advance(flight, result, i, computed);
  }
  const double step_ms = result.slowest_ms > 0 ? result.slowest_ms : ms_between(flight.start, time_.now());
  cost_.observe(flight.load, step_ms);
  step_ms_ = step_ms_ == 0 ? step_ms : 0.8 * step_ms_ + 0.2 * step_ms;
  note_decode(flight);
  for (size_t i = 0; i < flight.rows.size(); ++i) {  // now that the predictions know of this step
    Sequence* c = sequence_of(flight, i);
    if (c && !c->request->prompt_done) send_progress(*c, computed);
  }
  stats_.steps.fetch_add(1, std::memory_order_relaxed);
  stats_.step_s.observe(1e-3 * step_ms);
  stats_.step_tokens.observe(static_cast<double>(num_rows));
  stats_.pages_evicted.store(kv_.num_evicted(), std::memory_order_relaxed);
}

void EngineCore::note_admitted(const SchedulePlan& plan, Clock::time_point now) {
  stats_.preemptions.fetch_add(plan.preempted.size(), std::memory_order_relaxed);
  for (Sequence* s : plan.admitted) {
    ActiveRequest& r = *s->request;
    if (!r.queued()) continue;  // back from a preemption
    book_.leave_queue(r, now);
    r.cached_tokens = s->num_computed;
    if (config_.prefix_cache) {
      stats_.prefix_queries.fetch_add(static_cast<uint64_t>(s->num_prompt), std::memory_order_relaxed);
      stats_.prefix_hits.fetch_add(static_cast<uint64_t>(s->num_computed), std::memory_order_relaxed);
    }
  }
}

std::span<const float> EngineCore::logits(const Flight& flight, const StepResult& result, size_t entry,
                                          int64_t position) const {
  return {result.logits[flight.batch.logit_row(entry, position)], static_cast<size_t>(model_.config().vocab_size)};
}

void EngineCore::sample_next(const Flight& flight, const StepResult& result) {
  alive_.clear();
  for (size_t i = 0; i < flight.rows.size(); ++i) alive_.push_back(sequence_of(flight, i));
  sample_rows(flight.batch, result, alive_);
}

void EngineCore::advance(const Flight& flight, const StepResult& result, size_t entry, Clock::time_point now) {
  Sequence* const alive = sequence_of(flight, entry);
  if (!alive) return;  // or another choice of this request failed in this step
  Sequence& c = *alive;
  ActiveRequest& r = *c.request;
  const int64_t num_drafts = flight.rows[entry].num_drafts;
  c.num_computed += flight.rows[entry].num_rows - num_drafts;
  const bool sane = c.wants_hidden ? pool_rows(flight, result, entry, c)
                                   : !c.scores || send_prompt_logprobs(flight, result, entry, c);
  if (!sane) {
    return fail_request(r, "the model produced NaN logits");
  }
  const std::span<Sample> run = sampler_.run(entry);
  const bool caught_up = c.num_uncomputed() == 0;
  if (!run.empty()) {
    take_drafts(c, run, num_drafts, now);
    // Before publishing: pages of a failed request must not reach the cache.
    if (failed(r, run.back(), *c.sampler)) return;
  }
  if (caught_up && r.request.look) return begin_look(c, now);
  const int64_t freed = kv_.commit(c.blocks, c.tokens, c.num_computed);
  stats_.reach_freed_bytes.fetch_add(static_cast<uint64_t>(freed) * page_bytes_, std::memory_order_relaxed);
  if (c.scores) keep_prompt_logprobs(c);
  if (!caught_up) return;
  if (!r.prompt_done) send_progress(c, now);

  const bool first = !r.prompt_done;
  if (first) {
    r.prompt_done = true;
    stats_.prompt_tokens.fetch_add(static_cast<uint64_t>(c.num_prompt), std::memory_order_relaxed);
    stats_.prefill_s.observe(to_seconds(now - *r.started_at));
    if (store_) store_->computed(r.request);
    if (run.empty()) return book_.finish_request(r, FinishReason::kLength, "");
    fork_choices(c);
  }
  const auto take = [&](Sequence& choice, Sample sample, int64_t rejected) {
    if (sample.status != SampleStatus::kDeferred) return take_last(choice, std::move(sample), rejected, now);
    defer(choice, logits(flight, result, entry, c.num_computed - 1), rejected);
  };
  take(c, std::move(run.back()), num_drafts - static_cast<int64_t>(run.size()) + 1);
  for (size_t i = 1; first && i < r.choices.size(); ++i) {
    Sequence& fork = *r.choices[i];
    Sample other = sampler_.sample_one(logits(flight, result, entry, c.num_computed - 1).data(), *fork.sampler);
    if (failed(r, other, *fork.sampler)) return;
    take(fork, std::move(other), 0);
  }
}

// Rows are added in the order of their positions, whatever steps they come in.
bool EngineCore::pool_rows(const Flight& flight, const StepResult& result, size_t entry, Sequence& c) {
  ActiveRequest& r = *c.request;
  if (r.prompt_done) return true;
  const StepBatch::Entry& rows = flight.batch.entries[entry];
  const int64_t end = std::min(c.num_computed, c.num_prompt);
  const auto hidden = static_cast<size_t>(model_.config().hidden_size);
  r.pooled.resize(hidden);
  for (int64_t i = 0; i < rows.num_logits && rows.first_logit + i < end; ++i) {
    const float* row = result.hidden + (rows.logit_offset + static_cast<size_t>(i)) * hidden;
    for (size_t h = 0; h < hidden; ++h) r.pooled[h] += row[h];
    ++r.pooled_rows;
  }
  if (c.wants_prompt_logits()) c.logits_from = end >= c.num_prompt - 1 ? INT64_MAX : end;
  if (end < c.num_prompt) return true;
  EmbeddingEvent event;
  for (const double sum : r.pooled) {
    if (!std::isfinite(sum)) return false;
    event.values.push_back(static_cast<float>(sum / static_cast<double>(r.pooled_rows)));
  }
  book_.say(r, std::move(event));
  return true;
}

void EngineCore::send_progress(Sequence& c, Clock::time_point now) {
  ActiveRequest& r = *c.request;
  const int64_t processed = std::min(c.num_computed, c.num_prompt);
  if (processed <= r.progress_sent) return;  // recomputing after a preemption
  r.progress_sent = processed;
  book_.say(r, ProgressEvent{c.num_prompt, r.cached_tokens, processed, ms_between(*r.started_at, now),
                             processed < c.num_prompt ? report_.eta_ms(r, 0) : 0});
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
    c.num_computed = c.num_scheduled = first.num_computed;
    kv_.fork(first.blocks, c.blocks);
    scheduler_.add_running(c);
  }
}

void EngineCore::take_token(Sequence& c, TokenEvent event, Clock::time_point now) {
  ActiveRequest& r = *c.request;
  c.tokens.push_back(event.token);
  book_.say(r, std::move(event));
  stats_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
  if (!r.first_token_at) {
    r.first_token_at = now;
    stats_.ttft_s.observe(to_seconds(now - r.submitted_at));
  }
  if (c.num_generated() > 1) stats_.inter_token_s.observe(to_seconds(now - c.last_token_at));
  c.last_token_at = now;
}

void EngineCore::take_last(Sequence& c, Sample sample, int64_t rejected, Clock::time_point now) {
  ActiveRequest& r = *c.request;
  const SamplingParams& params = r.request.sampling;
  const int32_t token = sample.token;
  take_token(c, {c.choice, token, std::move(sample.logprobs), false, static_cast<int32_t>(rejected)}, now);
  const bool stop_id = std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end();
  if (stop_id || (!params.ignore_eos && is_eos(token))) {
    book_.finish_choice(r, c.choice, FinishReason::kStop, token, "");
  } else if (c.sampler->constraint_finished()) {
    book_.finish_choice(r, c.choice, FinishReason::kStop, -1, "");
  } else if (c.num_known() >= c.max_len) {
    book_.finish_choice(r, c.choice, FinishReason::kLength, -1, "");
  }
}

bool EngineCore::is_eos(int32_t token) const {
  const auto& ids = model_.config().eos_token_ids;
  return std::ranges::find(ids, token) != ids.end();
}

void EngineCore::fail_request(ActiveRequest& r, const std::string& message) {
  log::warn("request {}: {}", r.request.id, message);
  const int64_t own_blocks_from = r.cached_tokens / kv_.page_size();
  for (const auto& c : r.choices) reserve_.insist([&] { kv_.quarantine(c->blocks, c->tokens, own_blocks_from); });
  book_.end_request(r, FinishReason::kError, message);
}

bool EngineCore::failed(ActiveRequest& r, const Sample& sample, const SamplerState& state) {
  const std::string_view error = StepSampler::error_of(sample, state);
  if (error.empty()) return false;
  r.dead_end = sample.status == SampleStatus::kNoToken && r.request.constraint;
  fail_request(r, std::string(error));
  return true;
}

// Nothing of the step is published yet or all of it is right: what these requests have in the cache may stay.
void EngineCore::fail_step(std::span<const ScheduledRows> step, const std::string& what) {
  log::error("a step failed: {}", what);
  for (const ScheduledRows& rows : step) {
    ActiveRequest& r = *rows.sequence->request;
    reserve_.insist([&] { book_.finish_request(r, FinishReason::kError, "the step failed: " + what); });
  }
}

EnginePicture EngineCore::picture(Clock::time_point now) const {
  EnginePicture picture = report_.picture(now);
  picture.queued_tokens = book_.num_queued_tokens();
  picture.attention = runner_->counters();
  picture.ready = ready();
  picture.stages = runner_->picture();
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    const BlockPool& pool = kv_.stage(stage).pool();
    StagePicture& own = picture.stages[static_cast<size_t>(stage)];
    own.pages_total = pool.num_total();
    own.pages_free = pool.num_free();
    own.pages_cached = pool.num_cached();
    own.pages_used = pool.num_used();
  }
  return picture;
}

}  // namespace bam
