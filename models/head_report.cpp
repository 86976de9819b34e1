#include "models/head_report.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/int4.h"
#include "models/spectral.h"

namespace bam {

namespace {

// As weights are packed (kernels/cpu/gemm_pack.cpp): one scale per row.
void round_rows_to_int8(std::vector<float>& rows, int64_t length) {
  for (auto row = rows.begin(); row != rows.end(); row += length) {
    float largest = 0;
    for (auto w = row; w != row + length; ++w) largest = std::max(largest, std::fabs(*w));
    if (largest == 0) continue;
    for (auto w = row; w != row + length; ++w) *w = std::nearbyint(*w * (127.0f / largest)) * (largest / 127.0f);
  }
}

}  // namespace

AttentionSpec attention_spec(const ModelConfig& config, const LayerWeights& weights, int layer) {
  AttentionSpec spec;
  spec.num_heads = static_cast<int>(config.num_heads);
  spec.num_kv_heads = static_cast<int>(config.num_kv_heads);
  spec.head_dim = static_cast<int>(config.head_dim);
  spec.ssmax = config.ssmax;
  spec.seq_scale = weights.seq_scale;
  spec.first_group = layer * spec.num_kv_heads;
  switch (config.position_encoding) {
    case PositionEncoding::kBam:
      for (int h = 0; h < spec.num_heads; ++h) {
        spec.bias.push_back(power_bias(config.prior_form, weights.prior[static_cast<size_t>(h)], config.prior_eps,
                                       config.ssmax && config.ssmax_prior, spec.seq_scale_of(h)));
      }
      break;
    case PositionEncoding::kAlibi:
      for (int h = 0; h < spec.num_heads; ++h) spec.bias.push_back(linear_bias(alibi_slope(h, spec.num_heads)));
      break;
    case PositionEncoding::kT5:
      for (int h = 0; h < spec.num_heads; ++h) {
        std::vector<float> buckets;
        for (size_t at = static_cast<size_t>(h); at < weights.relative_bias.size();
             at += static_cast<size_t>(spec.num_heads)) {
          buckets.push_back(weights.relative_bias[at]);
        }
        spec.bias.push_back(bucket_bias(buckets, config.relative_max_distance));
      }
      break;
    case PositionEncoding::kRopeLocal: spec.window = config.sliding_window; [[fallthrough]];
    case PositionEncoding::kRope:
      spec.rope_theta = config.rope_theta;
      spec.rope_style = config.rope_style;
      break;
    case PositionEncoding::kNope:
    case PositionEncoding::kSinusoidal: break;  // nothing in attention itself
  }
  return spec;
}

std::vector<HeadReport> report_heads(const ModelConfig& config, const LayerWeights& weights, const AttentionSpec& spec,
                                     const HeadNumerics& numerics, double epsilon) {
  const std::vector<float> norm = weights.attention_norm.to_f32(), wq = weights.wq.to_f32(), wk = weights.wk.to_f32();
  // Codes change a matrix more than a margin would cover: the bound is of the weights that will be used.
  const bool to_int4 = numerics.weights == DType::kI4, to_int8 = numerics.weights == DType::kI8;
  const int64_t block = config.head_dim * config.hidden_size;
  const int64_t group = config.num_heads / config.num_kv_heads;
  const auto rows_of = [&](const WeightView& view, const std::vector<float>& matrix, int64_t head) {
    std::vector<float> rows(matrix.begin() + head * block, matrix.begin() + (head + 1) * block);
    if (to_int8) round_rows_to_int8(rows, config.hidden_size);
    if (!to_int4 || view.dtype == DType::kI4) return rows;
    Int4Row row(config.hidden_size);
    for (auto at = rows.begin(); at != rows.end(); at += config.hidden_size) {
      row.quantize(&*at);
      row.to_f32(&*at);
    }
    return rows;
  };
  const LogitRounding rounding = {.coded_activations = to_int4 || to_int8,
                                  .activations = numerics.arithmetic.activations,
                                  .queries = numerics.arithmetic.queries,
                                  .keys = key_rounding(numerics.keys, config.head_dim)};
  constexpr double kMargin = 1.01;  // float32 sums and 16-bit weights
  std::vector<HeadReport> reports(static_cast<size_t>(config.num_heads));
  ThreadPool pool(static_cast<int>(std::min<int64_t>(available_cores(), config.num_heads)));
  pool.parallel_for(config.num_heads, [&](int64_t h, int) {
    HeadReport& report = reports[static_cast<size_t>(h)];
    report.layer = spec.first_group / spec.num_kv_heads;
    report.head = static_cast<int>(h);
    if (!weights.prior.empty()) {
      const PriorParams& prior = weights.prior[static_cast<size_t>(h)];
      report.alpha = prior.alpha;
      report.beta = prior.beta;
      report.theta_mu = prior.theta_mu;
    }
    report.seq_scale = spec.seq_scale_of(static_cast<int>(h));
    report.logit_bound =
        kMargin * computed_logit_bound(rows_of(weights.wq, wq, h), rows_of(weights.wk, wk, h / group), norm,
                                       config.head_dim, config.hidden_size, spec.rotates(), rounding);
    report.reach = static_reach(spec, static_cast<int>(h), report.logit_bound, epsilon, kMaxPositions);
  });
  return reports;
}

std::vector<int64_t> page_reach(const ModelConfig& config, std::span<const HeadReport> layer_heads) {
  const int64_t group = config.num_heads / config.num_kv_heads;
  std::vector<int64_t> reach(static_cast<size_t>(config.num_kv_heads), 0);
  for (int64_t h = 0; h < config.num_heads; ++h) {
    int64_t& shared = reach[static_cast<size_t>(h / group)];
    const int64_t head_reach = layer_heads[static_cast<size_t>(h)].reach;
    shared = head_reach < 0 || shared < 0 ? -1 : std::max(shared, head_reach);
  }
  // Statistics of a tile that fills up chain to the tile before it, so pages stay two tiles longer than queries need.
  for (int64_t& r : reach) r = r < 0 ? -1 : std::max<int64_t>(r, 2 * kTileKeys);
  return reach;
}

std::string_view head_class(const ModelConfig& config, const HeadReport& head) {
  if (config.position_encoding != PositionEncoding::kBam) return "other";
  // Below this exponent a distance of a million tokens changes the bias by less than a third.
  constexpr double kFlat = 0.02;
  if (head.beta < -kFlat) return "retrieval";
  if (head.beta <= kFlat) return "uniform";
  return head.beta < 1 ? "heavy_tail" : "local";
}

}  // namespace bam
