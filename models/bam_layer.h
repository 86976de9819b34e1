// Parts of BamModel that its implementation files share.
#pragma once

#include <memory>
#include <vector>

#include "models/bam.h"

namespace bam {

struct BamModel::Layer {
  int index = 0;
  std::unique_ptr<DeviceBuffer> attention_norm, ffn_norm;
  std::unique_ptr<LinearWeights> qkv, wo, gate_up, down;
  std::unique_ptr<AttentionLayer> attention;
};

// Memory of one step, sized once for max_rows.
struct BamModel::Scratch {
  std::unique_ptr<DeviceBuffer> x;         // [max_rows, hidden] float32 residual stream
  std::unique_ptr<DeviceBuffer> selected;  // [max_logit_rows, hidden] float32: rows that go on to the logits
  std::unique_ptr<DeviceBuffer> normed;    // [max_rows, hidden] operand
  std::unique_ptr<DeviceBuffer> wide;      // [max_rows, max(qkv, 2 * intermediate)] operand
  std::unique_ptr<DeviceBuffer> narrow;    // [max_rows, max(heads * head_dim, intermediate)] operand
  std::unique_ptr<DeviceBuffer> logits;    // [max_logit_rows, vocab] float32
  std::vector<SequenceRows> queries;       // last layer: runs of wanted rows
};

// What the checkpoint says about attention in one layer, without reach.
AttentionSpec attention_spec(const ModelConfig& config, const LayerWeights& weights, int layer);

}  // namespace bam
