#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "app/commands.h"
#include "app/inspect_layers.h"
#include "app/inspect_look.h"
#include "app/inspect_measure.h"
#include "app/model_setup.h"
#include "app/option_flags.h"
#include "app/units.h"
#include "base/json.h"
#include "engine/capacity.h"
#include "engine/kv_geometry.h"
#include "kernels/paged_kv.h"
#include "models/head_report.h"
#include "models/spectral.h"
#include "models/stage_split.h"
#include "models/weight_memory.h"
#include "models/weights.h"

namespace bam {

namespace {

struct Inspection {
  std::filesystem::path checkpoint;
  ModelConfig config;
  uint64_t file_bytes = 0, embedding_bytes = 0;
  int64_t num_files = 0;
  std::vector<HeadReport> heads;
  std::vector<int64_t> group_reach;  // [layer * kv_heads + kv_head]
  std::vector<int64_t> lengths;
  std::vector<std::vector<int64_t>> reach;  // [length][head]
  uint64_t kv_memory_bytes = 0;             // what `bam serve` would plan for
  int page_size = 0;
  int64_t max_chunk = 0;
  std::optional<AttentionMeasurement> measured;
  std::vector<StageShare> stages;         // empty: not asked for
  std::optional<LayerTimes> layer_times;  // by which they were shared out; nothing: by what layers have to do
  DType weight_dtype = DType::kF32, kv_dtype = DType::kF16;
};

// Everything comes from the mapped file: no weight is converted but the q and k projections of one layer at a time.
Inspection inspect_checkpoint(const ModelSettings& settings, const std::vector<int64_t>& lengths) {
  Inspection out;
  out.checkpoint = find_checkpoint(settings.model);
  out.config = load_model_config(out.checkpoint);
  const ModelConfig& config = out.config;
  const DType weight_dtype = choose_weight_dtype(settings.dtype, config);
  out.weight_dtype = weight_dtype;
  out.kv_dtype = settings.engine.kv_dtype;
  const CheckpointWeights weights = load_weights(out.checkpoint, config);
  out.file_bytes = weights.file_bytes;
  out.num_files = static_cast<int64_t>(weights.files.size());
  out.page_size = settings.engine.page_size;
  out.max_chunk = settings.engine.max_batched_tokens;
  out.lengths = lengths;
  out.reach.resize(lengths.size());
  const std::unique_ptr<Backend> backend = make_backend(settings);
  const HeadNumerics numerics = {weight_dtype, out.kv_dtype, backend->rounding(static_cast<int>(config.head_dim))};
  for (int64_t l = 0; l < config.num_layers; ++l) {
    const LayerWeights& layer = weights.layers[static_cast<size_t>(l)];
    const AttentionSpec spec = attention_spec(config, layer, static_cast<int>(l));
    const std::vector<HeadReport> heads = report_heads(config, layer, spec, numerics, settings.attention_epsilon);
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (const HeadReport& head : heads) {
        out.reach[i].push_back(static_reach(spec, head.head, head.logit_bound, settings.attention_epsilon, lengths[i]));
      }
    }
    std::ranges::copy(page_reach(config, heads), std::back_inserter(out.group_reach));
    std::ranges::copy(heads, std::back_inserter(out.heads));
    for (const WeightView& view : layer.views()) weights.release(view);
  }
  if (!settings.certified_attention && config.position_encoding != PositionEncoding::kRopeLocal) {
    std::ranges::fill(out.group_reach, -1);
  }
  out.embedding_bytes = weights.tok_embeddings.bytes().size();
  const uint64_t free_bytes = backend->free_memory_bytes();
  const uint64_t weight_bytes = out.embedding_bytes + matrix_bytes(config, {.weight_dtype = weight_dtype});
  out.kv_memory_bytes = settings.engine.kv_memory_bytes != 0
                            ? settings.engine.kv_memory_bytes
                            : auto_kv_bytes(free_bytes - std::min(free_bytes, weight_bytes));
  return out;
}

std::vector<StageShare> share_layers(const Inspection& in, int stages) {
  if (stages > in.config.num_layers) {
    throw UsageError("--stages: {} stages need as many layers, the model has {}", stages, in.config.num_layers);
  }
  std::vector<HeadReport> heads = in.heads;
  for (HeadReport& head : heads) {
    const int64_t group =
        head.layer * in.config.num_kv_heads + head.head / (in.config.num_heads / in.config.num_kv_heads);
    if (in.group_reach[static_cast<size_t>(group)] < 0) head.reach = -1;
  }
  std::vector<LayerCost> costs = layer_costs(in.config, heads, kSplitContext);
  for (size_t l = 0; in.layer_times && l < costs.size(); ++l) costs[l].flops = in.layer_times->of(l);
  return stage_shares(costs, split_layers(costs, stages));
}

struct KvCost {
  double bytes_per_token;   // in all layers when no page is freed early
  int64_t tokens;           // of many sequences together
  int64_t longest_context;  // of one, with pages out of reach freed
};

KvCost kv_cost(const Inspection& in, DType dtype) {
  const KvLayout layout = make_kv_layout(dtype, static_cast<int>(in.config.head_dim), in.page_size);
  const KvGeometry geometry(in.page_size, in.group_reach, in.max_chunk);
  const auto pages = static_cast<int64_t>(in.kv_memory_bytes / layout.page_bytes());
  return {static_cast<double>(layout.page_bytes()) / in.page_size * geometry.num_groups(),
          pages / geometry.num_groups() * in.page_size, geometry.max_tokens(pages)};
}

std::string reach_text(int64_t reach) { return reach < 0 ? "all" : std::to_string(reach); }

double share(uint64_t part, uint64_t rest) {
  return part + rest == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(part + rest);
}

Json to_json(const AttentionMeasurement& in) {
  Json classes = Json::object();
  for (const auto& [name, counters] : in.by_class) {
    classes[name] = {{"tiles_visited", counters.visited},
                     {"tiles_skipped", counters.skipped},
                     {"visited_share", share(counters.visited, counters.skipped)},
                     {"bound_tests", counters.bound_tests},
                     {"left_out_bound", counters.left_out}};
  }
  return {{"prompt_tokens", in.prompt_tokens},
          {"seconds", in.seconds},
          {"first_token_seconds", in.first_token_seconds},
          {"key", in.key},
          {"answer", in.answer},
          {"right", in.right},
          {"kv_bytes", in.kv_bytes},
          {"classes", std::move(classes)}};
}

// A stage's bytes: weights as they are held, and KV of one sequence at the length for which layers were split.
struct StageBytes {
  uint64_t weights;
  double kv;
};

StageBytes stage_bytes(const Inspection& in, const StageShare& stage) {
  const int64_t kv_heads = in.config.num_kv_heads;
  const auto begin = in.group_reach.begin() + stage.range.first_layer * kv_heads;
  const KvGeometry geometry(in.page_size, {begin, begin + stage.range.num_layers * kv_heads}, in.max_chunk);
  const KvLayout layout = make_kv_layout(in.kv_dtype, static_cast<int>(in.config.head_dim), in.page_size);
  return {matrix_bytes(in.config, {.weight_dtype = in.weight_dtype, .stage = stage.range}) +
              (stage.range.first_layer == 0 ? in.embedding_bytes : 0),
          static_cast<double>(geometry.pages_for(kSplitContext)) * static_cast<double>(layout.page_bytes())};
}

double slowest_share(const Inspection& in) { return std::ranges::max(in.stages, {}, &StageShare::time).time; }

Json stages_to_json(const Inspection& in) {
  Json list = Json::array();
  for (const StageShare& stage : in.stages) {
    const StageBytes bytes = stage_bytes(in, stage);
    list.push_back({{"first_layer", stage.range.first_layer},
                    {"layers", stage.range.num_layers},
                    {"time_share", stage.time},
                    {"page_share", stage.pages},
                    {"weight_bytes", bytes.weights},
                    {"kv_bytes", bytes.kv}});
  }
  Json out = {{"context", kSplitContext},
              {"split", std::move(list)},
              {"prompt_speedup", 1 / slowest_share(in)},
              {"bytes_per_token_and_boundary", in.config.hidden_size * 4}};
  if (in.layer_times) {
    out["measured"] = {{"tokens", in.layer_times->tokens},
                       {"chunk", in.layer_times->chunk},
                       {"layer_seconds", in.layer_times->seconds}};
  }
  return out;
}

void append_stages(const Inspection& in, std::string& out) {
  out += fmt::format("\nstage  layers     time   weights   KV ({}) of one context of {}\n", dtype_name(in.kv_dtype),
                     format_magnitude(kSplitContext));
  for (size_t i = 0; i < in.stages.size(); ++i) {
    const StageShare& stage = in.stages[i];
    const StageBytes bytes = stage_bytes(in, stage);
    out += fmt::format("{:>5}  {:>2} - {:<3} {:>5.1f}%  {:>9} {:>13}\n", i, stage.range.first_layer,
                       stage.range.first_layer + stage.range.num_layers - 1, 100 * stage.time,
                       format_bytes(static_cast<double>(bytes.weights)), format_bytes(bytes.kv));
  }
  out += fmt::format("A long prompt is read {:.2f} times as fast; {} bytes per token go from a stage to the next.\n",
                     1 / slowest_share(in), in.config.hidden_size * 4);
  if (!in.layer_times) return;
  std::string layers;
  for (const StageShare& stage : in.stages)
    layers += fmt::format("{}{}", layers.empty() ? "" : ",", stage.range.num_layers);
  out += fmt::format("Layers were timed on this machine with {} tokens: --stage-layers {} shares them out like this.\n",
                     in.layer_times->tokens, layers);
}

Json to_json(const Inspection& in) {
  const ModelConfig& config = in.config;
  Json kv = Json::array();
  for (const DType dtype : kKvDtypes) {
    const KvCost cost = kv_cost(in, dtype);
    kv.push_back({{"dtype", dtype_name(dtype)},
                  {"bytes_per_token", cost.bytes_per_token},
                  {"tokens_that_fit", cost.tokens},
                  {"longest_context", cost.longest_context}});
  }
  Json heads = Json::array();
  for (size_t i = 0; i < in.heads.size(); ++i) {
    const HeadReport& head = in.heads[i];
    Json reach = Json::object();
    for (size_t k = 0; k < in.lengths.size(); ++k) {
      reach[std::to_string(in.lengths[k])] = in.reach[k][i] < 0 ? Json() : Json(in.reach[k][i]);
    }
    heads.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"alpha", head.alpha},
                     {"beta", head.beta},
                     {"theta_mu", head.theta_mu},
                     {"seq_scale", head.seq_scale},
                     {"class", head_class(config, head)},
                     {"logit_bound", head.logit_bound},
                     {"reach", std::move(reach)}});
  }
  Json out = {{"checkpoint", in.checkpoint.string()},
              {"parameters", config.num_parameters_without_embedding() + config.num_embedding_parameters()},
              {"embedding_parameters", config.num_embedding_parameters()},
              {"file_bytes", in.file_bytes},
              {"files", in.num_files},
              {"dtype", dtype_name(config.torch_dtype)},
              {"layers", config.num_layers},
              {"hidden_size", config.hidden_size},
              {"intermediate_size", config.intermediate_size},
              {"heads", config.num_heads},
              {"kv_heads", config.num_kv_heads},
              {"head_dim", config.head_dim},
              {"vocab_size", config.vocab_size},
              {"training_context", config.max_position_embeddings},
              {"position_encoding", position_encoding_name(config.position_encoding)},
              {"ssmax", config.ssmax},
              {"prior_form", config.prior_form == PriorForm::kScaleOutside ? "scale_outside" : "scale_inside"},
              {"kv_memory_bytes", in.kv_memory_bytes},
              {"kv", std::move(kv)},
              {"prior", std::move(heads)}};
  if (in.measured) out["measured"] = to_json(*in.measured);
  if (!in.stages.empty()) out["stages"] = stages_to_json(in);
  return out;
}

