#include "models/spectral.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace bam {
namespace {

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The largest |q.k|/sqrt(d) found by alternating maximisation over normalised inputs: a lower bound on the supremum.
double attained(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm, int64_t d,
                int64_t hidden) {
  std::vector<double> x(static_cast<size_t>(hidden)), y(static_cast<size_t>(hidden), 1.0);
  const auto project = [&](const std::vector<float>& w, const std::vector<double>& in, std::vector<double>& out) {
    out.assign(static_cast<size_t>(d), 0);
    for (int64_t r = 0; r < d; ++r) {
      for (int64_t c = 0; c < hidden; ++c) {
        out[static_cast<size_t>(r)] += static_cast<double>(w[static_cast<size_t>(r * hidden + c)]) *
                                       norm[static_cast<size_t>(c)] * in[static_cast<size_t>(c)];
      }
    }
  };
  const auto best_input = [&](const std::vector<float>& w, const std::vector<double>& target, std::vector<double>& in) {
    double length = 0;
    for (int64_t c = 0; c < hidden; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < d; ++r)
        sum += static_cast<double>(w[static_cast<size_t>(r * hidden + c)]) * target[static_cast<size_t>(r)];
      in[static_cast<size_t>(c)] = sum * norm[static_cast<size_t>(c)];
      length += in[static_cast<size_t>(c)] * in[static_cast<size_t>(c)];
    }
    for (double& value : in) value *= std::sqrt(static_cast<double>(hidden) / length);
  };
  std::vector<double> q, k;
  for (int i = 0; i < 50; ++i) {
    project(wk, y, k);
    best_input(wq, k, x);
    project(wq, x, q);
    best_input(wk, q, y);
  }
  project(wk, y, k);
  double dot = 0;
  for (int64_t r = 0; r < d; ++r) dot += q[static_cast<size_t>(r)] * k[static_cast<size_t>(r)];
  return std::fabs(dot) / std::sqrt(static_cast<double>(d));
}

// One large number, all others just above one and a half steps of its code: rounding makes the row longer, and weights that
// look along the rounded row see all of it.
TEST(Spectral, RoundedActivationsStayBelowTheirBound) {
  for (const int64_t hidden : {64, 768, 4096}) {
    for (const bool uneven : {false, true}) {
      std::vector<double> x(static_cast<size_t>(hidden), 1.5001), rounded(static_cast<size_t>(hidden), 2);
      x[0] = rounded[0] = 127;
      std::vector<float> norm(static_cast<size_t>(hidden), 1.0f), w(static_cast<size_t>(hidden));
      if (uneven) norm.back() = 0.25f, x.back() *= 0.25, rounded.back() = 0;
      double before = 0, dot = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        before += x[i] * x[i] / (static_cast<double>(norm[i]) * norm[i]);
        w[i] = static_cast<float>(rounded[i] / 127);
        dot += static_cast<double>(w[i]) * rounded[i];
      }
      const double logit = dot * dot * static_cast<double>(hidden) / before;  // head_dim 1, |normalised row|^2 = hidden
      const double exact = logit_bound(w, w, norm, 1, hidden, false);
      const double bound = rounded_logit_bound(w, w, norm, 1, hidden, false);
      EXPECT_LE(logit, bound) << hidden;
      EXPECT_LE(bound, 1.7 * exact) << hidden;
      if (hidden >= 4096) {
        EXPECT_GT(logit, 1.01 * 1.05 * exact) << "a margin of 5 % is too small";
      }
      if (!uneven) {
        EXPECT_GT(logit, 0.95 * bound) << "it is nearly reached";
      }
    }
  }
}

// A key as a page gives it back.
std::vector<double> stored_key(DType dtype, const std::vector<float>& key) {
  const auto dim = static_cast<int>(key.size());
  const auto backend = make_cpu_backend({.num_threads = 1});
  AttentionSpec spec;
  spec.num_heads = spec.num_kv_heads = 1;
  spec.head_dim = dim;
  const auto layer = backend->make_attention(spec);
  KvCacheView view{.num_pages = 1, .layout = make_kv_layout(dtype, dim, kTileKeys)};
  const auto memory = backend->allocate(view.layout.page_bytes());
  view.base = static_cast<std::byte*>(memory->data());
  const int32_t table[] = {0};
  const SequenceRows row{table, 1, 0, 1, 0};
  std::vector<float> qkv(3 * key.size());
  std::ranges::copy(key, qkv.begin() + dim);
  backend->write_kv(*layer, view, {&row, 1}, {qkv.data(), 1, 3 * dim});
  const auto* scales = reinterpret_cast<const uint16_t*>(view.base + view.layout.k_scale_offset);
  const std::byte* codes = view.base + view.layout.k_offset;
  std::vector<double> result;
  for (int d = 0; d < dim; ++d) {  // slot 0 is the first of its sixteen
    if (dtype == DType::kF16) {
      result.push_back(f16_to_f32(reinterpret_cast<const uint16_t*>(codes)[d * kPanelKeys]));
    } else if (dtype == DType::kI8) {
      result.push_back(f16_to_f32(scales[0]) * static_cast<int8_t>(codes[d * kPanelKeys]));
    } else {
      const int code = static_cast<int>(codes[d * kPanelKeys / 2]) & 15;
      result.push_back(f16_to_f32(scales[kTileKeys]) + double{f16_to_f32(scales[0])} * code);
    }
  }
  return result;
}

