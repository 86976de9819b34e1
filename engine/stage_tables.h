// The block tables of one stage on a rank that plans nothing: what rank 0's plans have said so far.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/kv_geometry.h"
#include "engine/step_wire.h"
#include "kernels/backend.h"

namespace bam {

class StageTables {
 public:
  explicit StageTables(KvGeometry geometry) : geometry_(std::move(geometry)) {}

  // Takes over a plan's changes; `rows` are its sequences then, good until the next call. Throws WireError if a row would
  // read or write a page that its table does not have.
  void apply(const wire::StepPlan& plan, std::vector<SequenceRows>& rows);
  void clear() { tables_.clear(); }
  size_t size() const { return tables_.size(); }

 private:
  struct Table {
    std::vector<int32_t> entries;  // [groups][stride]
    int64_t stride = 0, num_blocks = 0;
    std::vector<int64_t> first_live;  // [groups] from here on every block has its page
    TableHistory history;             // of entries
  };
  void update(Table& table, const wire::PlanEntry& entry, const int32_t* pages);

  KvGeometry geometry_;
  std::unordered_map<uint64_t, Table> tables_;
  std::vector<uint64_t> ids_;  // scratch
};

}  // namespace bam
