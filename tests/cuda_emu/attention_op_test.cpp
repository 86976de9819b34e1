// Writing K and V and attending to them on the emulated device, against float64 arithmetic that models the rounding of
// operands and of the cache and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "tests/cuda_emu/attention_test_support.h"
#include "tests/reference/oracle.h"

namespace bam {
namespace {

using cuda_test::Case;
using cuda_test::make_cuda;
using cuda_test::make_qkv;
using cuda_test::make_spec;
using cuda_test::rounded;
using cuda_test::run;

reference::HeadParams head_params(const Case& test, const AttentionSpec& spec, int head) {
  reference::HeadParams params;
  params.encoding = test.encoding;
  params.ssmax = spec.ssmax;
  params.seq_scale = spec.ssmax ? static_cast<double>(spec.seq_scale[static_cast<size_t>(head)]) : 1.0;
  params.ssmax_prior = test.ssmax_prior;
  params.prior_form = test.form;
  if (test.encoding == PositionEncoding::kBam) {
    const PriorParams& prior = test.prior_of(head);
    params.theta_alpha = prior.alpha;
    params.theta_beta = prior.beta;
    params.theta_mu = prior.theta_mu;
  }
  if (test.encoding == PositionEncoding::kAlibi)
    params.slope = reference::alibi_slopes(spec.num_heads)[static_cast<size_t>(head)];
  if (test.encoding == PositionEncoding::kT5) {
    const std::vector<float> buckets = test.buckets_of(head);
    params.buckets.assign(buckets.begin(), buckets.end());
    params.max_distance = cuda_test::kT5Distance;
  }
  params.sliding_window = spec.window;
  return params;
}

// q | k | v rows as the operands hold them, after rotation and after the cache's rounding.
struct Exact {
  std::vector<double> q, k, v;  // [n][heads or kv_heads][head_dim]
};

// float16 inputs hit exact ties of the quantiser, where float64 may round the other way: float32 as in the cache.
void round_to_int8(double* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(static_cast<float>(x[i])));
  uint16_t bits = f32_to_f16(largest / 127.0f);
  if (f16_to_f32(bits) * 127.0f < largest) ++bits;
  const float scale = f16_to_f32(bits), inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    x[i] =
        static_cast<double>(scale) * std::clamp(std::nearbyintf(static_cast<float>(x[i]) * inverse), -127.0f, 127.0f);
  }
}

Exact exact_inputs(const Case& test, const AttentionSpec& spec, const std::vector<float>& qkv) {
  const int64_t width = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim;
  reference::Oracle::KvRounding rounding;
  if (test.kv == DType::kI8) {
    rounding = [](double* x, int64_t n, bool) { round_to_int8(x, n); };
  } else {
    rounding = reference::kv_rounding(test.kv);
  }
  Exact exact;
  for (int64_t i = 0; i < test.tokens; ++i) {
    for (int h = 0; h < test.heads + 2 * test.kv_heads; ++h) {
      const float* from = qkv.data() + i * width + int64_t{h} * test.head_dim;
      std::vector<double> x(from, from + test.head_dim);
      const bool is_value = h >= test.heads + test.kv_heads;
      if (test.rotates() && !is_value) {
        reference::rotate(x.data(), test.head_dim, i, spec.rope_theta, spec.rope_style);
        for (double& value : x) value = rounded(static_cast<float>(value), test.operand);
      }
      if (h >= test.heads && rounding) rounding(x.data(), test.head_dim, !is_value);
      std::vector<double>& to = h < test.heads ? exact.q : (is_value ? exact.v : exact.k);
      to.insert(to.end(), x.begin(), x.end());
    }
  }
  return exact;
}

// Rounded weights and outputs: a few units of the coarser format times the size of values; float32 sums besides.
double tolerance(const Case& test) {
  const bool tensor = test.operand != DType::kF32;
  const double products = tensor ? std::max(cuda_test::unit(test.operand), cuda_test::unit(test.kv)) : 0;
  // Values of 8 bits are rounded once more when they get their scale.
  const bool scaled = test.kv == DType::kI8 || test.kv == DType::kFp8;
  return (scaled ? 6 : 4) * products + 3e-5;
}

