#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace bam {

class BamModel;

// A look at one head's attention over a short prompt, apart from the serving path: pages of its own, dense, in as many
// pieces as the caller likes. Rows do not depend on how they are cut, so neither does the result. Where layers are spread
// over stages, every stage up to that of the head has a probe, and rows go from one to the next.
class AttentionProbe {
 public:
  // The head's probabilities at query `position` of `tokens`; after the first stage tokens only count. Any thread; the
  // model outlives the probe.
  AttentionProbe(BamModel& model, std::span<const int32_t> tokens, int layer, int head, int64_t position);
  ~AttentionProbe();
  AttentionProbe(const AttentionProbe&) = delete;

  // Computes up to `rows` further positions and returns how many. Between the model's forward calls only. Residuals as in
  // ForwardInput, but this is the last stage if it has the head's layer.
  int64_t advance(int64_t rows, const float* residual_in = nullptr, float* residual_out = nullptr);
  // The head's layer is not here: rows have to go on to the next stage.
  bool passes_on() const;
  void restart() { num_computed_ = 0; }
  int64_t num_computed() const { return num_computed_; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }  // up to the query
  int layer() const { return layer_; }
  int head() const { return head_; }
  bool done() const { return num_computed_ == static_cast<int64_t>(tokens_.size()); }
  // [position + 1], when all is computed by the stage that has the head.
  std::vector<float> result() const;

 private:
  BamModel& model_;
  std::vector<int32_t> tokens_;  // up to the query
  int layer_, head_;
  int64_t num_computed_ = 0;
  KvCacheView kv_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::vector<int32_t> table_;  // [groups][pages]
  std::vector<float> qkv_;      // [rows][q | k | v] of a piece
  std::vector<float> query_;    // [head_dim]
  std::vector<float> keys_;     // [positions][head_dim] of the head's KV head
};

}  // namespace bam
