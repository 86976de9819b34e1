#include "kernels/head_bias.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/reference/oracle.h"

namespace bam {
namespace {

// What the header promises about the shape of value(), at every distance up to `n`.
void expect_shape(const HeadBias& bias, double sign, int64_t n) {
  for (int64_t d = bias.rising; d <= std::min(bias.settled, n); ++d) {
    EXPECT_LE(bias.value(d), bias.largest) << d;
    EXPECT_GE(bias.value(d), bias.smallest) << d;
  }
  int ups = 0, downs = 0;
  for (int64_t d = 0; d < std::min(bias.rising, n); ++d) {
    ups += bias.value(d + 1) > bias.value(d);
    downs += bias.value(d + 1) < bias.value(d);
  }
  EXPECT_TRUE(ups == 0 || downs == 0) << "monotone up to " << bias.rising;
  ups = downs = 0;
  for (int64_t d = bias.settled; d < n; ++d) {
    ups += bias.value(d + 1) > bias.value(d);
    downs += bias.value(d + 1) < bias.value(d);
    if (bias.never_grows) {
      EXPECT_LE(sign * bias.value(d + 1), sign * bias.value(d)) << d;
    }
  }
  EXPECT_TRUE(ups == 0 || downs == 0) << "monotone from " << bias.settled;
}

TEST(HeadBias, PowersAreMonotoneOutsideOfTheirTurn) {
  for (const PriorForm form : {PriorForm::kScaleOutside, PriorForm::kScaleInside}) {
    for (const double beta : {-1.0, -0.3, 0.0, 0.4, 1.3}) {
      for (const double mu : {-300.3, -2.7, -2.0, -0.4, 0.0, 0.6, 5.0}) {
        for (const double seq_scale : {-0.4, 0.7}) {
          const HeadBias bias = power_bias(form, {0.3, beta, std::asinh(mu / 2)}, 1e-5, true, seq_scale);
          EXPECT_EQ(bias.decays, seq_scale * beta > 0);
          expect_shape(bias, seq_scale, 1000);
        }
      }
    }
  }
  // theta_mu at the edge of what is accepted: beyond every position, not beyond an integer.
  const HeadBias far = power_bias(PriorForm::kScaleOutside, {0, 1, -80}, 1e-5, false, 1);
  EXPECT_EQ(far.settled, kMaxPositions);
}

TEST(HeadBias, LinearFallsFromTheStart) {
  const HeadBias bias = linear_bias(0.25);
  expect_shape(bias, 1, 1000);
  EXPECT_TRUE(bias.decays && !bias.scaled);
  EXPECT_EQ(bias.value(12), -3.0);
}

// T5's own table for 32 buckets up to 128: sixteen exact ones, then these first distances.
TEST(HeadBias, BucketsOfT5) {
  const std::vector<int64_t> first = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(relative_bucket(32, 128, d), d);
  for (size_t b = 0; b < first.size(); ++b) {
    EXPECT_EQ(relative_bucket(32, 128, first[b]), 16 + static_cast<int>(b));
    if (b > 0) {
      EXPECT_EQ(relative_bucket(32, 128, first[b] - 1), 15 + static_cast<int>(b));
    }
  }
  EXPECT_EQ(relative_bucket(32, 128, kMaxPositions), 31);
}

TEST(HeadBias, BucketsAgreeWithTheOracleAlsoOnExactEdges) {
  // 16 * 2^k are edges of whole numbers with 256 and 4096; 2 and 3 are the smallest tables.
  for (const auto& [buckets, distance] : {std::pair<int, int64_t>{32, 128},
                                          {32, 256},
                                          {8, 4096},
                                          {64, 4096},
                                          {2, 2},
                                          {3, 50},
                                          {9, 200},
                                          {256, 1 << 20}}) {
    for (int64_t d = 0; d < 3 * distance && d < 100000; ++d) {
      ASSERT_EQ(relative_bucket(buckets, distance, d), reference::relative_bucket(buckets, distance, d))
          << buckets << " buckets up to " << distance << ", distance " << d;
    }
  }
}

TEST(HeadBias, BucketsAreConstantOnceSettled) {
  for (const auto& [count, distance] : {std::pair<size_t, int64_t>{32, 128}, {9, 200}, {2, 2}, {256, 5000}}) {
    std::vector<float> buckets(count);
    for (size_t b = 0; b < count; ++b) buckets[b] = static_cast<float>((b * 37 % 11)) - 5.0f;
    const HeadBias bias = bucket_bias(buckets, distance);
    expect_shape(bias, 1, 2 * distance);
    EXPECT_TRUE(bias.never_grows && !bias.decays && !bias.scaled);
    EXPECT_EQ(bias.value(bias.settled), static_cast<double>(buckets.back()));
    if (count > 2) {
      EXPECT_EQ(bias.value(bias.settled - 1), static_cast<double>(buckets[count - 2]));
    }
  }
}

}  // namespace
}  // namespace bam
