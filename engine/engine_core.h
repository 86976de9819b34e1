// The engine without its thread: requests in, one step at a time, events out. Everything here runs on one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "engine/active_request.h"
#include "engine/batch_sampler.h"
#include "engine/capacity.h"
#include "engine/cost_model.h"
#include "engine/model_runner.h"
#include "engine/queue_forecast.h"
#include "engine/scheduler.h"
#include "engine/stats.h"
#include "models/attention_probe.h"

namespace bam {

// What other threads need to predict waiting times; a copy is published with every snapshot.
struct LoadSummary {
  QueueForecast queue;
  double prefill_ms = 0;     // predicted work of all prompts not read yet
  double prefill_share = 1;  // part of a step's time that prompts get now
  int64_t num_prefills = 0;

  // Predicted milliseconds until a new prompt would have been read.
  double predict_ttft_ms(int64_t prompt_tokens) const;
};

class EngineCore {
 public:
  // Hears what is about to go out, before any sink does.
  class Observer {
   public:
    virtual ~Observer() = default;
    // The books (num_queued() and so on) are those that the coming events speak of.
    virtual void before_events(const EngineCore& core) = 0;
    // A request's last events follow: its id may be used again as soon as they are out.
    virtual void on_done(const std::string& id) = 0;
  };

  // model, stats, time and observer outlive the core.
  EngineCore(BamModel& model, const KvPlan& plan, EngineStats& stats, TimeSource& time, Observer& observer);

  // The request has passed all admission checks and its id is new. If there is no memory for it, its sink hears so.
  void add(Request request, std::shared_ptr<EventSink> sink, Clock::time_point submitted_at);
  void cancel(const std::string& id);
  void cancel_all();
  void stop(const std::string& id, int32_t choice);
  void pause(const std::string& id);
  void resume(const std::string& id);
  // Ends requests whose deadline or queue timeout has passed.
  void expire(Clock::time_point now);
  // One step of all sequences, including delivery of its events.
  void step();

  // What the backend said when its device was lost, or empty. Nothing can be computed any more: fail_all() ends what is
  // there.
  const std::string& device_lost() const { return device_lost_; }
  void lose_device(const std::string& what);
  void fail_all();

  // A step would get somewhere.
  bool has_work() const { return scheduler_.has_work() || !probes_.empty(); }
  // When expire() has something to do next; max(): never.
  Clock::time_point next_deadline() const;
  int64_t num_queued() const { return num_queued_; }  // requests never scheduled
  int64_t num_queued_tokens() const { return num_queued_tokens_; }
  EngineSnapshot snapshot(Clock::time_point now) const;
  LoadSummary load(Clock::time_point now) const;
  double expected_step_ms() const { return step_ms_; }

  // Computed in pieces beside the steps; `done` is told on the engine thread.
  using ProbeDone = std::function<void(Result<std::vector<float>>)>;
  void add_probe(std::unique_ptr<AttentionProbe> probe, std::stop_token stop, ProbeDone done);

  std::string check_integrity() const { return kv_.check_integrity(); }
  const KvCache& kv() const { return kv_; }
  KvCache& kv() { return kv_; }
  const KvCacheView& kv_view() const { return runner_.kv(); }

 private:
  void step_sequences();
  void insert(Request& request, const std::shared_ptr<EventSink>& sink, Clock::time_point submitted_at);
  void reject(const Request& request, EventSink& sink, const std::string& why);
  // The next plan, or null if there was no memory to make one: then the youngest request has been ended.
  const SchedulePlan* make_plan(Clock::time_point now);
  void shed_youngest(const std::string& why);
  // For what must be done even without memory: gives up the reserve and tries again. `work` changes nothing if it
  // throws.
  template <typename F>
  void insist(F work);
  Sequence& add_choice(ActiveRequest& request);
  void touch(ActiveRequest& request);
  void note_admitted(const SchedulePlan& plan, Clock::time_point now);
  // Draws the next tokens of all sequences that have caught up: samples_.
  void sample_next(const SchedulePlan& plan);
  void advance(size_t entry, const ScheduledRows& rows, Clock::time_point now);
  bool send_prompt_logprobs(size_t entry, Sequence& choice);
  void send_progress(Sequence& choice, Clock::time_point now);
  // The other choices of a request start from the pages and the logits that the first one has.
  void fork_choices(Sequence& first);
  // Why a sample of this sequence cannot be used; empty: it can.
  static std::string_view sample_error(const Sample& sample, const Sequence& sequence);
  void take_token(Sequence& choice, Sample sample, Clock::time_point now);

  void finish_choice(ActiveRequest& request, int32_t choice, FinishReason reason, int32_t stop_token,
                     std::string message);
  void finish_request(ActiveRequest& request, FinishReason reason, const std::string& message);
  // Ends a request whose numbers went wrong: nothing it computed stays in the cache.
  void fail_request(ActiveRequest& request, const std::string& message);
  void deliver();
  bool hand_over(ActiveRequest& request);
  void compute_done(const SchedulePlan& plan, Clock::time_point start);
  // A piece of the oldest probe: a quarter of a step, or as much as a step of prompts alone if nothing else runs.
  void advance_probes(bool alone);
  void fail_step(const SchedulePlan& plan, const std::string& what);

  Clock::time_point queue_deadline(const ActiveRequest& request) const;
  double remaining_prefill_ms(const Sequence& sequence) const;
  QueueForecast queue_forecast(Clock::time_point now) const;
  double prefill_share() const;
  double eta_ms(const ActiveRequest& request, double queue_ms) const;
  LiveRequest describe_request(const ActiveRequest& request, Clock::time_point now, double queue_ms) const;
  bool is_eos(int32_t token) const;

  BamModel& model_;
  EngineConfig config_;
  EngineStats& stats_;
  TimeSource& time_;
  Observer& observer_;
  size_t page_bytes_;
  KvCache kv_;
  CostModel cost_;
  Scheduler scheduler_;
  ModelRunner runner_;
  BatchSampler sampler_;
  ModelRunner::AppendDraw append_draw_;  // empty: the host samples
  std::vector<BatchSampler::Row> host_rows_;
  std::vector<std::optional<Sample>> samples_;  // [plan entries] nothing: more rows to compute, or no room for a token
  struct Probe {
    std::unique_ptr<AttentionProbe> probe;
    std::stop_token stop;
    ProbeDone done;
  };
  std::deque<Probe> probes_;
  std::unordered_map<std::string, std::unique_ptr<ActiveRequest>> requests_;
  std::vector<ActiveRequest*> touched_;  // have events to deliver or are done
  int64_t num_queued_ = 0, num_queued_tokens_ = 0;
  size_t num_sequences_ = 0;              // choices of all requests, forked or not
  std::unique_ptr<std::byte[]> reserve_;  // memory with which to end requests when there is no other
  uint64_t next_arrival_ = 1;
  uint64_t seed_key_;  // of requests without a seed
  std::string device_lost_;
  double step_ms_ = 0;         // smoothed
  double decode_step_ms_ = 0;  // smoothed, steps with decode rows
};

}  // namespace bam
