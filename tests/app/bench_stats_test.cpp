#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "app/client/rng.h"
#include "app/client/stats.h"
#include "app/client/workload.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

TEST(Stats, PercentilesInterpolateLikeNumpy) {
  const std::vector<double> samples = {1, 2, 3, 4, 10};
  EXPECT_DOUBLE_EQ(percentile(samples, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(samples, 0.5), 3);
  EXPECT_DOUBLE_EQ(percentile(samples, 0.9), 7.6);  // numpy.percentile([1,2,3,4,10], 90)
  EXPECT_DOUBLE_EQ(percentile(samples, 0.99), 9.76);
  EXPECT_DOUBLE_EQ(percentile(samples, 1), 10);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(Stats, SummaryOfKnownSamples) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const Summary s = summarize(samples);
  EXPECT_EQ(s.count, 100u);
  EXPECT_DOUBLE_EQ(s.mean, 50.5);
  EXPECT_NEAR(s.stddev, 28.866070047722118, 1e-12);  // population
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.p50, 50.5);
  EXPECT_NEAR(s.p90, 90.1, 1e-12);
  EXPECT_NEAR(s.p99, 99.01, 1e-12);
  EXPECT_DOUBLE_EQ(s.max, 100);
  EXPECT_EQ(summarize({}).count, 0u);
  EXPECT_DOUBLE_EQ(summarize({7}).p99, 7);
}

TEST(Stats, WilsonInterval) {
  const auto [low, high] = wilson_interval(20, 20);
  EXPECT_NEAR(low, 0.8389, 1e-3);
  EXPECT_DOUBLE_EQ(high, 1);
  const auto [low_half, high_half] = wilson_interval(5, 10);
  EXPECT_NEAR(low_half, 0.2366, 1e-3);
  EXPECT_NEAR(high_half, 0.7634, 1e-3);
}

TEST(Stats, GrowthExponent) {
  const std::vector<double> x = {512, 4096, 65536};
  std::vector<double> y;
  for (const double v : x) y.push_back(3 * std::pow(v, 1.3));
  EXPECT_NEAR(growth_exponent(x, y), 1.3, 1e-9);
  EXPECT_TRUE(std::isnan(growth_exponent(std::vector<double>{512}, std::vector<double>{1})));
}

TEST(Rng, DistributionsHaveTheirMoments) {
  Rng rng(7);
  constexpr int kSamples = 200000;
  for (const double shape : {0.25, 1.0, 4.0}) {
    double sum = 0, squares = 0;
    for (int i = 0; i < kSamples; ++i) {
      const double v = rng.gamma(shape, 2.0);
      ASSERT_GE(v, 0);
      sum += v, squares += v * v;
    }
    const double mean = sum / kSamples, variance = squares / kSamples - mean * mean;
    // Five standard errors of the mean; the variance within 5 %.
    EXPECT_NEAR(mean, shape * 2, 5 * std::sqrt(shape * 4 / kSamples)) << "shape " << shape;
    EXPECT_NEAR(variance, shape * 4, 0.05 * shape * 4) << "shape " << shape;
  }
  double sum = 0, squares = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double v = rng.normal();
    sum += v, squares += v * v;
  }
  EXPECT_NEAR(sum / kSamples, 0, 5 / std::sqrt(kSamples));
  EXPECT_NEAR(squares / kSamples, 1, 0.02);
}

TEST(Rng, StreamsAreReproducibleAndDistinct) {
  EXPECT_EQ(Rng::stream(1, 2, 3).next(), Rng::stream(1, 2, 3).next());
  EXPECT_NE(Rng::stream(1, 2, 3).next(), Rng::stream(1, 2, 4).next());
  EXPECT_NE(Rng::stream(1, 2, 3).next(), Rng::stream(1, 3, 2).next());
}

TEST(Units, Counts) {
  EXPECT_EQ(parse_count("512", "x"), 512);
  EXPECT_EQ(parse_count("500k", "x"), 512000);
  EXPECT_EQ(parse_count("1.5K", "x"), 1536);
  EXPECT_EQ(parse_count("1m", "x"), 1048576);
  EXPECT_EQ(parse_count_list("8k,1k,1024", "x"), (std::vector<int64_t>{1024, 8192}));
  for (const char* bad : {"", "k", "-1", "1.5", "12x", "1e400", "nan"}) {
    EXPECT_THROW(parse_count(bad, "x"), UsageError) << bad;
  }
}

TEST(Units, Formatting) {
  EXPECT_EQ(format_count(65536), "64K");
  EXPECT_EQ(format_count(512), "512");
  EXPECT_EQ(format_count(1000), "1000");
  EXPECT_EQ(format_count(2 << 20), "2M");
  EXPECT_EQ(format_thousands(1234567), "1,234,567");
  EXPECT_EQ(format_thousands(-1000), "-1,000");
  EXPECT_EQ(format_percent(1), "100 %");
  EXPECT_EQ(format_percent(0.9996), "99.9 %");  // never rounded up to perfect
  EXPECT_EQ(format_ms(0.5), "0.50 ms");
  EXPECT_EQ(format_ms(725000), "12 min 05 s");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(excerpt("naïve\nline", 3), "na…");  // not inside a character
  EXPECT_EQ(excerpt("a\nb", 10), "a b");
}

TEST(LengthDistribution, ParsesAndSamples) {
  Rng rng(3);
  EXPECT_EQ(LengthDistribution::parse("2k", "x").sample(rng), 2048);
  const auto uniform = LengthDistribution::parse("uniform:10:12", "x");
  int64_t low = 100, high = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t v = uniform.sample(rng);
    low = std::min(low, v), high = std::max(high, v);
  }
  EXPECT_EQ(low, 10);
  EXPECT_EQ(high, 12);
  const auto lognormal = LengthDistribution::parse("lognormal:1000:0.5:200:4000", "x");
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) values.push_back(static_cast<double>(lognormal.sample(rng)));
  const Summary s = summarize(values);
  EXPECT_NEAR(s.p50, 1000, 25);
  EXPECT_GE(s.min, 200);
  EXPECT_LE(s.max, 4000);
  const auto normal = LengthDistribution::parse("normal:100:1000", "x");
  for (int i = 0; i < 1000; ++i) ASSERT_GE(normal.sample(rng), 1);
  for (const char* bad : {"0", "uniform:5", "uniform:9:3", "cauchy:1:2", "lognormal:0:1", "normal:1:2:9:3", "x"}) {
    EXPECT_THROW(LengthDistribution::parse(bad, "x"), UsageError) << bad;
  }
}

TEST(Arrivals, MeanRateAndBurstiness) {
  for (const double burstiness : {0.5, 1.0, 20.0}) {
    Rng rng(11);
    std::vector<double> gaps;
    for (int i = 0; i < 50000; ++i) gaps.push_back(arrival_gap_s(rng, 40, burstiness));
    const Summary s = summarize(gaps);
    EXPECT_NEAR(s.mean, 1.0 / 40, 0.02 / 40);
    // The coefficient of variation of a gamma with that shape.
    EXPECT_NEAR(s.stddev / s.mean, 1 / std::sqrt(burstiness), 0.03 / std::sqrt(burstiness));
  }
  Rng rng(1);
  EXPECT_EQ(arrival_gap_s(rng, std::numeric_limits<double>::infinity(), 1), 0);
}

}  // namespace
}  // namespace bam::client
