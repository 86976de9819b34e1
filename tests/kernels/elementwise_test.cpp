// The step's elementwise functions of every instruction set against double arithmetic; swiglu also shows the
// exponential that attention uses.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/backend.h"

namespace bam {
namespace {

class ElementwiseTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      backend_ = make_cpu_backend({.num_threads = 2, .isa = GetParam()});
    } catch (const UsageError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  // swiglu of `gates` with up = 1.
  std::vector<float> silu(const std::vector<float>& gates) const {
    std::vector<float> in = gates, out(gates.size());
    in.resize(2 * gates.size(), 1.0f);
    const auto width = static_cast<int64_t>(gates.size());
    backend_->swiglu({in.data(), 1, 2 * width}, {out.data(), 1, width});
    return out;
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(ElementwiseTest, TheExponentialIsAccurateAndNeverSubnormal) {
  std::vector<float> gates;
  for (double g = -100; g < 0; g += 0.00037) gates.push_back(static_cast<float>(g));
  for (int i = 1; i < 200; ++i) {  // between two powers of two, where rounding goes either way
    gates.push_back(static_cast<float>(-std::log(2.0) * (0.5 * i)));
  }
  const double slope = std::string(GetParam()) == "portable" ? 8e-8 : 2e-8;
  const auto out = silu(gates);
  for (size_t i = 0; i < gates.size(); ++i) {
    const double g = gates[i], e = std::exp(g), exact = g * e / (1 + e);
    if (g <= -87.3) {
      ASSERT_EQ(out[i], 0) << g;
    } else {
      // One rounding each for the sum, the quotient and the product come on top of the exponential's own error.
      ASSERT_NEAR(out[i] / exact, 1, 3e-7 - slope * g + 2e-7) << g;
      ASSERT_TRUE(std::isnormal(out[i])) << g;
    }
  }
}

TEST_P(ElementwiseTest, LargeGatesPass) {
  const std::vector<float> gates = {0.0f, 1e-30f, 3.0f, 50.0f, 1e4f, 3e38f, -1e4f, -3e38f};
  const auto out = silu(gates);
  for (size_t i = 0; i < gates.size(); ++i) {
    const double g = gates[i], exact = g / (1 + std::exp(-g));
    ASSERT_NEAR(out[i], exact, 4e-7 * std::fabs(exact)) << g;
  }
}

TEST_P(ElementwiseTest, RmsNormAgreesWithDoubleArithmetic) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int64_t hidden : {16, 31, 48, 768, 1000}) {
    const int64_t rows = 19;
    std::vector<float> x(static_cast<size_t>(rows * hidden)), weight(static_cast<size_t>(hidden)), out(x.size());
    for (float& value : x) value = normal(random);
    for (float& value : weight) value = normal(random);
    const auto w = backend_->make_vector(weight);
    backend_->rms_norm({x.data(), rows, hidden}, *w, 1e-5f, {out.data(), rows, hidden});
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t d = 0; d < hidden; ++d) squares += std::pow(x[static_cast<size_t>(r * hidden + d)], 2.0);
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
      for (int64_t d = 0; d < hidden; ++d) {
        const auto at = static_cast<size_t>(r * hidden + d);
        const double exact = double{x[at]} * inverse * double{weight[static_cast<size_t>(d)]};
        ASSERT_NEAR(out[at], exact, 1e-6 * std::fabs(exact)) << hidden << " " << r << " " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, ::testing::Values("portable", "avx2", "avx512", "avx512vnni"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace bam
