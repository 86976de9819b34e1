#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/model_setup.h"
#include "app/option_flags.h"
#include "engine/kv_geometry.h"
#include "kernels/paged_kv.h"
#include "models/spectral.h"
#include "models/weights.h"
#include "server/metrics.h"

namespace bam {

namespace {

using Json = nlohmann::ordered_json;

constexpr DType kKvTypes[] = {DType::kF32, DType::kF16, DType::kI8, DType::kI4};

struct Inspection {
  std::filesystem::path checkpoint;
  ModelConfig config;
  uint64_t file_bytes = 0;
  int64_t num_files = 0;
  std::vector<HeadReport> heads;  // reach at the first of `lengths`
  std::vector<int64_t> lengths;
  std::vector<std::vector<int64_t>> reach;  // [length][head]
  uint64_t kv_memory_bytes = 0;
};

AttentionSpec layer_spec(const ModelConfig& config, const LayerWeights& layer) {
  AttentionSpec spec;
  spec.num_heads = static_cast<int>(config.num_heads);
  spec.num_kv_heads = static_cast<int>(config.num_kv_heads);
  spec.head_dim = static_cast<int>(config.head_dim);
  spec.encoding = config.position_encoding;
  spec.ssmax = config.ssmax;
  spec.ssmax_prior = config.ssmax_prior;
  spec.prior_form = config.prior_form;
  spec.prior_eps = config.prior_eps;
  spec.window = config.position_encoding == PositionEncoding::kRopeLocal ? config.sliding_window : -1;
  spec.seq_scale = layer.seq_scale;
  spec.prior = layer.prior;
  return spec;
}

// Everything comes from the mapped file: no weight is converted but the q and k projections of one layer at a time.
Inspection inspect_checkpoint(const ModelSettings& settings, const std::vector<int64_t>& lengths) {
  Inspection out;
  out.checkpoint = find_checkpoint(settings.model);
  out.config = load_model_config(out.checkpoint);
  const ModelConfig& config = out.config;
  const CheckpointWeights weights = load_weights(out.checkpoint, config, /*check_finite=*/false);
  out.file_bytes = weights.file_bytes;
  out.num_files = static_cast<int64_t>(weights.files.size());
  out.lengths = lengths;
  out.reach.resize(lengths.size());
  const bool rotated =
      config.position_encoding == PositionEncoding::kRope || config.position_encoding == PositionEncoding::kRopeLocal;
  const auto rows_of = [&](const std::vector<float>& matrix, int64_t head) {
    const int64_t block = config.head_dim * config.hidden_size;
    return std::vector<float>(matrix.begin() + head * block, matrix.begin() + (head + 1) * block);
  };
  for (int64_t l = 0; l < config.num_layers; ++l) {
    const LayerWeights& layer = weights.layers[static_cast<size_t>(l)];
    const AttentionSpec spec = layer_spec(config, layer);
    const std::vector<float> wq = layer.wq.to_f32(), wk = layer.wk.to_f32(), norm = layer.attention_norm.to_f32();
    for (int64_t h = 0; h < config.num_heads; ++h) {
      HeadReport head;
      head.layer = static_cast<int>(l);
      head.head = static_cast<int>(h);
      if (!layer.prior.empty()) {
        const PriorParams& prior = layer.prior[static_cast<size_t>(h)];
        head.alpha = prior.alpha;
        head.beta = prior.beta;
        head.theta_mu = prior.theta_mu;
      }
      if (!layer.seq_scale.empty()) head.seq_scale = layer.seq_scale[static_cast<size_t>(h)];
      const int64_t kv_head = h / (config.num_heads / config.num_kv_heads);
      head.logit_bound =
          logit_bound(rows_of(wq, h), rows_of(wk, kv_head), norm, config.head_dim, config.hidden_size, rotated);
      for (size_t i = 0; i < lengths.size(); ++i) {
        out.reach[i].push_back(
            static_reach(spec, static_cast<int>(h), head.logit_bound, settings.attention_epsilon, lengths[i]));
      }
      head.reach = out.reach.front().back();
      out.heads.push_back(head);
    }
  }
  out.kv_memory_bytes = settings.engine.kv_memory_bytes != 0 ? settings.engine.kv_memory_bytes
                                                             : make_backend(settings)->free_memory_bytes();
  return out;
}

// Bytes that one token takes in all layers when no page is freed early.
double kv_bytes_per_token(const ModelConfig& config, DType dtype, int page_size) {
  const KvLayout layout = make_kv_layout(dtype, static_cast<int>(config.head_dim), page_size);
  return static_cast<double>(layout.page_bytes()) / page_size *
         static_cast<double>(config.num_layers * config.num_kv_heads);
}

std::string reach_text(int64_t reach) { return reach < 0 ? "all" : std::to_string(reach); }

Json to_json(const Inspection& in, int page_size) {
  const ModelConfig& config = in.config;
  Json kv = Json::array();
  for (const DType dtype : kKvTypes) {
    const double bytes = kv_bytes_per_token(config, dtype, page_size);
    kv.push_back({{"dtype", dtype_name(dtype)},
                  {"bytes_per_token", bytes},
                  {"tokens_that_fit", static_cast<int64_t>(static_cast<double>(in.kv_memory_bytes) / bytes)}});
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
  return {{"checkpoint", in.checkpoint.string()},
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
          {"kv_memory_bytes", in.kv_memory_bytes},
          {"kv", std::move(kv)},
          {"prior", std::move(heads)}};
}

void print_text(const Inspection& in, int page_size) {
  const ModelConfig& config = in.config;
  std::string out;
  out += fmt::format("checkpoint   {}\n", in.checkpoint.string());
  out += fmt::format(
      "parameters   {} ({} embedding + {} rest)\n",
      human_count(static_cast<double>(config.num_parameters_without_embedding() + config.num_embedding_parameters())),
      human_count(static_cast<double>(config.num_embedding_parameters())),
      human_count(static_cast<double>(config.num_parameters_without_embedding())));
  out += fmt::format("files        {} in {} file(s), {}\n", human_bytes(in.file_bytes), in.num_files,
                     dtype_name(config.torch_dtype));
  out += fmt::format("shape        {} layers, hidden {}, FFN {}, {} heads ({} KV) of {}, vocabulary {}\n",
                     config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads,
                     config.num_kv_heads, config.head_dim, config.vocab_size);
  out += fmt::format("positions    {}{}, trained on {} tokens\n\n", position_encoding_name(config.position_encoding),
                     config.ssmax ? " with SSMax" : "", config.max_position_embeddings);
  out += fmt::format("KV cache     bytes/token   tokens in {}\n", human_bytes(in.kv_memory_bytes));
  for (const DType dtype : kKvTypes) {
    const double bytes = kv_bytes_per_token(config, dtype, page_size);
    out += fmt::format("  {:<10} {:>12.0f}   {}\n", dtype_name(dtype), bytes,
                       static_cast<int64_t>(static_cast<double>(in.kv_memory_bytes) / bytes));
  }
  out += "\nlayer head   theta_alpha  theta_beta  theta_mu        s   class       bound";
  for (const int64_t length : in.lengths)
    out += fmt::format("  {:>12}", "reach@" + human_count(static_cast<double>(length)));
  out += "\n";
  for (size_t i = 0; i < in.heads.size(); ++i) {
    const HeadReport& head = in.heads[i];
    out +=
        fmt::format("{:>5} {:>4}   {:>11.4f}  {:>10.4f}  {:>8.4f}  {:>7.4f}   {:<10} {:>6.1f}", head.layer, head.head,
                    head.alpha, head.beta, head.theta_mu, head.seq_scale, head_class(config, head), head.logit_bound);
    for (size_t k = 0; k < in.lengths.size(); ++k) out += fmt::format("  {:>12}", reach_text(in.reach[k][i]));
    out += "\n";
  }
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
  app.add_flag("--json", json, "print one JSON object");
  app.add_option("--at", lengths, "context lengths for the reach (default 4096 65536 1048576)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{2}, kMaxPositions));
  OptionFlags flags(app, [](const ServeOption& option) { return option.model; });
  app.footer("Examples:\n  bam inspect --model demo\n  bam inspect --model ./my-checkpoint --at 512 524288 --json");
  return flags.run("inspect", app, argc, argv, [&](const ServeConfig& config) {
    if (lengths.empty()) lengths = {4096, 65536, 1048576};
    const Inspection result = inspect_checkpoint(config.model, lengths);
    if (json) {
      std::cout << to_json(result, config.model.engine.page_size).dump(2) << "\n";
    } else {
      print_text(result, config.model.engine.page_size);
    }
    return 0;
  });
}

}  // namespace bam
