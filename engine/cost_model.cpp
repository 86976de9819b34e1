#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>

namespace bam {

namespace {

// Features are scaled so that typical steps give numbers around one.
constexpr double kRowUnit = 64, kKeyUnit = 64.0 * 4096, kSequenceUnit = 8, kDraftUnit = 8;
constexpr double kNoise = 0.15;        // of one measurement, like all that follows relative
constexpr double kDrift = 0.01;        // of each coefficient from step to step
constexpr double kSpeedDrift = 0.05;   // of all together: other programs come and go
constexpr double kUnknownSpeed = 2.0;  // at the start: a factor of e^2
constexpr std::array<double, 5> kUnknownTerm = {1.0, 0.5, 1.0, 1.0, 1.0};
constexpr double kMaxSurprise = 4;  // a measurement counts as at most this factor off
constexpr double kGrowth = 4;       // a step has at most this many times the rows of any before
constexpr int64_t kFirstRows = 64;
constexpr double kFloorMs = 0.05;

double dot(const std::array<double, 5>& a, const std::array<double, 5>& b) {
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

CostModel::CostModel(double prior_ms) {
  // 64 rows take prior_ms; 4096 keys of context add a third of that, a step and eight sequences next to nothing; rows of
  // drafts cost half of what others do.
  coefficients_ = {0.02 * prior_ms, prior_ms, 0.3 * prior_ms, 0.01 * prior_ms, 0.5 * kDraftUnit / kRowUnit * prior_ms};
  for (size_t i = 0; i < kTerms; ++i) {
    log_coefficients_[i] = std::log(coefficients_[i]);
    for (size_t j = 0; j < kTerms; ++j) covariance_[i][j] = kUnknownSpeed * kUnknownSpeed;
    covariance_[i][i] += kUnknownTerm[i] * kUnknownTerm[i];
  }
}

CostModel::Vector CostModel::features(const StepLoad& load) {
  return {1.0, static_cast<double>(load.rows) / kRowUnit, load.row_keys / kKeyUnit,
          static_cast<double>(load.sequences) / kSequenceUnit, static_cast<double>(load.draft_rows) / kDraftUnit};
}

void CostModel::observe(const StepLoad& load, double measured_ms) {
  const Vector x = features(load);
  const double predicted = dot(coefficients_, x);
  double error = std::log(std::max(measured_ms, 1e-3) / predicted);
  const double bounded = std::clamp(error, -std::log(kMaxSurprise), std::log(kMaxSurprise));
  const int surprise = error > bounded ? 1 : error < bounded ? -1 : 0;
  if (surprise != last_surprise_) error = bounded;  // twice in a row is no hiccup
  last_surprise_ = surprise;
  max_rows_ = std::max(max_rows_, load.rows);

  // Each term's share of the predicted time is the derivative of log(time) by its logarithm.
  Vector share, gain{};
  for (size_t i = 0; i < kTerms; ++i) share[i] = coefficients_[i] * x[i] / predicted;
  std::array<bool, kTerms> may_drift{};  // nothing becomes less known than it was at the start
  for (size_t i = 0; i < kTerms; ++i) {
    may_drift[i] = covariance_[i][i] < kUnknownSpeed * kUnknownSpeed + kUnknownTerm[i] * kUnknownTerm[i];
  }
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      if (may_drift[i] && may_drift[j]) covariance_[i][j] += kSpeedDrift * kSpeedDrift + (i == j ? kDrift * kDrift : 0);
    }
  }
  for (size_t i = 0; i < kTerms; ++i) gain[i] = dot(covariance_[i], share);
  const double variance = dot(gain, share) + kNoise * kNoise;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) covariance_[i][j] -= gain[i] * gain[j] / variance;
    log_coefficients_[i] = std::clamp(log_coefficients_[i] + gain[i] * error / variance, -30.0, 30.0);
    coefficients_[i] = std::exp(log_coefficients_[i]);
  }
}

double CostModel::predict_ms(const StepLoad& load) const {
  return load.rows == 0 ? 0 : std::max(dot(coefficients_, features(load)), kFloorMs);
}

double CostModel::rows_ms(int64_t start_pos, int64_t rows) const {
  StepLoad load;
  load.add(start_pos, rows);
  return dot(coefficients_, features(load)) - coefficients_[0] - coefficients_[3] / kSequenceUnit;
}

int64_t CostModel::rows_within(int64_t start_pos, double budget_ms) const {
  if (budget_ms <= 0) return 0;
  const int64_t most = std::max(kFirstRows, static_cast<int64_t>(kGrowth * static_cast<double>(max_rows_)));
  // linear * n + quadratic * n^2 = budget
  const double quadratic = 0.5 * coefficients_[2] / kKeyUnit;
  const double linear =
      coefficients_[1] / kRowUnit + coefficients_[2] / kKeyUnit * (static_cast<double>(start_pos) - 0.5);
  if (linear <= 0 && quadratic <= 0) return most;
  // The form 2c / (b + sqrt(..)) has no cancellation for small quadratic terms.
  const double root = std::sqrt(std::max(0.0, linear * linear + 4 * quadratic * budget_ms));
  const double rows = 2 * budget_ms / std::max(linear + root, 1e-300);
  return static_cast<int64_t>(std::min(rows, static_cast<double>(most)));
}

double CostModel::step_overhead_ms() const { return coefficients_[0]; }

double CostModel::draft_row_ms(int64_t start_pos) const {
  return coefficients_[4] / kDraftUnit + coefficients_[2] / kKeyUnit * static_cast<double>(start_pos);
}

}  // namespace bam
