// Where the engine reads the time. One source serves scheduler, deadlines, health and waiting, so that a test can drive
// all of them by hand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace bam {

using Clock = std::chrono::steady_clock;

inline double to_seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }
inline double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}
// By the machine's clock.
inline double ms_since(Clock::time_point start) { return ms_between(start, Clock::now()); }

class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual Clock::time_point now() const = 0;
  // Waits until `wake` is notified or `until` has come (max(): never). May return for no reason.
  virtual void wait(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Clock::time_point until) = 0;
};

// The machine's own clock.
TimeSource& steady_time();

}  // namespace bam
