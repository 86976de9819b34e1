#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace bam {

// Z_h: an upper bound on |q . k| / sqrt(head_dim) for every pair of tokens the model can ever see. RMSNorm limits its
// output to |x| <= sqrt(hidden) * max|w|, so the largest singular values of the projections bound q and k.
//   wq: [head_dim, hidden], wk: [head_dim, hidden] rows of one query head and its KV head; norm: [hidden].
// Without rotation q . k = x' (Wq' Wk) y is bounded jointly, which is tighter.
double logit_bound(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm,
                   int64_t head_dim, int64_t hidden, bool rotated);

// The same where rows of normalised activations are rounded to codes of max|x| / 127 before they are multiplied. Rounding
// is not small beside large rows of small numbers: it can double a number of half a step.
double rounded_logit_bound(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm,
                           int64_t head_dim, int64_t hidden, bool rotated);

// The most that a key may move, as a share of its norm, when pages of this format store it.
double key_rounding(DType pages, int64_t head_dim);

// What happens to queries and keys besides exact arithmetic.
struct LogitRounding {
  bool coded_activations = false;  // as rounded_logit_bound() says
  double activations = 0;          // else: every number before the projections, relative to itself
  double queries = 0, keys = 0;    // a row, relative to its norm
};
// An upper bound on the logits that are computed. What rounding adds to q . k is a product of norms, in whatever direction,
// so it counts in shares of |q| |k| also where the joint bound is far smaller.
double computed_logit_bound(const std::vector<float>& wq, const std::vector<float>& wk, const std::vector<float>& norm,
                            int64_t head_dim, int64_t hidden, bool rotated, const LogitRounding& rounding);

// R_h: smallest distance beyond which keys hold less than epsilon of any query's softmax mass, for every context length
// up to max_positions; -1 when there is none.
int64_t static_reach(const AttentionSpec& spec, int head, double logit_bound, double epsilon, int64_t max_positions);

}  // namespace bam
