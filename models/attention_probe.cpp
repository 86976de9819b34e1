#include "models/attention_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/head_bias.h"
#include "models/bam.h"
#include "models/bam_layer.h"

namespace bam {
namespace {

// Softmax of the logits that query `position` has over keys [0, position], in double.
std::vector<float> probabilities(const AttentionSpec& spec, int head, int64_t position, const std::vector<float>& q,
                                 const std::vector<float>& keys) {
  const int dim = spec.head_dim;
  const int64_t first = spec.window >= 0 ? std::max<int64_t>(0, position - spec.window) : 0;
  const HeadBias& bias = spec.bias_of(head);
  const RowScales scales =
      row_scales(spec.ssmax, bias.scaled, spec.seq_scale_of(head), visible_keys(position, spec.window), dim);
  std::vector<double> logits(static_cast<size_t>(position + 1), -HUGE_VAL);
  double largest = -HUGE_VAL;
  for (int64_t j = first; j <= position; ++j) {
    double dot = 0;
    for (int d = 0; d < dim; ++d)
      dot += static_cast<double>(q[static_cast<size_t>(d)]) * keys[static_cast<size_t>(j * dim + d)];
    logits[static_cast<size_t>(j)] = dot * scales.content + bias.value(position - j) * scales.bias;
    largest = std::max(largest, logits[static_cast<size_t>(j)]);
  }
  double total = 0;
  for (double& value : logits) total += value = std::exp(value - largest);
  std::vector<float> result(logits.size());
  for (size_t j = 0; j < result.size(); ++j) result[j] = static_cast<float>(logits[j] / total);
  return result;
}

}  // namespace

AttentionProbe::AttentionProbe(BamModel& model, std::span<const int32_t> tokens, int layer, int head, int64_t position)
    : model_(model), layer_(layer), head_(head) {
  const ModelConfig& config = model.config();
  BAM_CHECK(layer >= model.stage().first_layer && layer < config.num_layers && head >= 0 && head < config.num_heads);
  BAM_CHECK(position >= 0 && position < static_cast<int64_t>(tokens.size()));
  tokens_.assign(tokens.begin(), tokens.begin() + position + 1);
  const int64_t pages = (position + kTileKeys) / kTileKeys;
  kv_.layout = make_kv_layout(DType::kF32, static_cast<int>(config.head_dim), kTileKeys);
  kv_.num_pages = pages * model.num_groups();
  memory_ = model.backend().allocate(static_cast<size_t>(kv_.num_pages) * kv_.layout.page_bytes());
  kv_.base = static_cast<std::byte*>(memory_->data());
  table_.resize(static_cast<size_t>(kv_.num_pages));
  std::iota(table_.begin(), table_.end(), 0);
  keys_.resize(tokens_.size() * static_cast<size_t>(config.head_dim));
}

AttentionProbe::~AttentionProbe() = default;

bool AttentionProbe::passes_on() const { return layer_ >= model_.stage().first_layer + model_.stage().num_layers; }

int64_t AttentionProbe::advance(int64_t rows, const float* residual_in, float* residual_out) {
  const ModelConfig& config = model_.config_;
  Backend& backend = model_.backend_;
  const int64_t begin = num_computed_, count = static_cast<int64_t>(tokens_.size());
  rows = std::min({rows, model_.options_.max_rows, count - begin});
  if (rows <= 0) return 0;
  model_.reserve_positions(count);
  const SequenceRows sequence{table_.data(), kv_.num_pages / model_.num_groups(), 0, rows, begin};
  const auto tokens = std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
  ForwardInput input{tokens, {&sequence, 1}, {}};
  input.residual_in = residual_in;
  const std::vector<AttentionCounters> counters_before = model_.counters_;
  model_.begin_rows(input);
  const int first = model_.stage().first_layer, end = std::min(layer_, first + model_.stage().num_layers);
  for (int i = first; i < end; ++i) model_.run_layer(model_.layer_at(i), input, kv_, rows);
  if (passes_on()) {
    backend.read_floats(model_.residual(rows), {residual_out, static_cast<size_t>(rows * config.hidden_size)});
    model_.counters_ = counters_before;
    num_computed_ += rows;
    return rows;
  }
  BamModel::Layer& layer = model_.layer_at(layer_);
  const OperandRows qkv = model_.project_qkv(layer, rows);
  backend.write_kv(*layer.attention, kv_, input.sequences, qkv);  // rotates, too
  model_.counters_ = counters_before;                             // the serving statistics are about served requests

  const int64_t kv_head = head_ / (config.num_heads / config.num_kv_heads);
  const int64_t width = qkv.width, dim = config.head_dim;
  qkv_.resize(static_cast<size_t>(rows * width));
  backend.read_operands(qkv, qkv_);
  for (int64_t r = 0; r < rows; ++r) {
    const float* key = qkv_.data() + r * width + config.q_size() + kv_head * dim;
    std::copy_n(key, dim, keys_.begin() + (begin + r) * dim);
  }
  num_computed_ += rows;
  if (done()) {
    const float* row = qkv_.data() + (rows - 1) * width + head_ * dim;
    query_.assign(row, row + dim);
  }
  return rows;
}

std::vector<float> AttentionProbe::result() const {
  BAM_CHECK(done() && !passes_on());
  const auto& weights = model_.weights_.layers[static_cast<size_t>(layer_)];
  return probabilities(attention_spec(model_.config_, weights, layer_), head_, static_cast<int64_t>(tokens_.size()) - 1,
                       query_, keys_);
}

}  // namespace bam
