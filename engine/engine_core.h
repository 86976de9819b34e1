// The engine without its thread: requests in, one step at a time, events out. Everything here runs on one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/active_request.h"
#include "engine/attention_looks.h"
#include "engine/capacity.h"
#include "engine/cost_model.h"
#include "engine/deferred_samples.h"
#include "engine/engine_report.h"
#include "engine/memory_reserve.h"
#include "engine/prefix_store.h"
#include "engine/request_book.h"
#include "engine/scheduler.h"
#include "engine/stats.h"
#include "engine/step_runner.h"
#include "engine/step_sampler.h"

namespace bam {

// What a client is told of an exception.
std::string reason_of(const std::exception& e);

class EngineCore {
 public:
  using Observer = RequestBook::Observer;

  // model, stats, time and observer outlive the core.
  EngineCore(BamModel& model, const KvPlan& plan, EngineStats& stats, TimeSource& time, Observer& observer);
  // With steps that somebody else computes, in caches of these sizes.
  EngineCore(BamModel& model, const EngineConfig& config, std::unique_ptr<StepRunner> runner,
             const std::vector<StagedKv::Stage>& stages, EngineStats& stats, TimeSource& time, Observer& observer);

  // The request has passed all admission checks and its id is new. If there is no memory for it, its sink hears so.
  void add(Request request, std::shared_ptr<EventSink> sink, Clock::time_point submitted_at);
  void cancel(const std::string& id);
  void cancel_all();
  void stop(const std::string& id, int32_t choice);
  void pause(const std::string& id);
  void resume(const std::string& id);
  // Asked before long prompts are computed, and told of those that were; null: nobody.
  void use_store(PrefixStore* store);
  // The store has found what it could.
  void release(const std::string& id);
  // Ends requests whose deadline or queue timeout has passed, and their waiting for the store.
  void expire(Clock::time_point now);
  // One step of all sequences, including delivery of its events; with steps on their way at once, the end of one or the
  // beginning of another. False: there was nothing to do but wait, for a moment.
  bool step();

  // What the backend said when its device was lost, or empty. Nothing can be computed any more: fail_all() ends what is
  // there.
  const std::string& device_lost() const { return device_lost_; }
  void lose_device(const std::string& what);
  // A rank is lost, and all pages with it: everybody is computed again, to the same bits, when the group is there again.
  void lose_group(const std::string& what);
  // Looks after the group of ranks, if there is one.
  void watch();
  // False: there is no group to compute with, for the time being.
  bool ready() const { return !forming_; }
  // When watch() should be called next; max(): no need.
  Clock::time_point next_watch(Clock::time_point now) const;
  void fail_all() { book_.end_all(FinishReason::kError, device_lost_); }

  // A step would get somewhere.
  bool has_work() const { return scheduler_.has_work() || !looks_.empty() || !deferred_.empty() || num_in_flight_ > 0; }
  // When expire() has something to do next; max(): never.
  Clock::time_point next_deadline() const;
  int64_t num_queued() const { return book_.num_queued(); }
  int64_t num_queued_tokens() const { return book_.num_queued_tokens(); }
  EnginePicture picture(Clock::time_point now) const;
  LoadSummary load(Clock::time_point now) const { return report_.load(now); }
  double expected_step_ms() const { return step_ms_; }

  std::string check_integrity() const { return kv_.check_integrity(); }
  const StagedKv& kv() const { return kv_; }
  StagedKv& kv() { return kv_; }
  StepRunner& runner() { return *runner_; }

