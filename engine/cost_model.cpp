#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>

namespace bam {

namespace {

// Features are scaled so that typical steps give numbers around one.
constexpr double kRowUnit = 64, kKeyUnit = 64.0 * 4096, kSequenceUnit = 8;
constexpr double kForget = 0.97;       // weight of a step 30 steps ago: 0.4
constexpr double kForgetWrong = 0.02;  // after two surprises of the same kind
constexpr double kRidge = 1e-5;        // pull towards the prior, in relative units
constexpr double kMaxSurprise = 4;     // a measurement counts as at most this factor off
constexpr double kFloorMs = 0.05;

double dot(const std::array<double, 4>& a, const std::array<double, 4>& b) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

CostModel::CostModel(double prior_ms) {
  prior_ = {0.02 * prior_ms, prior_ms, 0.1 * prior_ms, 0.01 * prior_ms};
  coefficients_ = prior_;
}

CostModel::Vector CostModel::features(const StepLoad& load) {
  return {1.0, static_cast<double>(load.rows) / kRowUnit, load.row_keys / kKeyUnit,
          static_cast<double>(load.sequences) / kSequenceUnit};
}

void CostModel::observe(const StepLoad& load, double measured_ms) {
  const Vector x = features(load);
  const double predicted = std::max(dot(coefficients_, x), kFloorMs);
  double y = std::clamp(measured_ms, predicted / kMaxSurprise, predicted * kMaxSurprise);
  const int surprise = y < measured_ms ? 1 : y > measured_ms ? -1 : 0;
  const bool again = surprise != 0 && surprise == last_surprise_;
  last_surprise_ = surprise;
  if (again) y = measured_ms;  // twice in a row is no hiccup: the past was wrong
  const double forget = again ? kForgetWrong : kForget;
  // Relative errors: a 1 ms decode step says as much about its terms as a 200 ms chunk about its own.
  const double weight = 1.0 / std::max(y * y, kFloorMs * kFloorMs);
  const double residual = y - dot(prior_, x);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) moments_[i][j] = forget * moments_[i][j] + weight * x[i] * x[j];
    targets_[i] = forget * targets_[i] + weight * x[i] * residual;
  }
  solve();
}

// Ridge regression around the prior; coefficients that come out negative are fixed at zero, worst first.
void CostModel::solve() {
  std::array<bool, kTerms> fixed{};
  for (int round = 0; round < kTerms; ++round) {
    double m[kTerms][kTerms + 1];
    for (int i = 0; i < kTerms; ++i) {
      for (int j = 0; j < kTerms; ++j) m[i][j] = moments_[i][j];
      m[i][i] += kRidge / std::max(prior_[i] * prior_[i], 1e-12);
      m[i][kTerms] = targets_[i];
      for (int j = 0; j < kTerms; ++j) {
        if (fixed[j]) m[i][kTerms] += moments_[i][j] * prior_[j];  // that coefficient's offset is -prior
      }
    }
    Vector offset{};
    for (int i = 0; i < kTerms; ++i) {
      if (!fixed[i]) continue;
      for (int j = 0; j <= kTerms; ++j) m[i][j] = 0;
      for (int j = 0; j < kTerms; ++j) m[j][i] = 0;
      m[i][i] = 1;
    }
    // Gaussian elimination; the ridge keeps the matrix positive definite, so no pivoting is needed.
    for (int i = 0; i < kTerms; ++i) {
      for (int r = i + 1; r < kTerms; ++r) {
        const double f = m[r][i] / m[i][i];
        for (int j = i; j <= kTerms; ++j) m[r][j] -= f * m[i][j];
      }
    }
    for (int i = kTerms; i-- > 0;) {
      double v = m[i][kTerms];
      for (int j = i + 1; j < kTerms; ++j) v -= m[i][j] * offset[j];
      offset[i] = v / m[i][i];
    }
    int worst = -1;
    for (int i = 0; i < kTerms; ++i) {
      coefficients_[i] = fixed[i] ? 0 : prior_[i] + offset[i];
      if (coefficients_[i] < 0 && (worst < 0 || coefficients_[i] < coefficients_[worst])) worst = i;
    }
    if (worst < 0) return;
    fixed[worst] = true;
  }
  for (double& c : coefficients_) c = std::max(c, 0.0);
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
  // linear * n + quadratic * n^2 = budget
  const double quadratic = 0.5 * coefficients_[2] / kKeyUnit;
  const double linear =
      coefficients_[1] / kRowUnit + coefficients_[2] / kKeyUnit * (static_cast<double>(start_pos) - 0.5);
  if (linear <= 0 && quadratic <= 0) return INT64_MAX;
  // The form 2c / (b + sqrt(..)) has no cancellation for small quadratic terms.
  const double root = std::sqrt(std::max(0.0, linear * linear + 4 * quadratic * budget_ms));
  const double rows = 2 * budget_ms / std::max(linear + root, 1e-300);
  return rows >= 9e15 ? INT64_MAX : static_cast<int64_t>(rows);
}

double CostModel::step_overhead_ms() const { return coefficients_[0]; }

}  // namespace bam
