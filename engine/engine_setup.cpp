#include "engine/engine_setup.h"

#include <algorithm>

#include "base/check.h"
#include "engine/model_runner.h"
#include "engine/pipeline_runner.h"

namespace bam {

EngineSetup set_up_engine(BamModel& model, EngineConfig config, uint64_t tokenizer_fingerprint, GroupSource* group) {
  KvPlan own = plan_kv(model, std::move(config));
  if (!group) {
    BAM_CHECK(model.first_stage() && model.last_stage());
    auto runner = std::make_unique<ModelRunner>(model, own);
    return {own, std::move(runner), {{own.geometry, own.num_pages}}, model.heads(), model.group_reach()};
  }
  auto runner = std::make_unique<PipelineRunner>(model, own, tokenizer_fingerprint, *group);
  EngineSetup setup{own, nullptr, runner->sizes(), {}, {}};
  for (const StageInfo& stage : runner->stages()) {
    setup.heads.insert(setup.heads.end(), stage.heads.begin(), stage.heads.end());
    setup.reach.insert(setup.reach.end(), stage.reach.begin(), stage.reach.end());
  }
  for (const StagedKv::Stage& stage : setup.sizes) {
    const int64_t tokens = stage.geometry.max_tokens(stage.num_pages);
    if (tokens >= setup.plan.geometry.max_tokens(setup.plan.num_pages)) continue;
    setup.plan.geometry = stage.geometry;
    setup.plan.num_pages = stage.num_pages;
    setup.plan.config.max_model_len = std::min(setup.plan.config.max_model_len, tokens);
  }
  setup.runner = std::move(runner);
  return setup;
}

}  // namespace bam
