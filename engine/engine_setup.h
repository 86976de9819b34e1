// What an engine is made of, decided once at start: who computes its steps, and what fits into the pages of all stages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/capacity.h"
#include "engine/step_runner.h"
#include "transport/transport.h"

namespace bam {

struct EngineSetup {
  KvPlan plan;  // of the stage that is full first; with limits that hold for all
  std::unique_ptr<StepRunner> runner;
  std::vector<StagedKv::Stage> sizes;  // [stages]
  std::vector<HeadReport> heads;       // of all layers
  std::vector<int64_t> reach;          // of all groups
};

// group: null if the model has all layers; else this is rank 0, and the other ranks are waited for. Throws Error with one
// line that says why there is no engine, UsageError where plan_kv() does.
EngineSetup set_up_engine(BamModel& model, EngineConfig config, uint64_t tokenizer_fingerprint, GroupSource* group);

}  // namespace bam