double moved(DType dtype, const std::vector<float>& key) {
  const std::vector<double> stored = stored_key(dtype, key);
  double error = 0, norm = 0;
  for (size_t d = 0; d < key.size(); ++d) {
    error += (stored[d] - key[d]) * (stored[d] - key[d]);
    norm += double{key[d]} * key[d];
  }
  return std::sqrt(error / norm);
}

TEST(Spectral, NoKeyMovesFurtherThanItsPagesAllow) {
  for (const size_t dim : {size_t{32}, size_t{64}, size_t{128}}) {
    const auto d = static_cast<int64_t>(dim);
    for (const DType dtype : {DType::kF16, DType::kI8, DType::kI4}) {
      for (uint32_t seed = 0; seed < 50; ++seed) {
        std::vector<float> key = random_floats(dim, seed);
        for (size_t i = 0; i < dim && seed % 3 == 1; ++i) key[i] *= std::pow(10.0f, -static_cast<float>(i % 5));
        for (size_t i = 0; i < dim && seed % 3 == 2; ++i) key[i] += 20;
        EXPECT_LE(moved(dtype, key), key_rounding(dtype, d)) << dtype_name(dtype) << " " << seed;
      }
    }
    // One large number beside numbers that are nearly half a step; the ends of a range and numbers between two codes.
    std::vector<float> key(dim, 0.499f);
    key[0] = 127;
    EXPECT_LE(moved(DType::kI8, key), key_rounding(DType::kI8, d));
    EXPECT_GT(moved(DType::kI8, key), 0.9 * key_rounding(DType::kI8, d)) << "it is nearly reached";
    key.assign(dim, 0);
    key[0] = 1, key[1] = -1;
    EXPECT_LE(moved(DType::kI4, key), key_rounding(DType::kI4, d));
    EXPECT_GT(moved(DType::kI4, key), 0.9 * key_rounding(DType::kI4, d)) << "it is nearly reached";
  }
}

// Queries at right angles to every key have no logit, but their keys are rounded: what comes of that is not small beside
// nothing, so no factor on the bound would cover it.
TEST(Spectral, RoundedKeysCountWhereExactLogitsAreNone) {
  constexpr int64_t kDim = 64, kWide = 64;
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    std::vector<float> key(kDim, dtype == DType::kI8 ? 0.499f : 0.0f);
    key[0] = 127, key[1] = dtype == DType::kI8 ? 0.499f : -127.0f;
    const std::vector<double> stored = stored_key(dtype, key);
    std::vector<double> query(kDim);  // along the error, less its part along the key
    double along = 0, squares = 0, length = 0;
    for (size_t d = 0; d < kDim; ++d) {
      query[d] = stored[d] - key[d];
      along += query[d] * key[d];
      squares += double{key[d]} * key[d];
    }
    std::vector<float> wq(kDim * kWide), wk(kDim * kWide), norm(kWide, 1.0f);
    double logit = 0;
    for (size_t d = 0; d < kDim; ++d) {
      query[d] -= along / squares * key[d];
      length = std::max(length, std::fabs(query[d]));
    }
    for (size_t d = 0; d < kDim; ++d) {  // both look at the first number of the normalised row, which is at most 8
      wq[d * kWide] = static_cast<float>(query[d] / length);
      wk[d * kWide] = key[d] / 8;
      logit += 8 * query[d] / length * stored[d] / 8;
    }
    const double exact = logit_bound(wq, wk, norm, kDim, kWide, false);
    const double bound = computed_logit_bound(wq, wk, norm, kDim, kWide, false, {.keys = key_rounding(dtype, kDim)});
    EXPECT_GT(std::fabs(logit), 10 * exact + 0.01) << dtype_name(dtype);
    EXPECT_LE(std::fabs(logit), bound) << dtype_name(dtype);
    EXPECT_GT(std::fabs(logit), 0.1 * bound) << dtype_name(dtype);
  }
}

TEST(Spectral, LogitBoundHoldsAndIsTight) {
  for (const auto& [d, hidden] : {std::pair<int64_t, int64_t>{8, 24}, {32, 128}, {48, 96}}) {
    const auto wq = random_floats(static_cast<size_t>(d * hidden), 1),
               wk = random_floats(static_cast<size_t>(d * hidden), 2);
    const auto norm = random_floats(static_cast<size_t>(hidden), 3);
    const double joint = logit_bound(wq, wk, norm, d, hidden, false),
                 separate = logit_bound(wq, wk, norm, d, hidden, true);
    const double found = attained(wq, wk, norm, d, hidden);
    EXPECT_GE(joint, found * (1 - 1e-9));
    EXPECT_LE(joint, found * 1.02) << "the bound should be within two per cent of what can be reached";
    EXPECT_GE(separate, joint * (1 - 1e-9));
  }
}

