// Paged attention at lengths where certified skipping, super-tiles and segments matter (20,000 keys and more): against
// double arithmetic, against dense, and against itself in other cuts, thread counts and instruction sets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tests/kernels/attention_subject.h"
#include "tests/reference/oracle.h"

namespace bam {
namespace {

using namespace attention_subject;  // NOLINT

// The last query row in double, from the definition.
std::vector<double> exact_row(const AttentionSpec& spec, const std::vector<float>& qkv, int64_t i, int head) {
  const float* q = qkv.data() + i * kWidth + head * kDim;
  const int kv = head / (kHeads / kKvHeads);
  const double c = spec.ssmax ? spec.seq_scale[static_cast<size_t>(head)] * std::log(static_cast<double>(i + 1)) : 1.0;
  const PriorParams& p = kPrior[head];
  std::vector<double> logits;
  for (int64_t j = 0; j <= i; ++j) {
    const float* k = qkv.data() + j * kWidth + (kHeads + kv) * kDim;
    double dot = 0;
    for (int d = 0; d < kDim; ++d) dot += static_cast<double>(q[d]) * k[d];
    const double prior = -std::exp(p.alpha) * std::pow(static_cast<double>(i - j) + 1e-5, p.beta);
    logits.push_back((dot / std::sqrt(static_cast<double>(kDim)) + prior) * c);
  }
  double largest = logits[0], total = 0;
  for (double l : logits) largest = std::max(largest, l);
  std::vector<double> out(kDim);
  for (int64_t j = 0; j <= i; ++j) {
    const double w = std::exp(logits[static_cast<size_t>(j)] - largest);
    total += w;
    const float* v = qkv.data() + j * kWidth + (kHeads + kKvHeads + kv) * kDim;
    for (int d = 0; d < kDim; ++d) out[static_cast<size_t>(d)] += w * v[d];
  }
  for (double& o : out) o /= total;
  return out;
}

class LongAttention : public ::testing::TestWithParam<bool> {};

TEST_P(LongAttention, CertifiedAndDenseAgreeWithDoubleArithmetic) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 20011;
  const auto qkv = make_qkv(n, 11);
  const auto dense = run("auto", 2, spec, qkv, n, 3, 3, DType::kF32, false);
  const auto certified = run("auto", 2, spec, qkv, n, 3, 3, DType::kF32, true);
  for (int h = 0; h < kHeads; ++h) {
    const auto exact = exact_row(spec, qkv, n - 1, h);
    for (int d = 0; d < kDim; ++d) {
      const auto at = static_cast<size_t>((2 * kHeads + h) * kDim + d);
      EXPECT_NEAR(dense.out[at], exact[static_cast<size_t>(d)], 2e-5) << "head " << h;
      // At most epsilon of the mass is missing, values are below 6.
      EXPECT_NEAR(certified.out[at], exact[static_cast<size_t>(d)], 2e-5 + 12 * 0x1p-20) << "head " << h;
    }
    EXPECT_EQ(dense.counters[static_cast<size_t>(h)].skipped, 0u);
    EXPECT_EQ(dense.counters[static_cast<size_t>(h)].left_out, 0.0f);
    EXPECT_LE(certified.counters[static_cast<size_t>(h)].left_out, 0x1p-20f);
  }
  AttentionCounters all;
  for (const AttentionCounters& head : certified.counters) all += head;
  EXPECT_GT(all.left_out, 0.0f);
  EXPECT_LT(certified.counters[0].visited * 20, dense.counters[0].visited) << "a local head must read a small window";
}

TEST_P(LongAttention, LargerEpsilonNeverReadsMore) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 12000;
  const auto qkv = make_qkv(n, 12);
  uint64_t before = UINT64_MAX;
  const auto dense = run("auto", 1, spec, qkv, n, 1, 1, DType::kF32, false);
  for (const float epsilon : {0x1p-24f, 0x1p-12f, 0x1p-6f}) {
    const auto result = run("auto", 1, spec, qkv, n, 1, 1, DType::kF32, true, epsilon);
    uint64_t visited = 0;
    for (const auto& head : result.counters) visited += head.visited;
    EXPECT_LE(visited, before);
    before = visited;
    // The bound that was achieved is at most the one that was asked for, and the outputs keep it.
    for (size_t i = 0; i < result.out.size(); ++i) {
      const float left_out = result.counters[i / kDim].left_out;
      EXPECT_LE(left_out, epsilon);
      EXPECT_NEAR(result.out[i], dense.out[i], 2e-5 + 12 * static_cast<double>(left_out)) << "head " << i / kDim;
    }
  }
}

