#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
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
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
};

}  // namespace bam
