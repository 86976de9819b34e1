// What a rank says of itself before it belongs to a group: who it is, and what its stage holds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/capacity.h"
#include "engine/staged_kv.h"
#include "engine/step_wire.h"
#include "models/bam.h"

namespace bam {

struct StageInfo {
  // (what, value): equal on all ranks, or texts would not be those of one machine.
  std::vector<std::pair<std::string, std::string>> identity;
  std::string device;
  StageRange range;
  int64_t num_layers = 0;  // of the model
  int64_t num_pages = 0, max_chunk = 0;
  int32_t page_size = 0;
  std::vector<int64_t> reach;     // [groups]
  std::vector<HeadReport> heads;  // [layers * heads]

  StagedKv::Stage kv() const { return {KvGeometry(page_size, reach, max_chunk), num_pages}; }
};

// `row_wires`: the way that rows take, see engine/device_rows.h.
StageInfo describe_stage(BamModel& model, const KvPlan& plan, uint64_t tokenizer_fingerprint,
                         const std::string& row_wires);

void write(wire::Writer& writer, const StageInfo& info);
StageInfo read_stage_info(wire::Reader& reader);  // throws WireError

// Why these stages, by rank, are no pipeline: one line that names two ranks; empty: they are.
std::string misfit(const std::vector<StageInfo>& stages);

}  // namespace bam
