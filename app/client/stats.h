#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace bam::client {

// q in [0, 1] of ascending samples, linear between neighbours (numpy's default). NaN for no samples.
double percentile(std::span<const double> sorted, double q);

struct Summary {
  size_t count = 0;
  double mean = 0, stddev = 0, min = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
// stddev is the population's, as in `vllm bench serve`. All zero for no samples.
Summary summarize(std::vector<double> samples);

double mean(std::span<const double> samples);
double median(std::vector<double> samples);

// 95 % Wilson interval of a hit rate: honest for 20 of 20 and for one sample.
std::pair<double, double> wilson_interval(double hits, double trials);

// Least-squares slope of ln y over ln x: the growth exponent. NaN for fewer than two distinct x.
double growth_exponent(std::span<const double> x, std::span<const double> y);

}  // namespace bam::client
