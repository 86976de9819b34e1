#include "models/attention_probe.h"

#include <algorithm>

#include "base/check.h"
#include "models/bam.h"
#include "models/bam_layer.h"

namespace bam {

std::vector<float> AttentionProbe::queries(BamModel& model, const KvCacheView& kv, const SequenceRows& row,
                                           int32_t token, const float* residual_in, float* residual_out,
                                           bool residual_on_device) {
  BAM_CHECK(row.num_rows == 1 && row.row_begin == 0 && model.last_stage() == (residual_out == nullptr));
  const ModelConfig& config = model.config_;
  Backend& backend = model.backend_;
  const auto q_size = static_cast<size_t>(config.q_size());
  model.reserve_positions(row.start_pos + 1);
  ForwardInput input{{&token, 1}, {&row, 1}, {}};
  input.residual_in = residual_in;
  input.residual_out = residual_out;
  input.residual_on_device = residual_on_device;
  const std::vector<AttentionCounters> counters_before = model.counters_;
  std::vector<float> queries, qkv_row;
  model.begin_rows(input);
  for (const auto& layer : model.layers_) {
    const OperandRows qkv = model.project_qkv(*layer, 1);
    backend.write_kv(*layer->attention, kv, input.sequences, qkv);  // rotates, too
    qkv_row.resize(static_cast<size_t>(qkv.width));
    backend.read_operands(qkv, qkv_row);
    queries.insert(queries.end(), qkv_row.begin(), qkv_row.begin() + static_cast<std::ptrdiff_t>(q_size));
    if (layer == model.layers_.back() && residual_out == nullptr) break;
    const OperandRows attended = backend.operand_rows(*model.scratch_->narrow, 1, config.q_size());
    backend.attention(*layer->attention, kv, input.sequences, {}, qkv, model.options_.attention, attended,
                      model.layer_counters(*layer));
    backend.linear_add(*layer->wo, attended, model.residual(1));
    model.feed_forward(*layer, model.residual(1));
  }
  if (residual_out != nullptr) model.hand_on_rows(input);
  model.counters_ = counters_before;  // complete since the last read
  return queries;
}

std::vector<AttentionSpec> AttentionProbe::specs(const BamModel& model) {
  std::vector<AttentionSpec> specs;
  for (size_t layer = 0; layer < model.weights_.layers.size(); ++layer) {
    specs.push_back(attention_spec(model.config_, model.weights_.layers[layer], static_cast<int>(layer)));
  }
  return specs;
}

}  // namespace bam
