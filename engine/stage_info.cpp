#include "engine/stage_info.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/backend.h"

namespace bam {

namespace {

constexpr uint64_t kMaxFields = 64, kMaxText = 4096, kMaxGroups = uint64_t{1} << 20;

}  // namespace

StageInfo describe_stage(BamModel& model, const KvPlan& plan, uint64_t tokenizer_fingerprint,
                         const std::string& row_wires) {
  const ModelOptions& options = model.options();
  StageInfo info;
  info.identity = {
      {"the checkpoint", fmt::format("{:016x}", model.fingerprint())},
      {"the tokenizer", fmt::format("{:016x}", tokenizer_fingerprint)},
      {"the kind of arithmetic", model.backend().numerics()},
      {"the weight format", std::string(dtype_name(options.weight_dtype))},
      {"attention",
       fmt::format("{} {:g}", options.attention.certified ? "certified" : "dense", options.attention.epsilon)},
      {"the KV format", fmt::format("{}, pages of {}", dtype_name(plan.layout.dtype), plan.layout.page_size)},
      {"the rows of a step", fmt::format("{}, {} of them with logits, of {} sequences", plan.config.max_batched_tokens,
                                         options.max_logit_rows, plan.config.max_num_seqs)},
      {"the way of rows", row_wires},
      {"the build", fmt::format("{}, messages {}", BAM_VERSION, wire::kVersion)},
  };
  info.device = model.backend().description();
  info.range = model.stage();
  info.num_layers = model.config().num_layers;
  info.num_pages = plan.num_pages;
  info.max_chunk = plan.config.max_batched_tokens;
  info.page_size = plan.layout.page_size;
  info.reach = model.group_reach();
  info.heads = model.heads();
  return info;
}

void write(wire::Writer& writer, const StageInfo& info) {
  writer.number(info.identity.size());
  for (const auto& [what, value] : info.identity) {
    writer.text(what);
    writer.text(value);
  }
  writer.text(info.device);
  writer.number(info.range);
  writer.number(info.num_layers);
  writer.number(info.num_pages);
  writer.number(info.max_chunk);
  writer.number(info.page_size);
  writer.array(info.reach);
  writer.array(info.heads);
}

StageInfo read_stage_info(wire::Reader& reader) {
  StageInfo info;
  const auto fields = reader.number<uint64_t>();
  if (fields > kMaxFields) throw wire::WireError("a rank says too much of itself");
  for (uint64_t i = 0; i < fields; ++i) {
    std::string what = reader.text(kMaxText);
    info.identity.emplace_back(std::move(what), reader.text(kMaxText));
  }
  info.device = reader.text(kMaxText);
  info.range = reader.number<StageRange>();
  info.num_layers = reader.number<int64_t>();
  info.num_pages = reader.number<int64_t>();
  info.max_chunk = reader.number<int64_t>();
  info.page_size = reader.number<int32_t>();
  reader.array(info.reach, kMaxGroups);
  reader.array(info.heads, kMaxGroups);
  reader.end();
  const bool sane = info.page_size > 0 && info.page_size % kTileKeys == 0 && info.num_pages > 0 && info.max_chunk > 0 &&
                    info.max_chunk <= kMaxPositions && !info.reach.empty();
  if (!sane) throw wire::WireError("a rank's pages make no sense");
  return info;
}

std::string misfit(const std::vector<StageInfo>& stages) {
  const StageInfo& first = stages.front();
  for (size_t rank = 1; rank < stages.size(); ++rank) {
    const StageInfo& other = stages[rank];
    for (size_t i = 0; i < std::max(first.identity.size(), other.identity.size()); ++i) {
      if (i >= first.identity.size() || i >= other.identity.size() ||
          first.identity[i].first != other.identity[i].first) {
        return fmt::format("rank 0 and rank {} are of different builds", rank);
      }
      if (first.identity[i].second == other.identity[i].second) continue;
      return fmt::format("rank 0 and rank {} differ in {}: {} and {}", rank, first.identity[i].first,
                         first.identity[i].second, other.identity[i].second);
    }
  }
  int next = 0;
  for (size_t rank = 0; rank < stages.size(); ++rank) {
    const StageRange& range = stages[rank].range;
    if (range.first_layer != next || range.num_layers < 1) {
      return fmt::format("rank {} begins with layer {}, but rank {} ends before layer {}", rank, range.first_layer,
                         rank == 0 ? stages.size() - 1 : rank - 1, next);
    }
    next += range.num_layers;
  }
  if (next == first.num_layers) return {};
  return fmt::format("rank 0 to rank {} have {} of the model's {} layers", stages.size() - 1, next, first.num_layers);
}

}  // namespace bam
