// Who computes the steps: the model of this process alone, or a pipeline of ranks. Steps are issued in order and finish in
// order; up to depth() of them are on their way at once. Used by the engine thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/staged_kv.h"
#include "engine/stats.h"
#include "engine/step_batch.h"
#include "kernels/paged_kv.h"

namespace bam {

struct StepResult {
  std::string error;                 // not empty: the step failed, nothing of it can be used
  std::vector<const float*> logits;  // [logit_rows] of [vocab]; null: not wanted here
  std::vector<int32_t> drawn;        // [draws], see kernels/draw.h
  const float* hidden = nullptr;     // [logit_rows, hidden], if they were wanted
  double slowest_ms = 0;             // of the stages; 0: the caller measures
};

enum class GroupState : uint8_t { kReady, kForming, kFailed };

// Where there are ranks, all but the last three methods throw PeerLost when one of them is lost: then nothing that was
// issued will be finished, until form_again() has led to a new group.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  virtual int depth() const = 0;
  // False: another step would only wait, and one that is planned later knows more.
  virtual bool accepts() const { return true; }
  // Whether tokens can be drawn where the logits are.
  virtual bool supports_drawing() const = 0;
  // Carries out and forgets the copies that the caches wait for, before what is issued next.
  virtual void copy_pages(StagedKv& kv) = 0;
  // Begins a step. batch and tables ([entries]) may change as soon as it returns.
  virtual void issue(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv& kv) = 0;
  // The oldest step that was not finished yet, or null if it is not done within `timeout`. Good until the next call.
  virtual const StepResult* finish(std::chrono::milliseconds timeout) = 0;

  // The queries [layers][heads * head_dim] of a row whose keys and values are in the sequence's pages, with all before it;
  // between steps.
  virtual std::vector<float> row_queries(const StagedBlocks& blocks, int32_t token, int64_t position) = 0;

  // Raw pages of one stage, between steps.
  virtual const KvLayout& layout() const = 0;
  size_t page_bytes() const { return layout().page_bytes(); }
  virtual void read_pages(int stage, std::span<const int32_t> pages, std::span<std::byte> out) = 0;
  virtual void write_pages(int stage, std::span<const int32_t> pages, std::span<const std::byte> in) = 0;

  virtual std::vector<AttentionCounters> counters() = 0;  // of all layers
  virtual std::vector<StagePicture> picture() const = 0;  // without pages
  virtual std::vector<StagedKv::Stage> sizes() const = 0;

  // Now and then, also while there is no work.
  virtual void watch() {}
  // Begins to form a new group, beside the caller.
  virtual void form_again() {}
  // Whether it is there; all pages are new then. kFailed: there will be none, and `failure` says why.
  virtual GroupState group(std::string& /*failure*/) { return GroupState::kReady; }
};

}  // namespace bam
