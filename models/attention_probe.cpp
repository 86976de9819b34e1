// A look at one head's attention over a short prompt, apart from the serving path.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/prior.h"
#include "models/bam.h"
#include "models/bam_layer.h"

namespace bam {
namespace {

// Softmax of the logits that query `position` has over keys [0, position], in double.
std::vector<float> probabilities(const AttentionSpec& spec, int head, int64_t position, const std::vector<float>& q,
                                 const std::vector<float>& keys) {
  const int dim = spec.head_dim;
  const int64_t first = spec.window >= 0 ? std::max<int64_t>(0, position - spec.window) : 0;
  const auto h = static_cast<size_t>(head);
  const RowScales scales = row_scales(spec.ssmax, spec.encoding == PositionEncoding::kBam && spec.ssmax_prior,
                                      spec.ssmax ? spec.seq_scale[h] : 1.0, visible_keys(position, spec.window), dim);
  std::vector<double> logits(static_cast<size_t>(position + 1), -HUGE_VAL);
  double largest = -HUGE_VAL;
  for (int64_t j = first; j <= position; ++j) {
    double dot = 0;
    for (int d = 0; d < dim; ++d)
      dot += static_cast<double>(q[static_cast<size_t>(d)]) * keys[static_cast<size_t>(j * dim + d)];
    const auto distance = static_cast<double>(position - j);
    double bias = 0;
    if (spec.encoding == PositionEncoding::kAlibi) bias = -alibi_slope(head, spec.num_heads) * distance;
    if (spec.encoding == PositionEncoding::kBam) {
      const PriorParams& p = spec.prior[h];
      bias = prior_bias<double>(spec.prior_form, std::exp(p.alpha), p.beta, prior_mu(p.theta_mu), spec.prior_eps,
                                distance);
    }
    logits[static_cast<size_t>(j)] = dot * scales.content + bias * scales.bias;
    largest = std::max(largest, logits[static_cast<size_t>(j)]);
  }
  double total = 0;
  for (double& value : logits) total += value = std::exp(value - largest);
  std::vector<float> result(logits.size());
  for (size_t j = 0; j < result.size(); ++j) result[j] = static_cast<float>(logits[j] / total);
  return result;
}

}  // namespace

std::vector<float> BamModel::attention_probabilities(std::span<const int32_t> tokens, int layer_index, int head,
                                                     int64_t position) {
  BAM_CHECK(layer_index >= 0 && layer_index < config_.num_layers && head >= 0 && head < config_.num_heads);
  BAM_CHECK(position >= 0 && position < static_cast<int64_t>(tokens.size()));
  tokens = tokens.first(static_cast<size_t>(position + 1));
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t pages = (count + kTileKeys - 1) / kTileKeys;
  KvCacheView kv;
  kv.layout = make_kv_layout(DType::kF32, static_cast<int>(config_.head_dim), kTileKeys);
  kv.num_pages = pages * num_groups();
  const auto memory = backend_.allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
  kv.base = static_cast<std::byte*>(memory->data());
  std::vector<int32_t> table(static_cast<size_t>(kv.num_pages));
  std::iota(table.begin(), table.end(), 0);
  reserve_positions(count);

  const int64_t kv_head = head / (config_.num_heads / config_.num_kv_heads);
  const int64_t width = config_.q_size() + 2 * config_.kv_size();
  const int64_t dim = config_.head_dim;
  std::vector<float> qkv, q, keys(static_cast<size_t>(count * dim));
  const std::vector<AttentionCounters> counters_before = counters_;
  for (int64_t begin = 0; begin < count; begin += options_.max_rows) {
    const int64_t rows = std::min(options_.max_rows, count - begin);
    const SequenceRows sequence{table.data(), pages, 0, rows, begin};
    const ForwardInput input{tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)), {&sequence, 1}, {}};
    backend_.embed(embedding_, input.tokens, scratch_->residual());
    if (config_.position_encoding == PositionEncoding::kSinusoidal) {
      backend_.add_sinusoidal(input.sequences, config_.sinusoidal_theta, config_.hidden_size, scratch_->residual());
    }
    for (int i = 0; i < layer_index; ++i) run_layer(*layers_[static_cast<size_t>(i)], input, kv, rows);
    Layer& layer = *layers_[static_cast<size_t>(layer_index)];
    project_qkv(layer, rows);
    backend_.write_kv(*layer.attention, kv, input.sequences, scratch_->wide->data());  // rotates, too
    qkv.resize(static_cast<size_t>(rows * width));
    backend_.read_operands(scratch_->wide->data(), qkv);
    for (int64_t r = 0; r < rows; ++r) {
      const float* key = qkv.data() + r * width + config_.q_size() + kv_head * dim;
      std::copy_n(key, dim, keys.begin() + (begin + r) * dim);
    }
    if (position < begin + rows) {
      const float* row = qkv.data() + (position - begin) * width + head * dim;
      q.assign(row, row + dim);
    }
  }
  counters_ = counters_before;  // the serving statistics are about served requests
  return probabilities(attention_spec(config_, weights_.layers[static_cast<size_t>(layer_index)], layer_index), head,
                       position, q, keys);
}

}  // namespace bam
