// How long a step takes, learnt from the steps measured so far:
//
//   ms = a + b * rows + c * sum over rows of the keys before it + d * sequences
//
// A Kalman filter on the logarithms of a, b, c and d: they stay positive, errors are relative, and what the recent
// steps say nothing about keeps its last value. Before anything was measured, all four are mostly unsure of one thing,
// the speed of the machine, so that the first steps scale them together. One odd measurement moves a prediction by a
// bounded factor only. A plain value: copy it to read it from another thread.
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
  // Most rows from start_pos on that cost at most budget_ms; also no more than a small multiple of what was ever
  // measured.
  int64_t rows_within(int64_t start_pos, double budget_ms) const;
  double step_overhead_ms() const;

 private:
  static constexpr int kTerms = 4;  // constant, rows, row_keys, sequences
  using Vector = std::array<double, kTerms>;

  static Vector features(const StepLoad& load);

  Vector log_coefficients_{};
  Vector coefficients_{};                    // exp of the above
  std::array<Vector, kTerms> covariance_{};  // of the logarithms
  int64_t max_rows_ = 0;                     // of any step so far
  int last_surprise_ = 0;                    // -1, 0, 1: the last measurement was far below, near, far above
};

}  // namespace bam