TEST_P(LongAttention, SameBitsInAnyCutThreadCountAndPageSize) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 40000, queries = 150;  // three segments; the queries span several tiles
  const auto qkv = make_qkv(n, 13);
  for (const DType dtype : {DType::kF16, DType::kI8}) {
    for (const bool certified : {true, false}) {
      const auto whole = run("auto", 1, spec, qkv, n, queries, queries, dtype, certified);
      for (const auto& [threads, at_once, page] : {std::tuple{2, 1, 64}, {2, 37, 128}, {1, 1, 256}, {3, 150, 64}}) {
        const auto other = run("auto", threads, spec, qkv, n, queries, at_once, dtype, certified, 0x1p-20f, page);
        ASSERT_EQ(std::memcmp(whole.out.data(), other.out.data(), whole.out.size() * sizeof(float)), 0)
            << dtype_name(dtype) << " certified " << certified << " threads " << threads << " rows " << at_once;
        for (int h = 0; h < kHeads; ++h) {
          EXPECT_EQ(whole.counters[static_cast<size_t>(h)].visited, other.counters[static_cast<size_t>(h)].visited);
        }
      }
    }
  }
}

TEST_P(LongAttention, InstructionSetsAgree) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 6000;
  const auto qkv = make_qkv(n, 14);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kI4}) {
    const auto best = run("auto", 1, spec, qkv, n, 70, 70, dtype, true);
    for (const char* isa : {"portable", "avx2", "avx512"}) {
      try {
        const auto other = run(isa, 1, spec, qkv, n, 70, 70, dtype, true);
        for (size_t i = 0; i < best.out.size(); ++i)
          ASSERT_NEAR(best.out[i], other.out[i], 4e-5) << isa << " " << dtype_name(dtype);
      } catch (const UsageError&) {
        continue;  // this CPU lacks it
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SSMax, LongAttention, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

TEST(Attention, QuantisedCachesStayClose) {
  const AttentionSpec spec = make_spec(true);
  const int64_t n = 3000;
  const auto qkv = make_qkv(n, 15);
  const auto exact = run("auto", 2, spec, qkv, n, 64, 64, DType::kF32, true);
  for (const auto& [dtype, tolerance] : {std::pair{DType::kF16, 4e-3}, {DType::kI8, 6e-2}, {DType::kI4, 0.8}}) {
    const auto other = run("auto", 2, spec, qkv, n, 64, 64, dtype, true);
    double worst = 0;
    for (size_t i = 0; i < exact.out.size(); ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(exact.out[i]) - other.out[i]));
    EXPECT_LT(worst, tolerance) << dtype_name(dtype);
    EXPECT_GT(worst, 0) << dtype_name(dtype) << " cannot be exact";
  }
}

// The peak of a prior with mu < 0 may lie between two keys of a tile that is not among the nearest. A bound that took
// the further of the two for the peak would leave the nearer one out, here with all of the row's mass.
TEST(Attention, ThePeakOfAPriorIsNeverLeftOut) {
  const int64_t n = 700, i = n - 1;
  AttentionSpec spec;
  spec.num_heads = kHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim = kDim;
  const double slope = 1000;
  for (int h = 0; h < kHeads; ++h) {
    spec.bias.push_back(
        power_bias(PriorForm::kScaleOutside, {std::log(slope), 1, -std::asinh(300.3 / 2)}, 1e-5, false, 1));
  }
  std::vector<float> qkv(static_cast<size_t>(n * kWidth));
  for (int64_t j = 0; j < n; ++j) {
    float* row = qkv.data() + j * kWidth;
    for (int h = 0; h < kHeads; ++h) row[h * kDim] = 2000;
    for (int h = 0; h < kKvHeads; ++h) row[(kHeads + kKvHeads + h) * kDim] = static_cast<float>(j);
    // The key 10 back: content lifts it to 10 below the one 300 back, whose own logit is slope * -0.3.
    const double lift = slope * 290.3 - slope * 0.3 - 10;
    for (int h = 0; h < kKvHeads && j == i - 10; ++h)
      row[(kHeads + h) * kDim] = static_cast<float>(lift * std::sqrt(static_cast<double>(kDim)) / 2000);
  }
  const auto certified = run("auto", 1, spec, qkv, n, 1, 1, DType::kF32, true);
  for (int h = 0; h < kHeads; ++h) EXPECT_NEAR(certified.out[static_cast<size_t>(h * kDim)], i - 300, 0.1);
}

// Heads of every character, the tail of one so low that it may be left out.
TEST(Attention, RelativeBiasCertifiedAndDenseAgreeWithDoubleArithmetic) {
  const std::vector<std::vector<float>> buckets = {{1, 0, -1, -2, -3, -4, -5, -60},
                                                   {0, 0.3f, -0.3f, 2, -2, 4, -4, 0},
                                                   {0, 0, 0, 0, 0, 0, 0, 0},
                                                   {-9, 1, 2, 3, 4, 5, 6, 7}};
  const int64_t n = 12000, max_distance = 3000;
  for (const bool ssmax : {false, true}) {
    AttentionSpec spec = make_spec(ssmax);
    spec.bias.clear();
    for (const auto& values : buckets) spec.bias.push_back(bucket_bias(values, max_distance));
    const auto qkv = make_qkv(n, 16);
    const auto dense = run("auto", 2, spec, qkv, n, 1, 1, DType::kF32, false);
    const auto certified = run("auto", 2, spec, qkv, n, 1, 1, DType::kF32, true);
    for (int h = 0; h < kHeads; ++h) {
      reference::HeadParams head;
      head.encoding = PositionEncoding::kT5;
      head.ssmax = ssmax;
      head.seq_scale = static_cast<double>(spec.seq_scale[static_cast<size_t>(h)]);
      head.buckets.assign(buckets[static_cast<size_t>(h)].begin(), buckets[static_cast<size_t>(h)].end());
      head.max_distance = max_distance;
      const std::vector<double> all(qkv.begin(), qkv.end());
      const int kv = h / (kHeads / kKvHeads);
      const auto exact = reference::attention_row(head, n - 1, all.data() + (n - 1) * kWidth + h * kDim,
                                                  all.data() + (kHeads + kv) * kDim,
                                                  all.data() + (kHeads + kKvHeads + kv) * kDim, kDim, kWidth);
      for (int d = 0; d < kDim; ++d) {
        const auto at = static_cast<size_t>(h * kDim + d);
        EXPECT_NEAR(dense.out[at], exact.output[static_cast<size_t>(d)], 2e-5) << "head " << h;
        EXPECT_NEAR(certified.out[at], exact.output[static_cast<size_t>(d)], 2e-5 + 12 * 0x1p-20) << "head " << h;
      }
      EXPECT_LE(certified.counters[static_cast<size_t>(h)].left_out, 0x1p-20f);
    }
    EXPECT_LT(certified.counters[0].visited * 3, dense.counters[0].visited) << "a low tail need not be read";
    for (const DType dtype : {DType::kF16, DType::kI8}) {
      const auto whole = run("auto", 1, spec, qkv, n, 90, 90, dtype, true);
      const auto cut = run("auto", 2, spec, qkv, n, 90, 7, dtype, true, 0x1p-20f, 128);
      EXPECT_EQ(std::memcmp(whole.out.data(), cut.out.data(), whole.out.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace bam