void append_measurement(const AttentionMeasurement& in, std::string& out) {
  out +=
      fmt::format("\nA passkey prompt of {} tokens took {:.2f} s ({:.2f} s to the first token) and {} of KV pages.\n",
                  in.prompt_tokens, in.seconds, in.first_token_seconds, format_bytes(static_cast<double>(in.kv_bytes)));
  out +=
      fmt::format("Hidden: {}. Answer: {}, {}.\n", in.key,
                  Json(in.answer).dump(-1, ' ', false, Json::error_handler_t::replace), in.right ? "right" : "wrong");
  out += "Tiles of 64 keys per query row:\n";
  out += "class             visited          skipped   visited share     bound tests   left out at most\n";
  for (const auto& [name, counters] : in.by_class) {
    out += fmt::format("{:<10} {:>14} {:>16} {:>14.2f}% {:>15} {:>18.1e}\n", name, counters.visited, counters.skipped,
                       100 * share(counters.visited, counters.skipped), counters.bound_tests, counters.left_out);
  }
}

void print_text(const Inspection& in) {
  const ModelConfig& config = in.config;
  std::string out;
  out += fmt::format("checkpoint   {}\n", in.checkpoint.string());
  out += fmt::format("parameters   {} ({} embedding + {} rest)\n",
                     format_magnitude(config.num_parameters_without_embedding() + config.num_embedding_parameters()),
                     format_magnitude(config.num_embedding_parameters()),
                     format_magnitude(config.num_parameters_without_embedding()));
  out += fmt::format("files        {} in {} file(s), {}\n", format_bytes(static_cast<double>(in.file_bytes)),
                     in.num_files, dtype_name(config.torch_dtype));
  out += fmt::format("shape        {} layers, hidden {}, FFN {}, {} heads ({} KV) of {}, vocabulary {}\n",
                     config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads,
                     config.num_kv_heads, config.head_dim, config.vocab_size);
  out += fmt::format("positions    {}{}, trained on {} tokens\n\n", position_encoding_name(config.position_encoding),
                     config.ssmax ? " with SSMax" : "", config.max_position_embeddings);
  out += fmt::format("KV cache     bytes/token   tokens in {:<10} longest context\n",
                     format_bytes(static_cast<double>(in.kv_memory_bytes)));
  for (const DType dtype : kKvDtypes) {
    const KvCost cost = kv_cost(in, dtype);
    out += fmt::format("  {:<10} {:>12.0f}   {:>20} {:>15}\n", dtype_name(dtype), cost.bytes_per_token, cost.tokens,
                       cost.longest_context);
  }
  out += "\nlayer head   theta_alpha  theta_beta  theta_mu        s   class       bound";
  for (const int64_t length : in.lengths) out += fmt::format("  {:>12}", "reach@" + format_magnitude(length));
  out += "\n";
  for (size_t i = 0; i < in.heads.size(); ++i) {
    const HeadReport& head = in.heads[i];
    out +=
        fmt::format("{:>5} {:>4}   {:>11.4f}  {:>10.4f}  {:>8.4f}  {:>7.4f}   {:<10} {:>6.1f}", head.layer, head.head,
                    head.alpha, head.beta, head.theta_mu, head.seq_scale, head_class(config, head), head.logit_bound);
    for (size_t k = 0; k < in.lengths.size(); ++k) out += fmt::format("  {:>12}", reach_text(in.reach[k][i]));
    out += "\n";
  }
  if (!in.stages.empty()) append_stages(in, out);
  if (in.measured) append_measurement(*in.measured, out);
  std::cout << out;
}

}  // namespace

