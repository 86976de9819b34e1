// Which layers each stage of a pipeline gets. Every rank works it out for itself from the same checkpoint, so plain
// arithmetic only: nothing here depends on the machine.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "models/bam.h"
#include "models/head_report.h"
#include "models/model_config.h"
#include "models/weights.h"

namespace bam {

// Long prompts are what stages are for: the length at which layers are compared.
inline constexpr int64_t kSplitContext = 131'072;

struct LayerCost {
  double flops = 0;  // of one prompt row, averaged over a prompt
  double pages = 0;  // that a sequence of that length holds, in groups: bounded ones count their window's share
};

// Of every layer, for prompts of `context` tokens. heads: all of the model, layer by layer. In the last layer a prompt's
// rows end at K and V.
std::vector<LayerCost> layer_costs(const ModelConfig& config, std::span<const HeadReport> heads, int64_t context);

// Contiguous ranges of at least one layer each, 1 <= stages <= layers: the slowest stage is as fast as it can be; among
// splits that are within 3 % of that, the one whose fullest stage holds the fewest pages.
std::vector<StageRange> split_layers(std::span<const LayerCost> costs, int stages);

// "4,4,4", the layers of each stage. Throws UsageError with what is wrong with it.
std::vector<StageRange> parse_stage_layers(std::string_view text, int64_t num_layers);

// What `bam inspect --stages` shows of one stage.
struct StageShare {
  StageRange range;
  double time = 0;   // share of a prompt row's work
  double pages = 0;  // share of the pages
};
std::vector<StageShare> stage_shares(std::span<const LayerCost> costs, std::span<const StageRange> stages);

// Reads the projections of all layers once, as building the whole model would. `options` as for the model.
std::vector<StageRange> split_checkpoint(const ModelConfig& config, const CheckpointWeights& weights,
                                         const ModelOptions& options, const Backend& backend, int stages);

}  // namespace bam
