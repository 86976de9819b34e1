// Looks at where a row attends: sequences that have read their prompt and hold its pages while these are walked through,
// in pieces beside the steps of others. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/staged_kv.h"
#include "engine/step_runner.h"
#include "models/attention_walk.h"

namespace bam {

class BamModel;
class ThreadPool;
struct Sequence;

class AttentionLooks {
 public:
  // Pages of one piece: beside steps, and when nothing else runs. A page of 64 keys is some 10 µs of work.
  static constexpr int64_t kPagesBeside = 512, kPagesAlone = 4096;

  struct Look {
    std::string request;
    uint64_t arrival = 0, stay = 0;  // of its sequence: who has another one has nothing to do with this look
    std::unique_ptr<AttentionWalk> walk;
    int64_t next_block = 0;
  };

  // model outlives the looks.
  explicit AttentionLooks(BamModel& model) : model_(model) {}

  void add(const Sequence& sequence, const std::string& request);
  bool empty() const { return looks_.empty(); }
  const Look& oldest() const { return looks_.front(); }
  void drop_oldest() { looks_.pop_front(); }
  void clear() { looks_.clear(); }

  // A piece of the oldest one, of about so many pages. True: report() has what there is to see. Throws what the runner
  // throws, and can be repeated then.
  bool advance(const Sequence& sequence, const AttentionLook& look, StepRunner& runner, const StagedKv& kv,
               int64_t max_pages);
  // Of the oldest one; nothing: the model produced NaN.
  std::optional<AttentionReport> report() const { return looks_.front().walk->report(); }

 private:
  struct Piece {
    size_t group;
    int64_t block;
  };
  void read_stage(Look& look, const Sequence& sequence, StepRunner& runner, const StagedKv& kv, int stage,
                  size_t first_group, size_t end_group, int first_layer, int64_t end_block);

  BamModel& model_;
  std::deque<Look> looks_;
  // Reused from piece to piece.
  std::vector<int32_t> pages_;
  std::vector<Piece> pieces_;
  std::vector<std::byte> bytes_;
};

}  // namespace bam
