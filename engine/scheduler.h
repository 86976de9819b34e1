// Decides which rows the next step computes. Knows no model: sequences, pages, a cost model and limits go in, a plan
// comes out. Used by the engine thread only.
//
// Each step, in this order:
//   1. decode rows: every running sequence with one uncomputed token gets its row (in a pipeline without prompts: its turn);
//   2. admission: waiting sequences in order (class, then arrival) while slots and pages last;
//   3. prefill chunks: the time left of the step target is shared fairly by predicted milliseconds;
//   4. drafts: rows of guesses behind decode rows, where they promise more tokens per millisecond than the step has
//      without them. They take no page that a running sequence needs soon, and none when all slots are taken.
//
// What it promises:
//   - Step time. While a stream waits for its next token, prefill is given max(T - D, max(T, D) / 4) ms, where D is the
//     predicted cost of the step's decode rows and T the target's share: in a pipeline a row waits for all the steps that
//     are on their way, with rows of streams or without, and they share the target. When nobody waits, a step may take
//     4 targets of the whole machine's time, which n stages spend side by side: pieces are as large as one machine's,
//     so that reading the weights costs no more. At least one prefill row is always computed.
//   - Fair share. Within a class, prefills receive equal time (start-time fair queueing in quanta of up to 64 rows).
//     With k prefills of its class, one whose rows cost c ms is done at the latest ceil((k * (c + q)) / B) + 1 steps
//     after its admission, with q the cost of a quantum and B the prefill time of a step; a long prefill gets at least
//     its k-th part.
//   - Classes (priority) are strict: a better class goes first, and may preempt a worse one. A sequence that got no row
//     for promote_after goes before every class from then on, so nothing starves.
//   - Paused sequences get no rows and no slot, are not starved, and keep their pages until somebody needs them: they
//     are the first to give theirs back, whatever their class, and then recompute when they go on.
//   - Memory. When pages run out, the worst running sequence is preempted (pages released, recomputed later through the
//     prefix cache), never a better one than the one in need. Any sequence fits the pool alone, so the best running one
//     always makes progress. At most kMaxOvertakes sequences are admitted past one that waits for memory. Who has rows on
//     their way waits for these before it takes pages from others: they free what is out of reach.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cost_model.h"
#include "engine/sequence.h"
#include "engine/staged_kv.h"

namespace bam {

struct SchedulerLimits {
  int64_t max_num_seqs = 64;
  int64_t max_batched_tokens = 2048;  // >= max_num_seqs
  int64_t max_logit_rows = 256;       // >= max_num_seqs
  double step_target_ms = 50;
  int stages = 1;  // of a pipeline: streams take turns in so many groups
  int depth = 1;   // steps that can be on their way at once
  std::chrono::milliseconds promote_after{30'000};
};

// Milliseconds of prefill in a step with this decode load. awaited: some stream waits until the step is over.
double prefill_budget_ms(const SchedulerLimits& limits, const CostModel& cost, const StepLoad& decode, bool awaited);

struct ScheduledRows {
  Sequence* sequence = nullptr;
  int64_t start = 0;  // tokens [start, start + num_rows)
  int64_t num_rows = 0;
  int64_t num_drafts = 0;  // the last of these rows are guesses, the beginning of the drafter's proposal
};

struct SchedulePlan {
  std::vector<ScheduledRows> rows;   // decode rows first
  std::vector<Sequence*> admitted;   // newly running; num_computed tells the prefix cache's share
  std::vector<Sequence*> preempted;  // pages released; back in the waiting queue, or still paused
  StepLoad load;
  bool empty() const { return rows.empty(); }
};

class Scheduler {
 public:
  static constexpr int64_t kMaxOvertakes = 16;
  static constexpr int64_t kQuantumRows = 64;
  static constexpr int kMaxBlocked = 4;  // waiting sequences tried per step beyond the first that has no memory

