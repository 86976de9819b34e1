// Attention in integers: the same bits on every instruction set and in any cut, and as near to double arithmetic as its
// own roundings say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "tests/kernels/attention_subject.h"

namespace bam {
namespace {

using namespace attention_subject;  // NOLINT

RunResult run_int8(const std::string& isa, int threads, const AttentionSpec& spec, const std::vector<float>& qkv,
                   int64_t n, int64_t queries, int64_t at_once, DType dtype, bool certified, int page_size = 64) {
  return run(isa, threads, spec, qkv, n, queries, at_once, dtype, certified, 0x1p-20f, page_size, "int8");
}

bool same_bits(const RunResult& a, const RunResult& b) {
  return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(float)) == 0;
}

class Int8Attention : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SSMax, Int8Attention, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

TEST_P(Int8Attention, EveryLevelGivesTheSameBits) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 3000;
  const auto qkv = make_qkv(n, 21);
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    for (const bool certified : {true, false}) {
      const auto portable = run_int8("portable", 1, spec, qkv, n, 70, 70, dtype, certified);
      for (const char* isa : {"avx2", "avx512", "avx512vnni", "avx512bf16"}) {
        try {
          const auto other = run_int8(isa, 1, spec, qkv, n, 70, 70, dtype, certified);
          EXPECT_TRUE(same_bits(portable, other)) << isa << " " << dtype_name(dtype) << " certified " << certified;
          for (size_t h = 0; h < kHeads; ++h) EXPECT_EQ(portable.counters[h].visited, other.counters[h].visited) << isa;
        } catch (const UsageError&) {
          continue;  // this CPU lacks it
        }
      }
    }
  }
}

TEST_P(Int8Attention, SameBitsInAnyCutThreadCountAndPageSize) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 34000, queries = 150;  // three segments; the queries span several tiles
  const auto qkv = make_qkv(n, 22);
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    for (const bool certified : {true, false}) {
      const auto whole = run_int8("auto", 1, spec, qkv, n, queries, queries, dtype, certified);
      for (const auto& [threads, at_once, page] : {std::tuple{2, 1, 64}, {2, 37, 128}, {3, 150, 256}}) {
        const auto other = run_int8("auto", threads, spec, qkv, n, queries, at_once, dtype, certified, page);
        ASSERT_TRUE(same_bits(whole, other))
            << dtype_name(dtype) << " certified " << certified << " threads " << threads << " rows " << at_once;
      }
    }
  }
}

// A row's bytes are as fine as the keys it sees allow: what comes later in its tile, however large, must not matter.
TEST(Int8AttentionRows, LaterKeysDoNotMatter) {
  const AttentionSpec spec = make_spec(true);
  const int64_t n = 200;
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    auto qkv = make_qkv(n, 23);
    const auto backend = make_cpu_backend({.num_threads = 1, .attention_math = "int8"});
    const auto layer = backend->make_attention(spec);
    AttentionLayer* layers[] = {layer.get()};
    backend->reserve_positions(layers, n);
    Cache cache(*backend, n, dtype);
    std::vector<AttentionCounters> counters(kHeads);
    std::vector<float> alone(static_cast<size_t>(n * kHeads * kDim)), later(alone.size());
    for (int64_t i = 0; i < n; ++i) {
      // Every tenth value is a hundred times as large, and so is its key.
      for (int d = kHeads * kDim; d < kWidth && i % 10 == 9; ++d) qkv[static_cast<size_t>(i * kWidth + d)] *= 100;
      const SequenceRows row = cache.rows(i, 1);
      backend->write_and_attend(*layer, cache.view, {&row, 1}, {qkv.data() + i * kWidth, 1, kWidth}, {},
                                {alone.data() + i * kHeads * kDim, 1, kHeads * kDim}, counters);
    }
    const SequenceRows all = cache.rows(0, n);
    backend->attention(*layer, cache.view, {&all, 1}, {}, {qkv.data(), n, kWidth}, {}, {later.data(), n, kHeads * kDim},
                       counters);
    EXPECT_EQ(std::memcmp(alone.data(), later.data(), alone.size() * sizeof(float)), 0) << dtype_name(dtype);
  }
}

