// Steps of a pipeline, seen from rank 0: plans go to all ranks, a thread of rank 0 computes the first stage, rows go from
// stage to stage, results come from the last one. 2n steps are on their way at once, so that every stage has work while rank 0
// decides; a result is the credit for the next step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/clock.h"
#include "engine/device_rows.h"
#include "engine/stage_info.h"
#include "engine/stage_runner.h"
#include "engine/stage_thread.h"
#include "engine/step_runner.h"
#include "engine/step_wire.h"
#include "transport/transport.h"

namespace bam {

class PipelineRunner final : public StepRunner {
 public:
  // Waits for the other ranks; throws Error with one line if they do not come or do not fit. model and source outlive the
  // runner.
  PipelineRunner(BamModel& model, const KvPlan& plan, uint64_t tokenizer_fingerprint, GroupSource& source);
  ~PipelineRunner() override;

  const std::vector<StageInfo>& stages() const { return stages_; }  // by rank
  std::vector<StagedKv::Stage> sizes() const override;

  int depth() const override { return 2 * source_.size(); }
  bool accepts() const override { return stage_.accepts(); }
  bool supports_drawing() const override { return true; }
  void copy_pages(StagedKv& kv) override;
  void issue(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv& kv) override;
  const StepResult* finish(std::chrono::milliseconds timeout) override;
  std::vector<float> row_queries(const StagedBlocks& blocks, int32_t token, int64_t position) override;
  const KvLayout& layout() const override { return runner_.kv().layout; }
  void read_pages(int stage, std::span<const int32_t> pages, std::span<std::byte> out) override;
  void write_pages(int stage, std::span<const int32_t> pages, std::span<const std::byte> in) override;
  std::vector<AttentionCounters> counters() override;
  std::vector<StagePicture> picture() const override;

  void watch() override;
  void form_again() override;
  GroupState group(std::string& failure) override;

 private:
  struct Group {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<DeviceRows> rows;  // null: they go in messages
    uint64_t epoch = 0;
    std::vector<StageInfo> stages;
  };
  struct Pending {
    size_t num_logit_rows = 0;
    std::vector<int32_t> host_rows;
    bool wants_hidden = false;
  };

  Group form();
  std::optional<Group> introduce(std::unique_ptr<Transport> transport, uint64_t epoch);
  void adopt(Group group);

  wire::Head head(wire::Kind kind) const { return {kind, epoch_, step_}; }
  int last_rank() const { return source_.size() - 1; }
  void make_plan(const StepBatch& batch, std::span<const StagedBlocks* const> tables, int stage,
                 wire::StepPlan& plan) const;
  void send_plans(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv& kv);
  // For this thread: all that was issued is computed, all that was to be copied is copied.
  StageRunner& settled();
  // Runs `work`; a rank that says what makes no sense is lost.
  template <typename F>
  auto checked(int rank, F work);
  // The next message of a rank that is not about something else, which is kept.
  bool receive(int rank, wire::Kind kind, std::vector<std::byte>& message, std::chrono::milliseconds timeout);
  void await(int rank, wire::Kind kind, std::vector<std::byte>& message);
  void take_counters(int rank, const std::vector<std::byte>& message);
  void read_result(const Pending& pending);

  GroupSource& source_;
  const std::chrono::duration<double> group_timeout_;
  StageRunner runner_;
  const StageInfo own_;
  StageThread stage_;
  std::vector<StageInfo> stages_;

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<DeviceRows> rows_;
  uint64_t epoch_ = 0;
  uint64_t step_ = 0;                                     // of the last plan
  std::unordered_map<uint64_t, int64_t> sent_;            // blocks of a table that the other ranks know of
  std::deque<Pending> pending_;                           // steps on their way
  std::deque<std::vector<std::byte>> arrived_;            // results that came while something else was awaited
  std::vector<std::vector<AttentionCounters>> counters_;  // [ranks] as last heard
  std::vector<StagePicture> pictures_;                    // [ranks]
  std::vector<PageCopy> own_copies_;                      // that the next step of this stage begins with
  Clock::time_point watched_{}, asked_{};

  std::atomic<bool> stopping_{false};
  std::future<Group> forming_;

  // Reused from step to step.
  wire::StepPlan plan_;
  wire::StepReport report_;
  std::vector<std::byte> message_, rows_message_, result_message_;
  StepResult result_;
};

}  // namespace bam