class AttentionOp : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionOp, AgreesWithDoubleArithmetic) {
  const Case& test = GetParam();
  const AttentionSpec spec = make_spec(test);
  const std::vector<float> qkv = make_qkv(test, 3);
  const auto backend = make_cuda(test.operand);
  const std::vector<float> got = run(*backend, test, spec, qkv, test.chunk, {.certified = false});
  const Exact exact = exact_inputs(test, spec, qkv);
  const int group = test.heads / test.kv_heads;
  double worst = 0;
  for (int64_t i = 0; i < test.tokens; ++i) {
    for (int h = 0; h < test.heads; ++h) {
      const int64_t kv_offset = int64_t{h / group} * test.head_dim;
      const auto row =
          reference::attention_row(head_params(test, spec, h), i, exact.q.data() + (i * test.heads + h) * test.head_dim,
                                   exact.k.data() + kv_offset, exact.v.data() + kv_offset, test.head_dim,
                                   int64_t{test.kv_heads} * test.head_dim);
      for (int d = 0; d < test.head_dim; ++d) {
        const float value = got[static_cast<size_t>((i * test.heads + h) * test.head_dim + d)];
        ASSERT_FALSE(std::isnan(value)) << "position " << i << " head " << h << " dim " << d;
        worst = std::max(worst, std::fabs(value - row.output[static_cast<size_t>(d)]));
      }
    }
  }
  EXPECT_LT(worst, tolerance(test));
  EXPECT_GT(worst, 0) << "float32 cannot be exact";
}

// int8 logits are computed in units of a query's largest component, times its factor: a factor may be nothing or negative, a
// query nothing at all, and one that is not a number must show.
TEST(Int8Queries, MayBeNothingNegativeOrNotANumber) {
  for (const int64_t chunk : {1, 60}) {
    Case test{.name = "special", .kv = DType::kI8, .head_dim = 64, .heads = 4, .kv_heads = 1, .tokens = 60};
    test.chunk = chunk;
    AttentionSpec spec = make_spec(test);
    spec.seq_scale = {0.0f, -0.4f, 1e-30f, 0.5f};
    std::vector<float> qkv = make_qkv(test, 7);
    const int64_t width = int64_t{test.heads + 2} * test.head_dim, dim = test.head_dim;
    for (int64_t d = 0; d < dim; ++d) qkv[static_cast<size_t>(50 * width + 3 * dim + d)] = 0;  // head 3 of row 50
    qkv[static_cast<size_t>(55 * width + 3 * dim + 5)] = std::nanf("");                        // head 3 of row 55
    const auto backend = make_cuda(test.operand);
    const std::vector<float> got = run(*backend, test, spec, qkv, test.chunk, {.certified = false});
    const Exact exact = exact_inputs(test, spec, qkv);
    for (int64_t i = 0; i < test.tokens; ++i) {
      for (int h = 0; h < test.heads; ++h) {
        const bool broken = i == 55 && h == 3;
        const auto row = broken ? reference::AttentionRow{}
                                : reference::attention_row(head_params(test, spec, h), i,
                                                           exact.q.data() + (i * test.heads + h) * dim, exact.k.data(),
                                                           exact.v.data(), dim, dim);
        for (int64_t d = 0; d < dim; ++d) {
          const float value = got[static_cast<size_t>((i * test.heads + h) * dim + d)];
          ASSERT_EQ(std::isnan(value), broken) << "row " << i << " head " << h;
          if (!broken) {
            EXPECT_NEAR(value, row.output[static_cast<size_t>(d)], tolerance(test)) << i << " " << h;
          }
        }
      }
    }
  }
}

