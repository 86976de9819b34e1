#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/clock.h"
#include "engine/request.h"

namespace bam {

// Carries a request's events from the engine thread to the thread that waits for them.
class QueueSink : public EventSink {
 public:
  bool on_events(std::vector<Event>&& events) override {
    {
      const std::lock_guard lock(mutex_);
      const auto now = Clock::now();
      for (Event& event : events) events_.emplace_back(std::move(event), now);
    }
    ready_.notify_one();
    return true;
  }
  Event next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !events_.empty(); });
    return take();
  }
  // Nothing: the time passed without an event.
  std::optional<Event> next_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, time, [this] { return !events_.empty(); })) return std::nullopt;
    return take();
  }

  // When the event that was taken last came from the engine: whoever waits may have been late. For the thread that takes.
  Clock::time_point arrived() const { return arrived_; }

 private:
  Event take() {
    Event event = std::move(events_.front().first);
    arrived_ = events_.front().second;
    events_.pop_front();
    return event;
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::pair<Event, Clock::time_point>> events_;
  Clock::time_point arrived_;
};

}  // namespace bam
