#include "app/model_setup.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "app/suggest.h"
#include "app/units.h"
#include "base/error.h"
#include "base/json_fields.h"
#include "base/mapped_file.h"
#include "base/plugin.h"
#include "base/total_memory.h"
#include "base/utf8.h"
#include "engine/capacity.h"
#include "kernels/device.h"
#include "models/bam.h"
#include "models/stage_split.h"
#include "models/weights.h"
#include "transport/group.h"

namespace bam {

namespace fs = std::filesystem;

namespace {

fs::path find_demo() {
  std::vector<fs::path> places;
  if (const char* dir = std::getenv("BAM_DEMO_DIR")) places.emplace_back(dir);
  const fs::path base = executable_dir();
  places.push_back(base / "../checkpoints/demo");            // a build folder in the source tree
  places.push_back(base / "../share/bam/checkpoints/demo");  // an installation
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json")) return place.lexically_normal();
  }
  throw Error(
      "the bundled model is not in {} (nor in BAM_DEMO_DIR); give a checkpoint with --model DIR, or make a "
      "small random one: python3 tools/make_random_checkpoint.py --help",
      places.back().parent_path().parent_path().lexically_normal().string());
}

std::string conversion_hint(const fs::path& source) {
  return fmt::format(
      "--model: {} is a PyTorch checkpoint; convert it: python3 tools/convert.py {} NEW_FOLDER --tokenizer FILE",
      source.string(), source.string());
}

}  // namespace

fs::path find_checkpoint(const std::string& model) {
  if (model == "demo") return find_demo();
  if (model.empty()) throw Error("--model: its value is empty; give a checkpoint folder, or demo");
  const fs::path path(model);
  if (!fs::exists(path)) {
    const bool demo = model == "demo/" || !nearest_word(ascii_lower(model), {"demo"}).empty();
    throw Error("--model: {} does not exist{}", model, demo ? "; did you mean demo, the bundled model?" : "");
  }
  if (!fs::is_directory(path)) {
    if (path.extension() == ".pt" || path.extension() == ".pth") throw Error("{}", conversion_hint(path));
    throw Error("--model: {} is not a folder; give the one that holds config.json and the weights", model);
  }
  if (!fs::exists(path / "config.json")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".pt" || entry.path().extension() == ".pth") {
        throw Error("{}", conversion_hint(path));
      }
    }
    std::vector<std::string> below;
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (fs::exists(entry.path() / "config.json")) below.push_back(entry.path().string());
    }
    std::sort(below.begin(), below.end());
    if (below.size() > 3) below.resize(3);
    throw Error("--model: {} holds no checkpoint: there is no config.json{}", model,
                below.empty() ? "" : "; did you mean " + join(below, " or ") + "?");
  }
  return path;
}

DType choose_weight_dtype(const std::string& dtype, const ModelConfig& config) {
  if (dtype == "f32") return DType::kF32;
  if (dtype == "f16") return DType::kF16;
  if (dtype == "bf16") return DType::kBF16;
  if (dtype == "int8") return DType::kI8;
  if (dtype == "int4") return DType::kI4;
  return config.torch_dtype;
}

std::unique_ptr<Backend> make_backend(const ModelSettings& settings) {
  const DType kv = settings.engine.kv_dtype;
  const bool wanted = settings.attention_math == "int8";
  if (wanted && kv != DType::kI8 && kv != DType::kI4)
    throw UsageError("--attention-math int8: needs --kv-dtype int8 or int4, not {}", dtype_name(kv));
  // int8 pages lose nothing by it that can be measured; int4 pages are for who asks (docs/performance.md).
  const bool integers = wanted || (settings.attention_math == "auto" && kv == DType::kI8);
  auto backend = make_backend(settings.device, {.num_threads = settings.threads,
                                                .math = settings.math,
                                                .attention_math = integers ? "int8" : "f32",
                                                .operands = settings.dtype,
                                                .gemm = settings.cuda_gemm});
  if (wanted && !backend->in_host_memory())
    throw UsageError("--attention-math int8: there is no such arithmetic on {}", backend->description());
  return backend;
}

