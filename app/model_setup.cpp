#include "app/model_setup.h"

#include <cstdlib>

#include "app/units.h"
#include "base/error.h"
#include "base/json_fields.h"
#include "base/mapped_file.h"
#include "base/plugin.h"
#include "engine/capacity.h"
#include "kernels/device.h"
#include "models/bam.h"
#include "models/weights.h"

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

}  // namespace

fs::path find_checkpoint(const std::string& model) {
  if (model == "demo") return find_demo();
  if (!fs::is_directory(model)) throw Error("--model: {} is not a folder", model);
  return model;
}

DType choose_weight_dtype(const std::string& dtype, const ModelConfig& config) {
  if (dtype == "f32") return DType::kF32;
  if (dtype == "f16") return DType::kF16;
  if (dtype == "bf16") return DType::kBF16;
  if (dtype == "int8") return DType::kI8;
  return config.torch_dtype;
}

std::unique_ptr<Backend> make_backend(const ModelSettings& settings) {
  const DType kv = settings.engine.kv_dtype;
  const bool integers = settings.attention_math == "int8";
  if (integers && kv != DType::kI8 && kv != DType::kI4)
    throw UsageError("--attention-math int8: needs --kv-dtype int8 or int4, not {}", dtype_name(kv));
  auto backend = make_backend(settings.device, {.num_threads = settings.threads,
                                                .math = settings.math,
                                                .attention_math = settings.attention_math,
                                                .operands = settings.dtype,
                                                .gemm = settings.cuda_gemm});
  if (integers && !backend->in_host_memory())
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

LoadedModel load_model(const ModelSettings& settings) {
  LoadedModel loaded;
  loaded.checkpoint = find_checkpoint(settings.model);
  const ModelConfig config = load_model_config(loaded.checkpoint);
  loaded.tokenizer = Tokenizer::load(loaded.checkpoint);
  if (loaded.tokenizer->vocab_size() > config.vocab_size) {
    throw Error("{}: has {} pieces, but vocab_size in config.json is {}",
                (loaded.checkpoint / "tokenizer.model").string(), loaded.tokenizer->vocab_size(), config.vocab_size);
  }
  loaded.defaults = load_sampling_defaults(loaded.checkpoint);
  loaded.backend = make_backend(settings);
  check_kv_dtype(*loaded.backend, settings.engine.kv_dtype);  // before gigabytes are read
  CheckpointWeights weights = load_weights(loaded.checkpoint, config);
  loaded.weight_dtype = choose_weight_dtype(settings.dtype, config);
  loaded.num_parameters = config.num_parameters_without_embedding() + config.num_embedding_parameters();

  ModelOptions options;
  options.weight_dtype = loaded.weight_dtype;
  options.max_rows = settings.engine.max_batched_tokens;
  options.max_logit_rows = std::max<int64_t>(64, settings.engine.max_num_seqs);
  options.attention = {.certified = settings.certified_attention, .epsilon = settings.attention_epsilon};
  options.use_reach = settings.certified_attention;
  auto model = std::make_unique<BamModel>(*loaded.backend, config, std::move(weights), options);
  loaded.weight_bytes = model->weight_bytes();
  loaded.fingerprint = model->fingerprint();
  loaded.engine = std::make_unique<Engine>(std::move(model), settings.engine, loaded.tokenizer->fingerprint());
  return loaded;
}

std::string LoadedModel::description() const {
  const EngineConfig& config = engine->config();
  return fmt::format("{}: {} parameters, {} {} | KV {} {} = {} tokens, context {} | {}", checkpoint.filename().string(),
                     format_magnitude(num_parameters), format_bytes(weight_bytes), dtype_name(weight_dtype),
                     format_bytes(config.kv_memory_bytes), dtype_name(config.kv_dtype), engine->capacity_tokens(),
                     config.max_model_len, backend->description());
}

}  // namespace bam
