#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace bam {

// Carries a request's events from the engine thread to the thread that waits for them.
class QueueSink : public EventSink {
 public:
  bool on_events(std::vector<Event>&& events) override {
    {
      const std::lock_guard lock(mutex_);
      for (Event& event : events) events_.push_back(std::move(event));
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

 private:
  Event take() {
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
};

}  // namespace bam