SamplingDefaults load_sampling_defaults(const fs::path& checkpoint) {
  SamplingDefaults defaults;
  const fs::path file = checkpoint / "generation_config.json";
  if (!fs::exists(file)) return defaults;
  const Result<Json> root = parse_json(std::string(MappedFile(file).text()));
  if (!root) throw Error("{}: {}", file.string(), root.error().what());
  if (!root->is_object()) throw Error("{}: must be a JSON object", file.string());
  FieldReader fields(*root, {}, throw_field_error(file.string()));
  const auto read = [&](const char* key, double min, double max, float& target) {
    target = static_cast<float>(fields.number(key, min, max).value_or(target));
  };
  read("temperature", 0, 100, defaults.temperature);
  read("top_p", 1e-9, 1, defaults.top_p);
  read("min_p", 0, 0.999999, defaults.min_p);
  read("repetition_penalty", 1e-6, 100, defaults.repetition_penalty);
  defaults.top_k = static_cast<int32_t>(fields.integer("top_k", 0, 1'000'000'000).value_or(defaults.top_k));
  defaults.max_new_tokens = fields.integer("max_new_tokens", 1, limits::kMaxTokens);
  // Hugging Face's switch for greedy decoding.
  if (!fields.boolean("do_sample").value_or(true) && !fields.has("temperature")) defaults.temperature = 0;
  return defaults;
}

void check_kv_memory(uint64_t wanted, uint64_t machine) {
  if (wanted > machine) {
    throw UsageError("--kv-memory: {} is more than the {} of memory that there are; leave it out to take what fits",
                     format_bytes(static_cast<double>(wanted)), format_bytes(static_cast<double>(machine)));
  }
}

std::unique_ptr<GroupSource> make_stage_group(const StageSettings& settings, int rank) {
  GroupOptions options;
  options.transport = settings.transport;
  options.rank = rank;
  options.size = static_cast<int>(settings.count);
  options.rendezvous = settings.rendezvous;
  options.address = settings.address;
  options.deadline = std::chrono::milliseconds(static_cast<int64_t>(1000 * settings.deadline_s));
  return make_group_source(options);
}

namespace {

StageRange choose_stage(const ModelSettings& settings, const ModelConfig& config, const CheckpointWeights& weights,
                        const ModelOptions& options, const Backend& backend, int rank, int size) {
  if (size == 1) return {};
  if (size > config.num_layers) {
    throw UsageError("--stages: {} stages need as many layers, the model has {}", size, config.num_layers);
  }
  const std::string& layers = settings.stages.layers;
  const std::vector<StageRange> ranges = layers.empty() ? split_checkpoint(config, weights, options, backend, size)
                                                        : parse_stage_layers(layers, config.num_layers);
  if (static_cast<int>(ranges.size()) != size) {
    throw UsageError("--stage-layers: '{}' has {} parts for {} stages", layers, ranges.size(), size);
  }
  return ranges[static_cast<size_t>(rank)];
}

}  // namespace

StageModel load_stage(const ModelSettings& settings, int rank, int size) {
  StageModel stage;
  stage.checkpoint = find_checkpoint(settings.model);
  const ModelConfig config = load_model_config(stage.checkpoint);
  stage.tokenizer = Tokenizer::load(stage.checkpoint);
  if (stage.tokenizer->vocab_size() > config.vocab_size) {
    throw Error("{}: has {} pieces, but vocab_size in config.json is {}",
                (stage.checkpoint / "tokenizer.model").string(), stage.tokenizer->vocab_size(), config.vocab_size);
  }
  stage.backend = make_backend(settings);
  // A device's own memory is asked for in one piece: what is taken is as good as not there.
  check_kv_memory(settings.engine.kv_memory_bytes,
                  stage.backend->in_host_memory() ? total_memory_bytes() : stage.backend->free_memory_bytes());
  check_kv_dtype(*stage.backend, settings.engine.kv_dtype);  // before gigabytes are read
  CheckpointWeights weights = load_weights(stage.checkpoint, config);
  stage.weight_dtype = choose_weight_dtype(settings.dtype, config);
  stage.num_parameters = config.num_parameters_without_embedding() + config.num_embedding_parameters();

  ModelOptions options;
  options.weight_dtype = stage.weight_dtype;
  options.max_rows = settings.engine.max_batched_tokens;
  options.max_logit_rows = std::max<int64_t>(64, settings.engine.max_num_seqs);
  options.attention = {.certified = settings.certified_attention, .epsilon = settings.attention_epsilon};
  options.kv_dtype = settings.engine.kv_dtype;
  options.use_reach = settings.certified_attention;
  options.stage = choose_stage(settings, config, weights, options, *stage.backend, rank, size);
  stage.model = std::make_unique<BamModel>(*stage.backend, config, std::move(weights), options);
  return stage;
}

std::string StageModel::description() const {
  const StageRange& range = model->stage();
  return fmt::format("layers {} to {} of {}, {} {} | {}", range.first_layer, range.first_layer + range.num_layers - 1,
                     checkpoint.filename().string(), format_bytes(static_cast<double>(model->weight_bytes())),
                     dtype_name(weight_dtype), backend->description());
}

LoadedModel load_model(const ModelSettings& settings) {
  LoadedModel loaded;
  if (settings.stages.count > 1) loaded.group = make_stage_group(settings.stages, 0);
  StageModel stage = load_stage(settings, 0, loaded.group ? loaded.group->size() : 1);
  loaded.checkpoint = stage.checkpoint;
  loaded.defaults = load_sampling_defaults(stage.checkpoint);
  loaded.backend = std::move(stage.backend);
  loaded.tokenizer = std::move(stage.tokenizer);
  loaded.weight_dtype = stage.weight_dtype;
  loaded.num_parameters = stage.num_parameters;
  loaded.weight_bytes = stage.model->weight_bytes();
  loaded.fingerprint = stage.model->fingerprint();
  loaded.engine = std::make_unique<Engine>(std::move(stage.model), settings.engine, loaded.tokenizer->fingerprint(),
                                           steady_time(), loaded.group.get());
  return loaded;
}

std::string LoadedModel::description() const {
  const ModelConfig& config = engine->model_config();
  return fmt::format("{}: {} parameters, {} {}, positions {}{}, trained on {} tokens", checkpoint.filename().string(),
                     format_magnitude(num_parameters), format_bytes(static_cast<double>(weight_bytes)),
                     dtype_name(weight_dtype), position_encoding_name(config.position_encoding),
                     config.ssmax ? " with SSMax" : "", config.max_position_embeddings);
}

std::string LoadedModel::running_description() const {
  const EngineConfig& config = engine->config();
  return fmt::format("KV {} {} = {} tokens, context {} | {}", format_bytes(static_cast<double>(config.kv_memory_bytes)),
                     dtype_name(config.kv_dtype), engine->capacity_tokens(), config.max_model_len,
                     backend->description());
}

}  // namespace bam
