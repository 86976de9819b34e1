#include "app/client/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace bam::client {

double percentile(std::span<const double> sorted, double q) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double at = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

double mean(std::span<const double> samples) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return percentile(samples, 0.5);
}

Summary summarize(std::vector<double> samples) {
  Summary summary;
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end());
  summary.count = samples.size();
  summary.mean = mean(samples);
  double squares = 0;
  for (const double x : samples) squares += (x - summary.mean) * (x - summary.mean);
  summary.stddev = std::sqrt(squares / static_cast<double>(samples.size()));
  summary.min = samples.front();
  summary.p50 = percentile(samples, 0.50);
  summary.p90 = percentile(samples, 0.90);
  summary.p99 = percentile(samples, 0.99);
  summary.max = samples.back();
  return summary;
}

std::pair<double, double> wilson_interval(double hits, double trials) {
  if (trials <= 0) return {0, 1};
  constexpr double z = 1.959964;
  const double p = hits / trials;
  const double scale = 1 + z * z / trials;
  const double centre = (p + z * z / (2 * trials)) / scale;
  const double half = z * std::sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale;
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

double growth_exponent(std::span<const double> x, std::span<const double> y) {
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] <= 0 || y[i] <= 0) continue;
    const double lx = std::log(x[i]), ly = std::log(y[i]);
    n += 1, sx += lx, sy += ly, sxx += lx * lx, sxy += lx * ly;
  }
  const double spread = n * sxx - sx * sx;
  if (n < 2 || spread < 1e-12) return std::numeric_limits<double>::quiet_NaN();
  return (n * sxy - sx * sy) / spread;
}

}  // namespace bam::client
