#pragma once

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace bam {

// What the engine has said and nobody has read yet. The engine thread pushes, the connection's thread takes.
class EventInbox {
 public:
  struct Entry {
    size_t prompt;
    Event event;
  };
  enum class Pushed : uint8_t {
    kClosed,   // nobody listens any more
    kWake,     // the reader must be told: it took everything before this
    kWaiting,  // it has been told already
  };

  Pushed push(size_t prompt, std::vector<Event>&& events) {
    const std::lock_guard lock(mutex_);
    if (closed_) return Pushed::kClosed;
    const bool wake = entries_.empty() && !events.empty();
    for (Event& event : events) {
      if (std::holds_alternative<TokenEvent>(event)) {
        last_token_ = Clock::now();
        if (!first_token_) first_token_ = last_token_;
      }
      entries_.push_back({prompt, std::move(event)});
    }
    return wake ? Pushed::kWake : Pushed::kWaiting;
  }

  std::vector<Entry> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(entries_, {});
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    entries_ = {};
  }

  // When the engine produced its first and its last token so far.
  std::optional<std::pair<Clock::time_point, Clock::time_point>> token_times() const {
    const std::lock_guard lock(mutex_);
    if (!first_token_) return std::nullopt;
    return std::pair(*first_token_, *last_token_);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  bool closed_ = false;
  std::optional<Clock::time_point> first_token_, last_token_;
};

}  // namespace bam
