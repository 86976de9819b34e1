// How long a step takes, learnt from the steps measured so far:
//
//   ms = a + b * rows + c * sum over rows of the keys before it + d * sequences
//
// Exponentially weighted least squares on relative errors with non-negative coefficients. A conservative prior stands
// in for what was not seen yet, and one odd measurement moves a prediction by a bounded factor only. A plain value:
// copy it to read it from another thread.
#pragma once

#include <array>
#include <cstdint>

namespace bam {

// What one step consisted of.
struct StepLoad {
  int64_t rows = 0;
  double row_keys = 0;  // sum over rows of the number of keys before the row
  int64_t sequences = 0;

  void add(int64_t start_pos, int64_t num_rows) {
    const double n = static_cast<double>(num_rows);
    rows += num_rows;
    row_keys += n * static_cast<double>(start_pos) + 0.5 * n * (n - 1);
    ++sequences;
  }
};

class CostModel {
 public:
  // Before anything is measured, 64 rows are assumed to take prior_ms.
  explicit CostModel(double prior_ms);

  void observe(const StepLoad& load, double measured_ms);

  double predict_ms(const StepLoad& load) const;
  // Extra cost of rows [start_pos, start_pos + rows) of one sequence in a step that takes place anyway.
  double rows_ms(int64_t start_pos, int64_t rows) const;
  // Most rows from start_pos on that cost at most budget_ms.
  int64_t rows_within(int64_t start_pos, double budget_ms) const;
  double step_overhead_ms() const;

 private:
  static constexpr int kTerms = 4;  // constant, rows, row_keys, sequences
  using Vector = std::array<double, kTerms>;

  static Vector features(const StepLoad& load);
  void solve();

  Vector prior_{};  // coefficients assumed without evidence
  Vector coefficients_{};
  std::array<Vector, kTerms> moments_{};  // weighted sum of x xᵀ
  Vector targets_{};                      // weighted sum of x (y - prior·x)
  int last_surprise_ = 0;                 // -1, 0, 1: the last measurement was far below, near, far above
};

}  // namespace bam
