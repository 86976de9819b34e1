// The positional part of every attention logit, written once for host and device.
//
//   logit(i, j) = (q_i . k_j) * content_scale(i) + bias(i - j) * bias_scale(i)
//
// with distance d = i - j >= 0, n_i keys visible to query i and c_i = s_h * ln(n_i) under SSMax.
#pragma once

#include <cmath>

#include "kernels/position.h"

#ifdef __CUDACC__
#define BAM_HOST_DEVICE __host__ __device__
#else
#define BAM_HOST_DEVICE
#endif

namespace bam {

// The prior's parameters of one head as stored in the checkpoint.
struct PriorParams {
  double alpha = 0;     // `scale`
  double beta = 0;      // `shape`
  double theta_mu = 0;  // `loc`
};

// Far below any logit that could matter, far above the point where float32 products overflow.
inline constexpr double kPriorFloor = -1e30;

// B at distance d = i - j. T = double on the host, where tables are built; float on a device.
template <typename T>
BAM_HOST_DEVICE inline T prior_bias(PriorForm form, T exp_alpha, T beta, T mu, T eps, T distance) {
  // exp_alpha and mu are passed ready-made: j - i - mu = -(distance + mu).
  const T offset = distance + mu < T(0) ? -(distance + mu) : distance + mu;
  T bias;
  if (form == PriorForm::kScaleOutside) {
    bias = -exp_alpha * static_cast<T>(pow(offset + eps, beta));
  } else {
    bias = -static_cast<T>(pow(offset * exp_alpha + eps, beta));
  }
  return bias < T(kPriorFloor) ? T(kPriorFloor) : bias;
}

// mu = exp(theta_mu) - exp(-theta_mu)
BAM_HOST_DEVICE inline double prior_mu(double theta_mu) { return exp(theta_mu) - exp(-theta_mu); }

// Number of keys that query i may see; window < 0 means all of them.
BAM_HOST_DEVICE inline long long visible_keys(long long i, long long window) {
  return window >= 0 && i > window ? window + 1 : i + 1;
}

// ALiBi: heads a power of two get a geometric series; others take the series of the next lower power of two p, then
// every second slope of the series for 2p.
inline double alibi_slope(int head, int num_heads) {
  int lower = 1;
  while (2 * lower <= num_heads) lower *= 2;
  const bool extra = head >= lower;
  const int k = extra ? 2 * (head - lower) : head;
  const int n = extra ? 2 * lower : lower;
  const double start = exp2(-exp2(-(log2(static_cast<double>(n)) - 3)));
  return pow(start, k + 1);
}

// The two factors of the formula above for one query row.
struct RowScales {
  float content;  // multiplies q . k
  float bias;     // multiplies B
};

BAM_HOST_DEVICE inline RowScales row_scales(bool ssmax, bool ssmax_scales_bias, double seq_scale, long long num_visible,
                                            int head_dim) {
  const double inv_sqrt = 1.0 / sqrt(static_cast<double>(head_dim));
  const double c = ssmax ? seq_scale * ::log(static_cast<double>(num_visible)) : 1.0;
  return {static_cast<float>(c * inv_sqrt), static_cast<float>(ssmax && ssmax_scales_bias ? c : 1.0)};
}

}  // namespace bam
