#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "engine/capacity.h"
#include "engine/scheduler.h"
#include "models/bam.h"

namespace bam {

// Turns a plan into one forward call. Owns the memory of the KV pages; reuses its buffers, so that a step allocates
// nothing. Used by the engine thread only.
class ModelRunner {
 public:
  // model outlives the runner.
  ModelRunner(BamModel& model, const KvPlan& plan);

  const KvCacheView& kv() const { return kv_; }
  // Copy-on-write copies, in order; empties the list.
  void copy_pages(std::vector<PageCopy>& copies);
  // Appends the draw of a sequence's next token, but for its row of logits, or returns false: the host will sample.
  using AppendDraw = std::function<bool(const Sequence&, DrawBatch&)>;
  // Computes all rows of the plan; tokens of sequences that `append_draw` (may be empty) takes are drawn by the device.
  // Throws what the model throws.
  void run(const SchedulePlan& plan, const AppendDraw& append_draw);
  // Whether the device can draw tokens at all.
  bool supports_drawing() const { return supports_drawing_; }

  // The rows of plan entry `entry` that have logits: positions [first_pos, first_pos + count).
  struct LogitRows {
    int64_t first_pos = 0;
    int64_t count = 0;
    size_t offset = 0;  // first row in the logits buffer
    int32_t draw = -1;  // the newest row's token was drawn by the device, its logits stayed there
  };
  const LogitRows& logit_rows(size_t entry) const { return logit_ranges_[entry]; }
  std::span<const float> logits(size_t entry, int64_t position) const;
  // [hidden] behind the final norm, of a row that has logits; where a sequence of the plan pools.
  std::span<const float> hidden(size_t entry, int64_t position) const;
  // What the device drew for the entry, see kernels/draw.h; nullopt: nothing, there are logits.
  std::optional<int32_t> drawn(size_t entry) const;

 private:
  void append(const ScheduledRows& scheduled, const AppendDraw& append_draw);

  BamModel& model_;
  std::unique_ptr<DeviceBuffer> memory_;
  KvCacheView kv_;
  size_t vocab_size_;
  bool supports_drawing_;
  std::vector<int32_t> tokens_;  // [rows]
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logit_row_ids_;
  std::vector<LogitRows> logit_ranges_;  // [plan entries]
  LazyMemory logits_;                    // float [max_logit_rows, vocab], grown when more are wanted
  bool wants_hidden_ = false;
  std::vector<float> hidden_;  // [logit rows, hidden]
  DrawBatch draws_;
  std::vector<int32_t> drawn_;      // [draws]
  std::vector<int32_t> host_rows_;  // rows of logits_ that the host wants
};

}  // namespace bam