  // kv and cost outlive the scheduler.
  Scheduler(SchedulerLimits limits, StagedKv& kv, const CostModel& cost);

  // Room for so many sequences in all: without it, running out of memory inside a plan could lose one.
  void reserve(size_t sequences);
  void add(Sequence& sequence);  // to the waiting queue
  // A fork that already shares its parent's pages: runs on if a slot is free, else gives them back and waits.
  void add_running(Sequence& sequence);
  // Takes it out of its queue and releases its pages.
  void remove(Sequence& sequence);
  // No rows until resume(). Between two plans only.
  void pause(Sequence& sequence);
  // Runs on if it still has its pages and a slot is free, else waits for its turn and recomputes.
  void resume(Sequence& sequence);

  // Every page is lost: sequences that have any wait for their turn, or go on pausing, and are computed again.
  void give_back_all();

  // The next step. Admits, preempts and grows block tables, advances num_scheduled; the caller runs the rows and then
  // advances num_computed.
  const SchedulePlan& schedule(Clock::time_point now);
  // The last one; what there is of it, if schedule() ran out of memory.
  const SchedulePlan& plan() const { return plan_; }

  std::span<Sequence* const> running() const { return running_; }  // in serving order
  std::span<Sequence* const> waiting() const { return waiting_; }
  std::span<Sequence* const> paused() const { return paused_; }
  // Somebody could get a row.
  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  const SchedulerLimits& limits() const { return limits_; }

 private:
  void promote_starved(Clock::time_point now);
  void schedule_decodes();
  void admit_waiting();
  bool try_admit(Sequence& sequence);
  static int64_t tokens_to_start(const Sequence& sequence);
  // It could be admitted if paused sequences gave back their pages.
  bool fits_beside_running(const Sequence& sequence);
  bool preempt_worse_class(const Sequence& sequence);
  // Takes the pages of one paused sequence; false: none has any.
  bool take_from_paused();
  int64_t paused_pages(int stage) const;
  // No claim to prefill time before it came: level with its class.
  void join_class(Sequence& sequence);
  // [stages] in reserved_.
  std::span<const int64_t> reserved_pages();
  void schedule_prefills();
  // Most rows of a step in a pipeline that reads these prompts.
  int64_t piece_rows() const;
  void share_time(std::span<Sequence*> prefills);
  int64_t quantum(const Sequence& sequence) const;
  // Pages for rows up to `granted + rows`; preempts worse sequences if needed. False: it has to wait.
  bool make_room(Sequence& sequence, int64_t rows);
  void preempt(Sequence& sequence);
  void give_back(Sequence& sequence);
  void schedule_drafts();
  // The decode rows of the plan that have something to guess, in drafts_; returns the tokens that the step brings anyway.
  double collect_drafts(StepLoad& load);
  // Room for `rows` guesses behind the decode row, without taking it from anybody.
  bool grow_for_drafts(Sequence& sequence, int64_t rows);
  void collect_rows(Clock::time_point now);

  SchedulerLimits limits_;
  StagedKv& kv_;
  const CostModel& cost_;
  std::vector<Sequence*> running_;  // sorted by served_before
  std::vector<Sequence*> waiting_;  // likewise
  std::vector<Sequence*> paused_;   // likewise; with or without pages
  SchedulePlan plan_;
  std::vector<int64_t> reserved_;  // [stages] scratch of reserved_pages()

  // While a plan is made: what prefills may still take.
  std::vector<Sequence*> prefills_;
  double budget_ms_ = 0;
  int64_t rows_left_ = 0;
  int64_t logits_left_ = 0;  // beyond the one row kept for every running sequence
  bool prefill_started_ = false;

  struct NextDraft {
    Sequence* sequence;
    double chance;  // that its next guess and all before it are right
    double ms;      // of a row
  };
  std::vector<NextDraft> drafts_;
  int drafts_denied_ = 0;  // steps in a row whose likely guesses were too dear
};

}  // namespace bam
