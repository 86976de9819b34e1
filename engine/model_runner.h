#pragma once

#include <vector>

#include "engine/stage_runner.h"
#include "engine/step_runner.h"

namespace bam {

// All layers in this process: a step is computed when it is issued.
class ModelRunner final : public StepRunner {
 public:
  // model outlives the runner.
  ModelRunner(BamModel& model, const KvPlan& plan);

  int depth() const override { return 1; }
  bool supports_drawing() const override { return stage_.supports_drawing(); }
  void copy_pages(StagedKv& kv) override;
  void issue(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv& kv) override;
  const StepResult* finish(std::chrono::milliseconds timeout) override;
  std::vector<float> row_queries(const StagedBlocks& blocks, int32_t token, int64_t position) override;
  const KvLayout& layout() const override { return stage_.kv().layout; }
  void read_pages(int stage, std::span<const int32_t> pages, std::span<std::byte> out) override;
  void write_pages(int stage, std::span<const int32_t> pages, std::span<const std::byte> in) override;
  std::vector<AttentionCounters> counters() override { return stage_.model().counters(); }
  std::vector<StagePicture> picture() const override;
  std::vector<StagedKv::Stage> sizes() const override { return {size_}; }

 private:
  StageRunner stage_;
  StagedKv::Stage size_;
  std::vector<SequenceRows> sequences_;
  StepResult result_;
  StagePicture picture_;
};

}  // namespace bam
