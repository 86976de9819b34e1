// Time that stands still until a test moves it.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/clock.h"

namespace bam::testing {

class ManualTime final : public TimeSource {
 public:
  Clock::time_point now() const override {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  void wait(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Clock::time_point until) override {
    {
      const std::lock_guard own(mutex_);
      if (now_ >= until) return;
      sleepers_.push_back({&wake, lock.mutex()});
    }
    wake.wait(lock);
    const std::lock_guard own(mutex_);
    const auto it = std::ranges::find(sleepers_, &wake, &Sleeper::wake);
    sleepers_.erase(it);
  }
  // Whoever sleeps looks at the clock again.
  void advance(Clock::duration by) {
    std::vector<Sleeper> sleepers;
    {
      const std::lock_guard own(mutex_);
      now_ += by;
      sleepers = sleepers_;
    }
    for (const Sleeper& s : sleepers) {
      const std::lock_guard asleep(*s.mutex);  // it either waits already or has not read the clock yet
      s.wake->notify_all();
    }
  }

 private:
  struct Sleeper {
    std::condition_variable* wake;
    std::mutex* mutex;
  };
  mutable std::mutex mutex_;
  std::vector<Sleeper> sleepers_;
  Clock::time_point now_{std::chrono::hours(1)};
};

}  // namespace bam::testing
