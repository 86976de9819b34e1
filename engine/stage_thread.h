// Rank 0's own stage on a thread of its own: while it computes a step, the engine's thread plans the next ones.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/device_rows.h"
#include "engine/stage_runner.h"
#include "engine/stage_tables.h"
#include "engine/step_wire.h"
#include "transport/transport.h"

namespace bam {

// Its methods are for the engine's thread. Between settle() and the next issue() that thread may use the model itself.
class StageThread {
 public:
  // Steps that wait while one is computed: the thread finds work when it is done, also if the engine's is late.
  static constexpr size_t kMaxWaiting = 2;

  struct Step {
    wire::Head head;
    wire::StepPlan plan;            // for this stage
    std::vector<int32_t> tokens;    // [rows]
    std::vector<PageCopy> copies;   // carried out before
    bool others_under_way = false;  // so that time without work was time waited
  };

  // runner outlives it.
  StageThread(StageRunner& runner, KvGeometry geometry);
  ~StageThread();

  // A new group, whose tables are empty; its second rank gets the rows, in messages unless `rows` is a shorter way. Both
  // stay until detach().
  void attach(Transport& transport, DeviceRows* rows);
  // Forgets what was issued; nothing is computed any more when it returns.
  void detach();

  // Memory for a step, to be filled and issued.
  std::unique_ptr<Step> blank();
  void issue(std::unique_ptr<Step> step);
  // False: enough is waiting. What is planned later knows more.
  bool accepts() const;
  // Waits until all that was issued is computed.
  void settle();
  // Throws DeviceLost if that is how the thread ended.
  void check() const;
  std::vector<AttentionCounters> counters() const;  // as of the last step

 private:
  void loop();
  void compute(Step& step, double waited_ms);

  StageRunner& runner_;
  Transport* transport_ = nullptr;
  DeviceRows* rows_ = nullptr;
  StageTables tables_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Step>> waiting_;
  std::vector<std::unique_ptr<Step>> blanks_;  // room for all that are ever under way
  bool computing_ = false, stopping_ = false;
  std::exception_ptr device_lost_;
  std::vector<AttentionCounters> counters_;

  // The thread's own, reused from step to step.
  std::vector<std::byte> message_;
  std::vector<SequenceRows> sequences_;
  wire::StepReport report_;
  std::thread thread_;
};

}  // namespace bam