// Keys and values that int8 pages hold exactly: codes times a power of two, one code of each row at the end of the
// range.
std::vector<float> make_exact_qkv(int64_t n, uint32_t seed) {
  std::vector<float> qkv = make_qkv(n, seed);
  for (int64_t i = 0; i < n; ++i) {
    for (int part = 0; part < 2 * kKvHeads; ++part) {
      float* at = qkv.data() + i * kWidth + (kHeads + part) * kDim;
      const float step = part < kKvHeads ? 0x1p-6f : 0x1p-5f;
      for (int d = 0; d < kDim; ++d) at[d] = step * std::clamp(std::nearbyint(at[d] / step), -127.0f, 127.0f);
      at[i % kDim] = 127 * step;
    }
  }
  return qkv;
}

struct Derived {
  std::vector<double> out;        // with the query as its codes say, in double
  std::vector<double> tolerance;  // what rounding weights to bytes may change
  double query_change = 0;        // largest change of a logit by rounding the query
};

// One row from the definition, and how far the roundings of attention_int8-inl.h may carry it from there: a weight is
// off by less than one step, which is the largest weight of its tile times the largest value scale over 255, and by
// 2^-9 of itself.
Derived derive_row(const AttentionSpec& spec, const std::vector<float>& qkv, int64_t i, int head, bool round_query) {
  const float* q = qkv.data() + i * kWidth + head * kDim;
  const int kv = head / (kHeads / kKvHeads);
  const double c = spec.ssmax ? spec.seq_scale[static_cast<size_t>(head)] * std::log(static_cast<double>(i + 1)) : 1.0;
  double largest_q = 0;
  for (int d = 0; d < kDim; ++d) largest_q = std::max(largest_q, std::fabs(static_cast<double>(q[d])));
  const double step = largest_q / 127;
  Derived result;
  std::vector<double> logits, value_steps;
  for (int64_t j = 0; j <= i; ++j) {
    const float* k = qkv.data() + j * kWidth + (kHeads + kv) * kDim;
    double dot = 0, change = 0;
    for (int d = 0; d < kDim; ++d) {
      dot += (round_query ? step * std::nearbyint(q[d] / step) : static_cast<double>(q[d])) * k[d];
      change += 0.5 * step * std::fabs(static_cast<double>(k[d]));
    }
    const double scale = c / std::sqrt(static_cast<double>(kDim));
    const PriorParams& p = kPrior[head];
    logits.push_back(dot * scale - c * std::exp(p.alpha) * std::pow(static_cast<double>(i - j) + 1e-5, p.beta));
    result.query_change = std::max(result.query_change, change * scale);
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double l : logits) total += std::exp(l - top);
  result.out.resize(kDim);
  result.tolerance.resize(kDim);
  for (int64_t first = 0; first <= i; first += kTileKeys) {
    const int64_t end = std::min(first + kTileKeys, i + 1);
    const double tile_top = *std::max_element(logits.begin() + first, logits.begin() + end);
    for (int64_t j = first; j < end; ++j) {
      const double weight = std::exp(logits[static_cast<size_t>(j)] - top) / total;
      const float* v = qkv.data() + j * kWidth + (kHeads + kKvHeads + kv) * kDim;
      for (int d = 0; d < kDim; ++d) {
        const auto at = static_cast<size_t>(d);
        result.out[at] += weight * v[d];
        // All value scales are equal here. Weights' own errors count twice: above and below the line.
        const double steps = std::exp(tile_top - top) / total / 255;
        result.tolerance[at] += std::fabs(static_cast<double>(v[d])) * (steps + 2 * 0x1p-9 * weight);
      }
    }
  }
  return result;
}