std::vector<Case> formats() {
  std::vector<Case> cases;
  const auto add = [&](Case test) {
    test.name = std::string(dtype_name(test.operand)) + "_kv_" + std::string(dtype_name(test.kv)) + "_dim" +
                std::to_string(test.head_dim);
    cases.push_back(test);
  };
  // Tensor cores: every cache format and head size; 5 and 7 tiles of 16 dims run in the next larger kernel.
  for (const DType kv : {DType::kF16, DType::kBF16, DType::kI8, DType::kFp8}) {
    for (const int dim : {32, 48, 64, 80, 96, 112, 128}) {
      Case test{.kv = kv, .head_dim = dim};
      if (dim > 64) test.tokens = 97, test.heads = 2, test.kv_heads = 1;
      add(test);
    }
  }
  add({.operand = DType::kBF16, .kv = DType::kBF16, .head_dim = 48});
  add({.operand = DType::kBF16, .kv = DType::kF16, .head_dim = 64});
  add({.operand = DType::kBF16, .kv = DType::kI8, .head_dim = 16});
  add({.operand = DType::kBF16, .kv = DType::kFp8, .head_dim = 22});
  add({.kv = DType::kF16, .head_dim = 18});
  // int8 has kernels of its own for blocks of up to 8 and up to 16 rows.
  for (const int dim : {16, 48, 64, 80, 112, 128}) {
    for (const int chunk : {1, 2}) {
      Case test{.kv = DType::kI8, .head_dim = dim, .heads = 8, .kv_heads = 1, .tokens = 70, .chunk = chunk};
      test.name = "rows_" + std::to_string(8 * chunk) + "_kv_int8_dim" + std::to_string(dim);
      cases.push_back(test);
    }
  }
  // The plain path.
  for (const DType kv : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI4, DType::kFp8}) {
    add({.operand = DType::kF32, .kv = kv, .head_dim = 48, .tokens = 131});
  }
  add({.operand = DType::kF16, .kv = DType::kI4, .head_dim = 32, .tokens = 66});
  add({.operand = DType::kF16, .kv = DType::kF16, .head_dim = 160, .heads = 2, .kv_heads = 1, .tokens = 66});
  add({.operand = DType::kF32, .kv = DType::kF32, .head_dim = 128, .heads = 2, .kv_heads = 2, .tokens = 70});
  return cases;
}

std::vector<Case> variants() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, Case test) {
    for (const DType kv : {DType::kF16, DType::kF32, DType::kI8, DType::kFp8}) {
      test.name = std::string(name) + "_" + std::string(dtype_name(kv));
      test.operand = kv == DType::kF32 ? DType::kF32 : DType::kF16;
      test.kv = kv;
      cases.push_back(test);
    }
  };
  add("bam", {.ssmax = false});
  add("bam_ssmax_content_only", {.ssmax_prior = false});
  add("bam_scale_inside", {.ssmax = false, .form = PriorForm::kScaleInside});
  add("alibi", {.encoding = PositionEncoding::kAlibi, .ssmax = false});
  add("alibi_ssmax", {.encoding = PositionEncoding::kAlibi});
  add("t5", {.encoding = PositionEncoding::kT5, .ssmax = false});
  add("t5_ssmax", {.encoding = PositionEncoding::kT5});
  add("nope_ssmax", {.encoding = PositionEncoding::kNope});
  add("rope", {.encoding = PositionEncoding::kRope, .ssmax = false});
  add("rope_local_ssmax", {.encoding = PositionEncoding::kRopeLocal});
  add("one_key_head_for_all", {.heads = 6, .kv_heads = 1, .tokens = 83});
  add("no_sharing", {.heads = 2, .kv_heads = 2, .tokens = 200, .chunk = 200, .page_size = 128});
  add("token_by_token", {.tokens = 67, .chunk = 1});
  // Logits down to minus a million: nothing may overflow or cancel out.
  add("huge_logits", {.prior = {{3, -1, 0}, {2.3, -1, 0.5}, {0, 1.5, 0}, {6, -0.9, 0}}});
  return cases;
}

const auto kCaseName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Formats, AttentionOp, ::testing::ValuesIn(formats()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Variants, AttentionOp, ::testing::ValuesIn(variants()), kCaseName);

}  // namespace
}  // namespace bam
