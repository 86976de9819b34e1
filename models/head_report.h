// What the positional prior of a head means: its class, how large its logits can get, how far it can see.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/rounding.h"
#include "models/model_config.h"
#include "models/weights.h"

namespace bam {

struct AttentionSpec;

// For `bam inspect`, /v1/prior and page freeing.
struct HeadReport {
  int layer = 0, head = 0;
  double alpha = 0, beta = 0, theta_mu = 0, seq_scale = 1;
  double logit_bound = 0;  // Z_h: |q.k|/sqrt(head_dim) never exceeds it
  int64_t reach = -1;      // R_h in keys, for contexts up to kMaxPositions; -1: unbounded
};

// The static description of attention in one layer, without reach.
AttentionSpec attention_spec(const ModelConfig& config, const LayerWeights& weights, int layer);

// What the numbers behind a head's logits go through.
struct HeadNumerics {
  DType weights = DType::kF32, keys = DType::kF16;  // as they are held, as pages store them
  ArithmeticRounding arithmetic;                    // Backend::rounding()
};

// Computes the bounds of all heads of a layer, on all cores.
std::vector<HeadReport> report_heads(const ModelConfig& config, const LayerWeights& weights, const AttentionSpec& spec,
                                     const HeadNumerics& numerics, double epsilon);

// [kv_heads] how far back a layer's pages of each KV head are needed by any of its query heads; -1: forever.
std::vector<int64_t> page_reach(const ModelConfig& config, std::span<const HeadReport> layer_heads);

// "local", "heavy_tail", "uniform" or "retrieval"; "other" for models without this prior.
std::string_view head_class(const ModelConfig& config, const HeadReport& head);

}  // namespace bam