int run_inspect(int argc, char** argv) {
  CLI::App app(
      "Shows what a checkpoint holds: sizes, KV cost per token and the positional prior of every head.\n"
      "reach@n: no query of a context of n tokens ever needs keys further back than this.",
      "bam inspect");
  bool json = false;
  std::vector<int64_t> lengths;
  int64_t measure = 0;
  int stages = 0;
  app.add_option(
         "--measure", measure,
         "also run a passkey prompt of N tokens and count what attention visited; with --stages, time every layer")
      ->type_name("N")
      ->check(CLI::Range(int64_t{128}, kMaxPositions));
  app.add_option("--stages", stages, "also show how N stages would share the layers")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  LookOptions look;
  app.add_option("--look", look.text, "instead: where the last token of TEXT (or of @FILE) looks, in every head")
      ->type_name("TEXT");
  app.add_option("--position", look.position, "with --look: the token that looks")->check(CLI::NonNegativeNumber);
  app.add_option("--layer", look.look.layer, "with --look: only this layer")->check(CLI::NonNegativeNumber);
  app.add_option("--head", look.look.head, "with --look: only this head of each layer")->check(CLI::NonNegativeNumber);
  app.add_option("--from", look.look.from, "with --look: the first key that is shown")->check(CLI::NonNegativeNumber);
  app.add_option("--to", look.look.to, "with --look: the key behind the last")->check(CLI::PositiveNumber);
  app.add_option("--bins", look.look.bins, "with --look: parts into which the keys are put together")
      ->check(CLI::Range(1, static_cast<int>(AttentionLook::kMaxBins)));
  app.add_option("--peaks", look.look.peaks, "with --look: largest weights per head")
      ->check(CLI::Range(0, static_cast<int>(AttentionLook::kMaxPeaks)));
  app.add_option("--csv", look.csv, "with --look: also write heads and bins to FILE")->type_name("FILE");
  app.add_flag("--json", json, "print one JSON object");
  app.add_option("--at", lengths, "context lengths for the reach (default 4096 65536 1048576)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{2}, kMaxPositions));
  OptionFlags flags(app, [](const ServeOption& option) { return option.model; });
  flags.add_model_argument(app);
  app.footer(std::string(kSettingsHelp) +
             "\nExamples:\n"
             "  bam inspect demo\n"
             "  bam inspect ./my-checkpoint --at 512 524288 --json\n"
             "  bam inspect demo --measure 65536\n"
             "  bam inspect demo --stages 2\n"
             "  bam inspect demo --stages 2 --measure 65536\n"
             "  bam inspect demo --look @book.txt --layer 2 --head 5 --bins 512 --csv row.csv");
  return flags.run(app, argc, argv, [&](const ServeConfig& config) {
    if (app.count("--look") > 0) {
      look.json = json;
      look.look.peaks = std::max<int32_t>(look.look.peaks, look.json ? 0 : 1);
      print_look(config.model, look);
      return 0;
    }
    if (lengths.empty()) lengths = {4096, 65536, 1048576};
    Inspection result = inspect_checkpoint(config.model, lengths);
    if (stages > 0 && measure > 0) result.layer_times = measure_layers(config.model, measure);
    if (stages > 0) result.stages = share_layers(result, stages);
    if (measure > 0) result.measured = measure_attention(config.model, measure);
    if (json) {
      std::cout << to_json(result).dump(2) << "\n";
    } else {
      print_text(result);
    }
    return 0;
  });
}

}  // namespace bam