AttentionSpec one_head(double alpha, double beta, double theta_mu, float s) {
  AttentionSpec spec;
  spec.num_heads = spec.num_kv_heads = 1;
  spec.head_dim = 32;
  spec.ssmax = true;
  spec.seq_scale = {s};
  spec.bias = {power_bias(PriorForm::kScaleOutside, {alpha, beta, theta_mu}, 1e-5, true, static_cast<double>(s))};
  return spec;
}

TEST(Spectral, ReachSatisfiesItsDefinitionAndIsMinimal) {
  const double z = 3.0, epsilon = 0x1p-20;
  for (const double beta : {0.4, 0.7, 1.0, 1.3}) {
    const AttentionSpec spec = one_head(0.3, beta, 0, 0.5f);
    const int64_t reach = static_reach(spec, 0, z, epsilon, 1 << 20);
    ASSERT_GT(reach, 0);
    const auto mass_ok = [&](int64_t d, int64_t n) {
      const double c = 0.5 * std::log(static_cast<double>(n));
      const double b0 = -std::exp(0.3) * std::pow(1e-5, beta),
                   bd = -std::exp(0.3) * std::pow(static_cast<double>(d) + 1e-5, beta);
      return c * (2 * z + bd - b0) < std::log(epsilon) - std::log(static_cast<double>(n));
    };
    for (const int64_t n : {reach + 1, reach + 100, int64_t{1} << 19, int64_t{1} << 20}) {
      if (n > reach) {
        EXPECT_TRUE(mass_ok(reach, n)) << beta << " " << n;
      }
    }
    EXPECT_FALSE(mass_ok(reach * 99 / 100 - 1, reach * 99 / 100)) << "not much larger than needed";
  }
}

TEST(Spectral, NoReachWithoutDecay) {
  EXPECT_EQ(static_reach(one_head(0, 0, 0, 1), 0, 1, 1e-6, 1 << 20), -1);
  EXPECT_EQ(static_reach(one_head(0, -0.5, 0, 1), 0, 1, 1e-6, 1 << 20), -1);
  EXPECT_EQ(static_reach(one_head(0, 1, 0, -1), 0, 1, 1e-6, 1 << 20), -1);
  EXPECT_EQ(static_reach(one_head(-20, 0.3, 0, 1), 0, 1, 1e-6, 1 << 20), -1);
}

// A relative bias is constant from some distance on: a head can be proved never to look further only if that constant
// is low enough, and then no further than the first distance from which on every one is.
TEST(Spectral, ReachOfARelativeBias) {
  const double z = 3.0, epsilon = 0x1p-20;
  const int64_t n = 1 << 20;
  for (const bool ssmax : {false, true}) {
    AttentionSpec spec = one_head(0, 1, 0, 0.2f);
    spec.ssmax = ssmax;
    const auto reach = [&](const std::vector<float>& buckets) {
      spec.bias = {bucket_bias(buckets, 64)};
      return static_reach(spec, 0, z, epsilon, n);
    };
    EXPECT_EQ(reach({0, -90, -90, -90, -90, -90, -90, -10}), -1) << "the tail never ends";
    // Distances 0 1 2 3 | 4-7 | 8-15 | 16-31 | 32 and more.
    EXPECT_EQ(reach({0, -90, -90, 0, 0, -90, 0, -90}), 32);
    EXPECT_EQ(reach({0, -90, -90, 0, 0, -90, -90, -90}), 8) << "a bucket before the last one is proved, too";
    EXPECT_EQ(reach({0, -90, -90, -90, -90, -90, -90, -90}), 1);
    // Exactly: 2 z c + b_last - b_0 < ln eps - ln n at the longest context.
    const double c = ssmax ? static_cast<double>(0.2f) * std::log(static_cast<double>(n)) : 1.0;
    const double edge = std::log(epsilon) - std::log(static_cast<double>(n)) - 2 * z * c;
    EXPECT_EQ(reach({0, 0, 0, 0, 0, 0, 0, static_cast<float>(edge * 1.001)}), 32);
    EXPECT_EQ(reach({0, 0, 0, 0, 0, 0, 0, static_cast<float>(edge * 0.999)}), -1);
  }
}

TEST(Spectral, ReachOfAWindowIsTheWindow) {
  AttentionSpec spec = one_head(0, 1, 0, 1);
  spec.window = 100;
  EXPECT_EQ(static_reach(spec, 0, 1e9, 1e-6, 1 << 20), 100);
}

}  // namespace
}  // namespace bam
