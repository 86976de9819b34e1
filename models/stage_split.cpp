#include "models/stage_split.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace bam {

namespace {

constexpr double kCloseEnough = 1.03;

// ends[s]: one past the last layer of stage s, so that the largest sum of `weight` over a stage is smallest while no stage
// has more than `limit` of `bounded`. Layers are few: every cut is tried.
std::vector<int> best_ends(std::span<const double> weight, std::span<const double> bounded, double limit, int stages) {
  const int layers = static_cast<int>(weight.size());
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // best[s][end]: the first s + 1 stages take layers [0, end).
  std::vector<std::vector<double>> best(static_cast<size_t>(stages),
                                        std::vector<double>(static_cast<size_t>(layers) + 1, kNever));
  std::vector<std::vector<int>> begin_of(static_cast<size_t>(stages),
                                         std::vector<int>(static_cast<size_t>(layers) + 1));
  for (int s = 0; s < stages; ++s) {
    for (int end = s + 1; end <= layers; ++end) {
      double sum = 0, other = 0;
      for (int begin = end; begin-- > s;) {
        sum += weight[static_cast<size_t>(begin)];
        other += bounded[static_cast<size_t>(begin)];
        if (other > limit) break;
        if (s == 0 && begin > 0) continue;
        const double before = s == 0 ? 0 : best[static_cast<size_t>(s - 1)][static_cast<size_t>(begin)];
        double& so_far = best[static_cast<size_t>(s)][static_cast<size_t>(end)];
        if (std::max(before, sum) >= so_far) continue;
        so_far = std::max(before, sum);
        begin_of[static_cast<size_t>(s)][static_cast<size_t>(end)] = begin;
      }
    }
  }
  std::vector<int> ends(static_cast<size_t>(stages));
  for (int s = stages, end = layers; s-- > 0; end = begin_of[static_cast<size_t>(s)][static_cast<size_t>(end)]) {
    ends[static_cast<size_t>(s)] = end;
  }
  return ends;
}

std::vector<StageRange> ranges_of(std::span<const int> ends) {
  std::vector<StageRange> stages;
  for (int begin = 0; const int end : ends) {
    stages.push_back({begin, end - begin});
    begin = end;
  }
  return stages;
}

}  // namespace

std::vector<LayerCost> layer_costs(const ModelConfig& config, std::span<const HeadReport> heads, int64_t context) {
  BAM_CHECK(static_cast<int64_t>(heads.size()) == config.num_layers * config.num_heads && context > 0);
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto qkv = static_cast<double>(config.q_size() + 2 * config.kv_size());
  const double rest = static_cast<double>(config.q_size()) + 3 * static_cast<double>(config.intermediate_size);
  const auto length = static_cast<double>(context);
  std::vector<LayerCost> costs(static_cast<size_t>(config.num_layers));
  for (int64_t l = 0; l < config.num_layers; ++l) {
    LayerCost& cost = costs[static_cast<size_t>(l)];
    const auto own = heads.subspan(static_cast<size_t>(l * config.num_heads), static_cast<size_t>(config.num_heads));
    cost.flops = 2 * hidden * qkv;
    for (const int64_t reach : page_reach(config, own)) {
      cost.pages += reach < 0 ? 1 : std::min(1.0, static_cast<double>(reach) / length);
    }
    if (l + 1 == config.num_layers) continue;
    cost.flops += 2 * hidden * rest;
    for (const HeadReport& head : own) {
      const double keys = head.reach < 0 ? length / 2 : std::min(static_cast<double>(head.reach), length / 2);
      cost.flops += 4 * static_cast<double>(config.head_dim) * keys;
    }
  }
  return costs;
}

std::vector<StageRange> split_layers(std::span<const LayerCost> costs, int stages) {
  BAM_CHECK(stages >= 1 && stages <= static_cast<int>(costs.size()));
  std::vector<double> flops, pages;
  for (const LayerCost& cost : costs) {
    flops.push_back(cost.flops);
    pages.push_back(cost.pages);
  }
  double slowest = 0;
  for (const StageRange& stage : ranges_of(best_ends(flops, pages, std::numeric_limits<double>::infinity(), stages))) {
    double sum = 0;
    for (int l = 0; l < stage.num_layers; ++l) sum += flops[static_cast<size_t>(stage.first_layer + l)];
    slowest = std::max(slowest, sum);
  }
  return ranges_of(best_ends(pages, flops, kCloseEnough * slowest, stages));
}

std::vector<StageRange> parse_stage_layers(std::string_view text, int64_t num_layers) {
  const auto wrong = [&](std::string_view why) { return UsageError("--stage-layers: \"{}\" {}", text, why); };
  std::vector<StageRange> stages;
  int64_t next = 0;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    int count = 0;
    const char* const end = text.data() + comma;
    const auto [stop, error] = std::from_chars(text.data() + at, end, count);
    if (error != std::errc() || stop != end || count < 1) throw wrong("is not a list of layer counts like 4,4,4");
    if (next + count > num_layers) break;
    stages.push_back({static_cast<int>(next), count});
    next += count;
    if (comma == text.size() && next == num_layers) return stages;
    at = comma + 1;
  }
  throw wrong(fmt::format("does not add up to the {} layers of the model", num_layers));
}

std::vector<StageShare> stage_shares(std::span<const LayerCost> costs, std::span<const StageRange> stages) {
  double flops = 0, pages = 0;
  for (const LayerCost& cost : costs) {
    flops += cost.flops;
    pages += cost.pages;
  }
  std::vector<StageShare> shares;
  for (const StageRange& range : stages) {
    StageShare share{range};
    for (int l = range.first_layer; l < range.first_layer + range.num_layers; ++l) {
      const LayerCost& cost = costs[static_cast<size_t>(l)];
      share.time += cost.flops / flops;
      share.pages += cost.pages / pages;
    }
    shares.push_back(share);
  }
  return shares;
}

std::vector<StageRange> split_checkpoint(const ModelConfig& config, const CheckpointWeights& weights,
                                         const ModelOptions& options, const Backend& backend, int stages) {
  if (stages < 1 || stages > config.num_layers) {
    throw UsageError("--stages: {} stages need as many layers, the model has {}", stages, config.num_layers);
  }
  std::vector<HeadReport> heads;
  for (int64_t l = 0; l < config.num_layers; ++l) {
    const LayerWeights& layer = weights.layers[static_cast<size_t>(l)];
    const AttentionSpec spec = attention_spec(config, layer, static_cast<int>(l));
    std::vector<HeadReport> reports =
        report_heads(config, layer, spec,
                     {options.weight_dtype, options.kv_dtype, backend.rounding(static_cast<int>(config.head_dim))},
                     options.attention.epsilon);
    const bool bounded = (options.attention.certified && options.use_reach) || spec.window >= 0;
    for (HeadReport& head : reports) {
      if (!bounded) head.reach = -1;
    }
    heads.insert(heads.end(), reports.begin(), reports.end());
    for (const WeightView& view : layer.views()) weights.release(view);
  }
  return split_layers(layer_costs(config, heads, kSplitContext), stages);
}

}  // namespace bam
