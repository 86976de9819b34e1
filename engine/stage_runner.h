// The layers of this rank and the memory of their pages: one forward call per step. Reuses its buffers, so that a step
// allocates nothing. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "engine/batch_sampler.h"
#include "engine/capacity.h"
#include "engine/kv_cache.h"
#include "models/attention_probe.h"
#include "models/bam.h"

namespace bam {

class StageRunner {
 public:
  // model outlives the runner.
  StageRunner(BamModel& model, const KvPlan& plan);

  BamModel& model() const { return model_; }
  const KvCacheView& kv() const { return kv_; }
  // Whether the device draws tokens; else that is done here, on the backend's threads.
  bool supports_drawing() const { return supports_drawing_; }
  void copy_pages(std::span<const PageCopy> copies);

  struct Input {
    std::span<const int32_t> tokens;  // [rows]
    std::span<const SequenceRows> sequences;
    std::span<const int32_t> logit_rows, host_rows;  // as in StepBatch; the last stage's
    const DrawBatch* draws = nullptr;
    bool wants_hidden = false;
    const float* residual_in = nullptr;  // as in ForwardInput
    float* residual_out = nullptr;
    bool residual_on_device = false;
  };
  // Throws what the model throws.
  void run(const Input& input);
  // Of one row, whose pages are complete; see AttentionProbe.
  std::vector<float> row_queries(const SequenceRows& row, int32_t token, const float* residual_in = nullptr,
                                 float* residual_out = nullptr, bool residual_on_device = false) {
    return AttentionProbe::queries(model_, kv_, row, token, residual_in, residual_out, residual_on_device);
  }
  // Of the last run: a row of logits that the host wanted, and what was drawn.
  const float* logits(size_t logit_row) const { return logits_.as<float>() + logit_row * vocab_size_; }
  std::span<const int32_t> drawn() const { return drawn_; }
  // [logit_rows, hidden], if they were wanted.
  std::span<const float> hidden() const { return hidden_; }

 private:
  BamModel& model_;
  std::unique_ptr<DeviceBuffer> memory_;
  KvCacheView kv_;
  size_t vocab_size_;
  bool supports_drawing_;
  LazyMemory logits_;           // float [max_logit_rows, vocab], grown when more are wanted
  std::vector<int32_t> drawn_;  // [draws]
  std::unique_ptr<BatchSampler> drawer_;
  std::vector<float> hidden_;
  std::vector<int32_t> head_rows_;
};

}  // namespace bam
