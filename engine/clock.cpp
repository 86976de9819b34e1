#include "engine/clock.h"

namespace bam {

namespace {

class SteadyTime final : public TimeSource {
 public:
  Clock::time_point now() const override { return Clock::now(); }
  void wait(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Clock::time_point until) override {
    // wait_until(max()) would overflow where the clock is converted.
    if (until == Clock::time_point::max()) {
      wake.wait(lock);
    } else {
      wake.wait_until(lock, until);
    }
  }
};

}  // namespace

TimeSource& steady_time() {
  static SteadyTime time;
  return time;
}

}  // namespace bam
