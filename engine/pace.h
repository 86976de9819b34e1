#pragma once

#include <algorithm>
#include <cmath>

namespace bam {

// Real time by what the cost model said, over the last seconds with work.
class Pace {
 public:
  void note(double real_ms, double predicted_ms) {
    const double kept = std::exp(-real_ms / kWindowMs);
    real_ms_ = kept * real_ms_ + real_ms;
    predicted_ms_ = kept * predicted_ms_ + predicted_ms;
  }
  double ratio() const { return std::clamp(real_ms_ / predicted_ms_, 0.1, 100.0); }

 private:
  static constexpr double kWindowMs = 5000, kPriorMs = 100;
  double real_ms_ = kPriorMs, predicted_ms_ = kPriorMs;
};

}  // namespace bam
