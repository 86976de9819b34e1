// What the masks of all constrained sequences may cost in one step together. A constraint bounds what it costs itself;
// dozens of expensive ones beside each other would still hold up everybody else. Who comes when the budget is spent is
// put off to a later step: its token comes later and is the same one.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/token_constraint.h"

namespace bam {

// Used by all threads that sample, but for begin_step().
class MaskBudget {
 public:
  // per_step: in units of TokenConstraint::work(), > 0.
  MaskBudget(uint64_t per_step, int64_t max_sequences)
      : per_step_(per_step), cheap_(per_step / (2 * static_cast<uint64_t>(max_sequences))) {}

  void begin_step() { spent_.store(0, std::memory_order_relaxed); }
  // A mask may be begun: what is spent beyond the budget is at most one mask per thread. One that is known is free.
  bool admits(const TokenConstraint& constraint) const {
    return spent_.load(std::memory_order_relaxed) < per_step_ || constraint.mask_known();
  }
  void charge(uint64_t work) { spent_.fetch_add(work, std::memory_order_relaxed); }

  // A sequence whose last token took so little goes before the others: a full batch of such leaves half of the budget.
  uint64_t cheap() const { return cheap_; }

 private:
  uint64_t per_step_, cheap_;
  std::atomic<uint64_t> spent_{0};
};

}  // namespace bam
