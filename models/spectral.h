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

// R_h: smallest distance beyond which keys hold less than epsilon of any query's softmax mass, for every context length
// up to max_positions; -1 when there is none.
int64_t static_reach(const AttentionSpec& spec, int head, double logit_bound, double epsilon, int64_t max_positions);

}  // namespace bam