 private:
  // A step between its plan and its result.
  struct Flight {
    std::vector<ScheduledRows> rows;
    std::vector<uint64_t> stays;  // [rows] of the sequences in the cache: whose stay has ended wants no result
    std::vector<const StagedBlocks*> tables;
    StepBatch batch;
    StepLoad load;
    Clock::time_point start;
  };
  // False: nobody could get a row.
  bool issue_step();
  bool finish_step(std::chrono::milliseconds timeout);
  void fill(Flight& flight, const SchedulePlan& plan, Clock::time_point start) const;
  // Null: it was cancelled or preempted while its rows were on their way.
  Sequence* sequence_of(const Flight& flight, size_t entry) const {
    return kv_.is_live(flight.stays[entry]) ? flight.rows[entry].sequence : nullptr;
  }
  void insert(Request& request, const std::shared_ptr<EventSink>& sink, Clock::time_point submitted_at);
  // The next plan, or null if there was no memory to make one: then the youngest request has been ended.
  const SchedulePlan* make_plan(Clock::time_point now);
  void shed_youngest(const std::string& why);
  Sequence& add_choice(ActiveRequest& request);
  void hold(ActiveRequest& request);
  void let_go(ActiveRequest& request);
  // Whether steps guess what follows in this request's texts.
  bool may_draft(const Request& request) const;
  void propose_drafts();
  // Time per token of the sequences that decode.
  void note_decode(const Flight& flight);
  void note_admitted(const SchedulePlan& plan, Clock::time_point now);
  // The next tokens of all sequences that have caught up.
  void sample_next(const Flight& flight, const StepResult& result);
  // Samples those of a batch and what waits from former steps, of which it takes the tokens.
  void sample_rows(const StepBatch& batch, const StepResult& result, std::span<Sequence* const> sequences);
  // Only what waits: no step has come to its end.
  void sample_deferred();
  void take_deferred(Clock::time_point now);
  // The next token of a sequence that has caught up is sampled from this row in a later step.
  void defer(Sequence& choice, std::span<const float> logits, int64_t rejected_drafts);
  void advance(const Flight& flight, const StepResult& result, size_t entry, Clock::time_point now);
  // Both return false when the model produced NaN.
  bool pool_rows(const Flight& flight, const StepResult& result, size_t entry, Sequence& choice);
  bool send_prompt_logprobs(const Flight& flight, const StepResult& result, size_t entry, Sequence& choice);
  // Those of blocks that are in the prefix cache by now.
  void keep_prompt_logprobs(Sequence& choice);
  std::span<const float> logits(const Flight& flight, const StepResult& result, size_t entry, int64_t position) const;
  void send_progress(Sequence& choice, Clock::time_point now);
  // The other choices of a request start from the pages and the logits that the first one has.
  void fork_choices(Sequence& first);
  void take_token(Sequence& choice, TokenEvent event, Clock::time_point now);
  // The newest token of a step, the only one that may end the text.
  void take_last(Sequence& choice, Sample sample, int64_t rejected_drafts, Clock::time_point now);
  // All tokens of a run but the last.
  void take_drafts(Sequence& choice, std::span<Sample> run, int64_t num_drafts, Clock::time_point now);

  // Ends a request whose numbers went wrong: nothing it computed stays in the cache.
  void fail_request(ActiveRequest& request, const std::string& message);
  // Fails the request if this is no token; true: it has.
  bool failed(ActiveRequest& request, const Sample& sample, const SamplerState& state);
  void compute_done(const Flight& flight, const StepResult& result);
  // The prompt of a look has been read: the sequence keeps its pages, as long as nobody needs them, and gets no more rows.
  void begin_look(Sequence& choice, Clock::time_point now);
  // A piece of the oldest look that is still wanted; one whose pages were taken reads its prompt again.
  void advance_looks(bool alone);
  void finish_look(Sequence& choice);
  void fail_step(std::span<const ScheduledRows> rows, const std::string& what);

  bool is_eos(int32_t token) const;

  BamModel& model_;
  EngineConfig config_;
  EngineStats& stats_;
  TimeSource& time_;
  size_t page_bytes_;
  StagedKv kv_;
  CostModel cost_;
  Scheduler scheduler_;
  MemoryReserve reserve_;
  RequestBook book_;
  EngineReport report_;
  std::unique_ptr<StepRunner> runner_;
  std::vector<Flight> flights_;  // ring of depth()
  size_t first_flight_ = 0, num_in_flight_ = 0;
  bool forming_ = false;
  StepSampler sampler_;
  std::vector<Sequence*> alive_;  // [entries] of the step that is finished
  std::vector<int32_t> sampled_;  // tokens of one sequence in it
  DeferredSamples deferred_;
  AttentionLooks looks_;
  PrefixStore* store_ = nullptr;
  uint64_t next_arrival_ = 1;
  uint64_t seed_key_;  // of requests without a seed
  std::string device_lost_;
  double step_ms_ = 0;  // smoothed
};

}  // namespace bam