TEST_P(Int8Attention, AsNearToDoubleArithmeticAsItsRoundingsSay) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 9011, queries = 3;
  const auto qkv = make_exact_qkv(n, 24);
  const auto dense = run_int8("auto", 2, spec, qkv, n, queries, queries, DType::kI8, false);
  const auto certified = run_int8("auto", 2, spec, qkv, n, queries, queries, DType::kI8, true);
  double error = 0, typical = 0;
  for (int h = 0; h < kHeads; ++h) {
    const double left_out = static_cast<double>(certified.counters[static_cast<size_t>(h)].left_out);
    EXPECT_LE(left_out, 0x1p-20);
    for (int64_t r = 0; r < queries; ++r) {
      const Derived rounded = derive_row(spec, qkv, n - queries + r, h, true);
      const Derived exact = derive_row(spec, qkv, n - queries + r, h, false);
      for (int d = 0; d < kDim; ++d) {
        const auto at = static_cast<size_t>((r * kHeads + h) * kDim + d), dim = static_cast<size_t>(d);
        EXPECT_NEAR(dense.out[at], rounded.out[dim], rounded.tolerance[dim] + 2e-5) << "head " << h << " row " << r;
        // What was left out had a share of left_out; no value is above 4.
        EXPECT_NEAR(certified.out[at], dense.out[at], 8 * left_out + 2e-5) << "head " << h;
        // Rounding the query changes logits by at most query_change, so weights by a factor of at most e^(2
        // query_change).
        EXPECT_NEAR(rounded.out[dim], exact.out[dim], 4 * std::expm1(2 * exact.query_change)) << "head " << h;
        error += std::pow(dense.out[at] - exact.out[dim], 2);
        typical += std::pow(exact.out[dim], 2);
      }
    }
  }
  EXPECT_LT(std::sqrt(error / typical), 0.01) << "and in practice far less than allowed";
}

// What a reach hides has next to no weight, and the bytes of what is seen are cut in the same way with and without it.
TEST_P(Int8Attention, ReachChangesNoByteOfWhatIsSeen) {
  AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 1030, queries = 200;  // the reach ends in the row's own tile or in the one before it
  auto qkv = make_qkv(n, 27);
  for (int64_t i = 0; i < n; i += 20) {  // now and then a larger value, which sets the step of its tile
    for (int d = (kHeads + kKvHeads) * kDim; d < kWidth; ++d) qkv[static_cast<size_t>(i * kWidth + d)] *= 5;
  }
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    const auto dense = run_int8("auto", 2, spec, qkv, n, queries, queries, dtype, false);
    spec.reach = {24, -1, -1, -1};
    const auto certified = run_int8("auto", 2, spec, qkv, n, queries, queries, dtype, true);
    spec.reach.clear();
    ASSERT_LE(certified.counters[0].left_out, 0x1p-20f);
    EXPECT_LT(certified.counters[0].visited, dense.counters[0].visited);
    for (int64_t r = 0; r < queries; ++r) {
      for (int d = 0; d < kDim; ++d) {
        const auto at = static_cast<size_t>(r * kHeads * kDim + d);
        ASSERT_NEAR(certified.out[at], dense.out[at], 1e-4) << dtype_name(dtype) << " row " << r;
      }
    }
  }
}

TEST_P(Int8Attention, CloseToFloat32OverTheSamePages) {
  const AttentionSpec spec = make_spec(GetParam());
  const int64_t n = 3000, queries = 64;
  const auto qkv = make_qkv(n, 25);
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    const auto floats = run("auto", 2, spec, qkv, n, queries, queries, dtype, true);
    const auto integers = run_int8("auto", 2, spec, qkv, n, queries, queries, dtype, true);
    double error = 0, total = 0;
    for (size_t i = 0; i < floats.out.size(); ++i) {
      error += std::pow(static_cast<double>(floats.out[i]) - integers.out[i], 2);
      total += std::pow(static_cast<double>(floats.out[i]), 2);
    }
    EXPECT_LT(std::sqrt(error / total), 0.015) << dtype_name(dtype);
    EXPECT_FALSE(same_bits(floats, integers)) << "another arithmetic";
  }
}

