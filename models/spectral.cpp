#include "models/spectral.h"

#include <algorithm>
#include <cmath>

namespace bam {
namespace {

// Gram matrix A A' of a [rows, cols] matrix with columns scaled by `scale`. Four columns at a time and only the lower
// triangle: the inner loop runs along memory without a reduction.
std::vector<double> gram(const std::vector<float>& a, const std::vector<float>& scale, int64_t rows, int64_t cols) {
  constexpr int64_t kColumns = 4;
  std::vector<double> result(static_cast<size_t>(rows * rows)), block(static_cast<size_t>(kColumns * rows));
  double* c[kColumns];
  for (int64_t k = 0; k < kColumns; ++k) c[k] = block.data() + k * rows;
  for (int64_t first = 0; first < cols; first += kColumns) {
    for (int64_t k = 0; k < kColumns; ++k) {
      const int64_t col = first + k;
      for (int64_t r = 0; r < rows; ++r) {
        c[k][r] = col < cols
                      ? static_cast<double>(a[static_cast<size_t>(r * cols + col)]) * scale[static_cast<size_t>(col)]
                      : 0;
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      double* out = result.data() + i * rows;
      const double v0 = c[0][i], v1 = c[1][i], v2 = c[2][i], v3 = c[3][i];
      for (int64_t j = 0; j <= i; ++j) out[j] += (v0 * c[0][j] + v1 * c[1][j]) + (v2 * c[2][j] + v3 * c[3][j]);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < i; ++j)
      result[static_cast<size_t>(j * rows + i)] = result[static_cast<size_t>(i * rows + j)];
  }
  return result;
}

// C = A B for square matrices.
std::vector<double> multiply(const std::vector<double>& a, const std::vector<double>& b, int64_t n) {
  std::vector<double> c(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      const double value = a[static_cast<size_t>(i * n + k)];
      for (int64_t j = 0; j < n; ++j) c[static_cast<size_t>(i * n + j)] += value * b[static_cast<size_t>(k * n + j)];
    }
  }
  return c;
}

// An upper bound on the largest absolute eigenvalue that is tight: |A|_2^(2^s) <= |A^(2^s)| in any norm, and the s-th
// root of the norm's slack vanishes. Squaring with rescaling; no start vector that could miss the top direction.
double spectral_radius_bound(std::vector<double> a, int64_t n) {
  double log_scale = 0;  // log of the factor taken out, in units of the original matrix
  double weight = 1;     // 1 / 2^s
  const auto max_row_sum = [&] {
    double largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += std::fabs(a[static_cast<size_t>(i * n + j)]);
      largest = std::max(largest, sum);
    }
    return largest;
  };
  constexpr int kSquarings = 10;
  for (int s = 0; s < kSquarings; ++s) {
    const double norm = max_row_sum();
    if (norm == 0) return 0;
    for (double& value : a) value /= norm;
    log_scale += weight * std::log(norm);
    a = multiply(a, a, n);
    weight /= 2;
  }
  const double norm = max_row_sum();
  return norm == 0 ? 0 : std::exp(log_scale + weight * std::log(norm));
}

// exp() and products above were rounded; a part in a million is far more than double arithmetic loses.
constexpr double kWiden = 1 + 1e-6;

}  // namespace

double logit_bound(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm,
                   int64_t head_dim, int64_t hidden, bool rotated) {
  const std::vector<double> q = gram(wq, norm, head_dim, hidden), k = gram(wk, norm, head_dim, hidden);
  const double scale = static_cast<double>(hidden) / std::sqrt(static_cast<double>(head_dim));
  if (rotated) {
    return std::sqrt(spectral_radius_bound(q, head_dim) * spectral_radius_bound(k, head_dim)) * scale * kWiden;
  }
  // Singular values of Wq'Wk squared are the eigenvalues of (Wq Wq')(Wk Wk').
  return std::sqrt(spectral_radius_bound(multiply(q, k, head_dim), head_dim)) * scale * kWiden;
}

