// The live requests: how they begin and end, and how their events reach their sinks. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/active_request.h"
#include "engine/memory_reserve.h"
#include "engine/scheduler.h"
#include "engine/stats.h"

namespace bam {

class RequestBook {
 public:
  // Hears what is about to go out, before any sink does.
  class Observer {
   public:
    virtual ~Observer() = default;
    // The books (num_queued() and so on) are those that the coming events speak of.
    virtual void before_events() = 0;
    // A request's last events follow: its id may be used again as soon as they are out.
    virtual void on_done(const std::string& id) = 0;
  };

  // All of them outlive the book.
  RequestBook(Scheduler& scheduler, MemoryReserve& reserve, EngineStats& stats, TimeSource& time, Observer& observer);

  // Takes over a request, whose first choice joins the scheduler's queue. Changes nothing if it throws.
  void insert(std::unique_ptr<ActiveRequest>& request);
  // Tells the sink of a request that there was no memory to insert.
  void reject(const Request& request, EventSink& sink, const std::string& why);
  // It has been scheduled for the first time.
  void leave_queue(ActiveRequest& request, Clock::time_point now);

  ActiveRequest* find(const std::string& id);
  ActiveRequest* youngest();  // null: there is none
  const std::unordered_map<std::string, std::unique_ptr<ActiveRequest>>& live() const { return requests_; }
  int64_t num_queued() const { return num_queued_; }  // requests never scheduled
  int64_t num_queued_tokens() const { return num_queued_tokens_; }

  // An event of the current step.
  void say(ActiveRequest& request, Event event);
  // Requests stay in the book until their last events are delivered.
  void finish_choice(ActiveRequest& request, int32_t choice, FinishReason reason, int32_t stop_token,
                     std::string_view message);
  void finish_request(ActiveRequest& request, FinishReason reason, std::string_view message);
  // The same, even without memory.
  void end_request(ActiveRequest& request, FinishReason reason, std::string_view message) {
    reserve_.insist([&] { finish_request(request, reason, message); });
  }
  void end_all(FinishReason reason, std::string_view message);
  // Hands all events to their sinks and closes the book on requests that are done.
  void deliver();

 private:
  void touch(ActiveRequest& request);
  bool hand_over(ActiveRequest& request);

  Scheduler& scheduler_;
  MemoryReserve& reserve_;
  EngineStats& stats_;
  TimeSource& time_;
  Observer& observer_;
  std::unordered_map<std::string, std::unique_ptr<ActiveRequest>> requests_;
  std::vector<ActiveRequest*> touched_;  // have events to deliver or are done
  int64_t num_queued_ = 0, num_queued_tokens_ = 0;
  size_t num_sequences_ = 0;  // choices of all requests, forked or not
};

}  // namespace bam