// Head dimensions that are no multiple of four or of sixteen, a window, and a query of zeros.
TEST(Int8AttentionRows, OddShapesAgreeAcrossLevelsAndWithFloat32) {
  for (const int head_dim : {2, 6, 50, 80, 256}) {
    const int64_t n = 300, width = 3 * head_dim;
    AttentionSpec spec;
    spec.num_heads = spec.num_kv_heads = 1;
    spec.head_dim = head_dim;
    spec.window = head_dim == 50 ? 100 : -1;
    std::mt19937 random(static_cast<uint32_t>(head_dim));
    std::normal_distribution<float> normal;
    std::vector<float> qkv(static_cast<size_t>(n * width));
    for (float& x : qkv) x = normal(random);
    std::fill_n(qkv.begin() + (n - 1) * width, head_dim, 0.0f);
    const auto attend = [&](const std::string& isa, const std::string& math, DType dtype) {
      const auto backend = make_cpu_backend({.num_threads = 1, .isa = isa, .attention_math = math});
      const auto layer = backend->make_attention(spec);
      KvCacheView view;
      view.layout = make_kv_layout(dtype, head_dim, 64);
      view.num_pages = 5;
      const auto memory = backend->allocate(5 * view.layout.page_bytes());
      view.base = static_cast<std::byte*>(memory->data());
      const int32_t table[5] = {4, 0, 3, 1, 2};
      std::vector<float> rows = qkv, out(static_cast<size_t>(n * head_dim));
      std::vector<AttentionCounters> counters(1);
      const SequenceRows all{table, 5, 0, n, 0};
      backend->write_and_attend(*layer, view, {&all, 1}, {rows.data(), n, 3 * head_dim}, {}, {out.data(), n, head_dim},
                                counters);
      return out;
    };
    for (const DType dtype : {DType::kI8, DType::kI4}) {
      const auto floats = attend("auto", "f32", dtype), integers = attend("auto", "int8", dtype);
      EXPECT_EQ(attend("portable", "int8", dtype), integers) << head_dim << " " << dtype_name(dtype);
      double worst = 0;
      for (size_t i = 0; i < floats.size(); ++i) worst = std::max<double>(worst, std::fabs(floats[i] - integers[i]));
      EXPECT_LT(worst, 0.1) << head_dim << " " << dtype_name(dtype);
      EXPECT_GT(worst, 0);
    }
  }
}

// A query that is no number must not become one.
TEST(Int8AttentionRows, NoNumberStaysNone) {
  const AttentionSpec spec = make_spec(true);
  const int64_t n = 1000;
  auto qkv = make_qkv(n, 26);
  qkv[static_cast<size_t>((n - 1) * kWidth + 3)] = std::numeric_limits<float>::quiet_NaN();
  qkv[static_cast<size_t>((n - 1) * kWidth + kDim + 3)] = std::numeric_limits<float>::infinity();
  const auto result = run_int8("auto", 1, spec, qkv, n, 2, 2, DType::kI8, true);
  for (int d = 0; d < kDim; ++d) {
    const auto at = static_cast<size_t>(kHeads * kDim + d);
    EXPECT_TRUE(std::isnan(result.out[at]));
    EXPECT_TRUE(std::isnan(result.out[at + kDim]));
    EXPECT_FALSE(std::isnan(result.out[at + 2 * kDim])) << "other heads go on";
    EXPECT_FALSE(std::isnan(result.out[static_cast<size_t>(d)])) << "other rows go on";
  }
}

TEST(Int8AttentionRows, IsAnArithmeticOfItsOwn) {
  const auto floats = make_cpu_backend({.num_threads = 1}),
             integers = make_cpu_backend({.num_threads = 1, .attention_math = "int8"});
  EXPECT_NE(floats->numerics(), integers->numerics());
  EXPECT_GT(integers->rounding(64).queries, floats->rounding(64).queries);
  EXPECT_THROW(make_cpu_backend({.num_threads = 1, .attention_math = "int4"}), UsageError);
}

}  // namespace
}  // namespace bam
