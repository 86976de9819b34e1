#include "engine/model_runner.h"

#include <utility>

#include "engine/clock.h"

namespace bam {

namespace {

void sequence_rows(const StepBatch& batch, std::span<const StagedBlocks* const> tables,
                   std::vector<SequenceRows>& out) {
  out.clear();
  int64_t row = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BlockTable& table = tables[i]->stages.front();
    const StepBatch::Entry& entry = batch.entries[i];
    out.push_back({table.entries.data(), table.stride, row, entry.num_rows, entry.start, &table.history});
    row += entry.num_rows;
  }
}

}  // namespace

ModelRunner::ModelRunner(BamModel& model, const KvPlan& plan)
    : stage_(model, plan), size_{plan.geometry, plan.num_pages} {
  sequences_.reserve(static_cast<size_t>(plan.config.max_num_seqs));
  result_.logits.reserve(static_cast<size_t>(model.options().max_logit_rows));
  picture_.num_layers = model.stage().num_layers;
  picture_.device = model.backend().description();
}

void ModelRunner::copy_pages(StagedKv& kv) {
  const std::vector<PageCopy> copies = std::exchange(kv.stage(0).pending_copies(), {});  // not again, whatever happens
  stage_.copy_pages(copies);
}

void ModelRunner::issue(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv&) {
  const auto start = std::chrono::steady_clock::now();
  sequence_rows(batch, tables, sequences_);
  stage_.run({batch.tokens, sequences_, batch.logit_rows, batch.host_rows, &batch.draws, batch.wants_hidden});
  result_.hidden = stage_.hidden().data();
  result_.logits.assign(batch.logit_rows.size(), nullptr);
  for (const int32_t row : batch.host_rows) {
    result_.logits[static_cast<size_t>(row)] = stage_.logits(static_cast<size_t>(row));
  }
  result_.drawn.assign(stage_.drawn().begin(), stage_.drawn().end());
  picture_.add_step(ms_since(start));
}

const StepResult* ModelRunner::finish(std::chrono::milliseconds) { return &result_; }

std::vector<float> ModelRunner::row_queries(const StagedBlocks& blocks, int32_t token, int64_t position) {
  const BlockTable& table = blocks.stages.front();
  return stage_.row_queries({table.entries.data(), table.stride, 0, 1, position}, token);
}

std::vector<StagePicture> ModelRunner::picture() const { return {picture_}; }

void ModelRunner::read_pages(int, std::span<const int32_t> pages, std::span<std::byte> out) {
  stage_.model().backend().read_pages(stage_.kv(), pages, out);
}

void ModelRunner::write_pages(int, std::span<const int32_t> pages, std::span<const std::byte> in) {
  stage_.model().backend().write_pages(stage_.kv(), pages, in);
}

}  // namespace bam