double rounded_logit_bound(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm,
                           int64_t head_dim, int64_t hidden, bool rotated) {
  const double exact = logit_bound(wq, wk, norm, head_dim, hidden, rotated);
  // Rounding knows nothing of the norm's weights: what it adds is bounded with the largest of them everywhere.
  float largest = 0, smallest = INFINITY;
  for (const float w : norm) {
    largest = std::max(largest, std::fabs(w));
    smallest = std::min(smallest, std::fabs(w));
  }
  const std::vector<float> flat(norm.size(), largest);
  const double even = largest == smallest ? exact : logit_bound(wq, wk, flat, head_dim, hidden, rotated);
  // A step is s = m / 127 with m the largest number, which is a code itself. An error is at most s / 2 and at most the
  // number, so the most that all errors can be beside |x| is where all other numbers are s / 2.
  const double others = static_cast<double>(hidden - 1);
  const double error = std::sqrt(others / (254.0 * 254.0 + others));
  // By itself a rounded row is longest beside |x| where all others are (k + 1/2) s and become (k + 1) s, for one k.
  double growth = 1;
  for (int k = 0; k < 127; ++k) {
    growth =
        std::max(growth, (127.0 * 127 + others * (k + 1) * (k + 1)) / (127.0 * 127 + others * (k + 0.5) * (k + 0.5)));
  }
  return std::min(exact + (2 * error + error * error) * even, growth * even);
}

double key_rounding(DType pages, int64_t head_dim) {
  const auto d = static_cast<double>(head_dim);
  constexpr double kF16Scale = 1 + 0x1p-10;  // scales are float16: rounded, and up where the largest would not fit
  switch (pages) {
    case DType::kF32: return 0;
    case DType::kF16: return 0x1p-11;
    case DType::kI8: {
      // As in rounded_logit_bound(), but the largest number need not be a code: half a step is 1/254 of it.
      const double half = kF16Scale / 254;
      return std::sqrt(d * half * half / (1 + (d - 1) * half * half));
    }
    case DType::kI4:
      // Half a step is a thirtieth of highest - lowest, and the key at least as long as those two numbers. Rounding minimum
      // and scale moves the ends of the range by less than three times the larger one's last place.
      return std::sqrt(d) * (std::sqrt(2.0) / 30 * kF16Scale + 3 * 0x1p-11);
    case DType::kFp8: return 0x1p-4 + std::sqrt(d) * 0x1p-18;  // three bits and, near zero, steps of 2^-9 of 448
    default: return 0x1p-8;                                    // bf16
  }
}

double computed_logit_bound(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm,
                            int64_t head_dim, int64_t hidden, bool rotated, const LogitRounding& rounding) {
  const auto bound = rounding.coded_activations ? rounded_logit_bound : logit_bound;
  const double before = bound(wq, wk, norm, head_dim, hidden, rotated);
  const double each = rounding.coded_activations ? 1 : 1 + rounding.activations;
  const double share = each * each * (1 + rounding.queries) * (1 + rounding.keys) - 1;
  if (share == 0) return before;
  return before + share * (rotated ? before : bound(wq, wk, norm, head_dim, hidden, true));
}

int64_t static_reach(const AttentionSpec& spec, int head, double bound, double epsilon, int64_t max_positions) {
  if (spec.window >= 0) return spec.window;
  const HeadBias& bias = spec.bias_of(head);
  if (!bias.never_grows) return -1;
  const double s = spec.seq_scale_of(head);
  const double own = bias.value(0);
  // The best key at distance d against the query's own key, for the context length n at which that is worst. The
  // condition (2 Z c + b (B(d) - B(0)) < ln eps - ln n) is checked at both ends of n: every term is linear in ln n.
  const auto proved = [&](int64_t d) {
    for (const int64_t n : {d + 1, max_positions}) {
      const double log_n = std::log(static_cast<double>(n));
      const double c = spec.ssmax ? s * log_n : 1.0;
      const double b = spec.ssmax && bias.scaled ? c : 1.0;
      const double gap = 2 * bound * std::fabs(c) + b * (bias.value(d) - own);
      if (!(gap + 1e-5 * (std::fabs(gap) + std::fabs(b * own)) < std::log(epsilon) - log_n)) return false;
    }
    return true;
  };
  // Where B falls on, so does the gap, and the first distance that is proved can be searched for.
  int64_t low = bias.settled + 1;
  if (low >= max_positions || !proved(max_positions - 1)) return -1;
  int64_t high = max_positions - 1;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    if (proved(mid)) {
      high = mid;
    } else {
      low = mid + 1;
    }
  }
  // Before that every distance counts by itself.
  if (high == bias.settled + 1) {
    while (high > 1 && proved(high - 1)) --high;
  }
  return high;
}

}  // namespace bam
