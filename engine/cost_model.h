// How long a step takes, learnt from the steps measured so far:
//
//   ms = a + b * rows + c * sum over rows of the keys before it + d * sequences + e * rows of drafts
//
// Rows of drafts have a price of their own: a few rows more are next to free as long as reading the weights takes longer
// than multiplying with them, which rows of prompts know nothing of.
// A Kalman filter on the logarithms of a to e: they stay positive, errors are relative, and what the recent
// steps say nothing about keeps its last value. Before anything was measured, all are mostly unsure of one thing,
// the speed of the machine, so that the first steps scale them together. One odd measurement moves a prediction by a
// bounded factor only. A plain value: copy it to read it from another thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace bam {

// What one step consisted of.
struct StepLoad {
  int64_t rows = 0;
  double row_keys = 0;  // sum over rows of the number of keys before the row
  int64_t sequences = 0;
  int64_t draft_rows = 0;  // not among `rows`, but their keys count

  void add(int64_t start_pos, int64_t num_rows) {
    const double n = static_cast<double>(num_rows);
    rows += num_rows;
    row_keys += n * static_cast<double>(start_pos) + 0.5 * n * (n - 1);
    ++sequences;
  }
  // Of a sequence that has been added.
  void add_drafts(int64_t start_pos, int64_t num_rows) {
    const double n = static_cast<double>(num_rows);
    draft_rows += num_rows;
    row_keys += n * static_cast<double>(start_pos) + 0.5 * n * (n - 1);
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
  // Extra cost of one row of a draft with so many keys before it.
  double draft_row_ms(int64_t start_pos) const;

 private:
  static constexpr size_t kTerms = 5;  // constant, rows, row_keys, sequences, draft_rows
  using Vector = std::array<double, kTerms>;

  static Vector features(const StepLoad& load);

  Vector log_coefficients_{};
  Vector coefficients_{};                    // exp of the above
  std::array<Vector, kTerms> covariance_{};  // of the logarithms
  int64_t max_rows_ = 0;                     // of any step so far
  int last_surprise_ = 0;                    // -1, 0, 1: the last measurement was far below, near, far above
};

}  // namespace bam
