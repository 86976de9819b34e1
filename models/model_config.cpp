#include "models/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json_fields.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "kernels/head_bias.h"

namespace bam {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 20;  // hidden, intermediate, heads * head_dim
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxStatedLength = int64_t{1} << 40;

template <typename T>
using Choice = std::pair<std::string_view, T>;

constexpr std::array<Choice<PositionEncoding>, 7> kPositionEncodings = {{
    {"bam", PositionEncoding::kBam},
    {"alibi", PositionEncoding::kAlibi},
    {"nope", PositionEncoding::kNope},
    {"rope", PositionEncoding::kRope},
    {"rope_local", PositionEncoding::kRopeLocal},
    {"sinusoidal", PositionEncoding::kSinusoidal},
    {"t5", PositionEncoding::kT5},
}};
constexpr std::array<Choice<int>, 1> kModelTypes = {{{"bam", 0}}};
constexpr std::array<Choice<PriorForm>, 2> kPriorForms = {
    {{"scale_outside", PriorForm::kScaleOutside}, {"scale_inside", PriorForm::kScaleInside}}};
constexpr std::array<Choice<PriorScope>, 2> kPriorScopes = {
    {{"layer", PriorScope::kLayer}, {"global", PriorScope::kGlobal}}};
constexpr std::array<Choice<RopeStyle>, 2> kRopeStyles = {
    {{"interleaved", RopeStyle::kInterleaved}, {"rotate_half", RopeStyle::kRotateHalf}}};
constexpr std::array<Choice<DType>, 4> kTorchDTypes = {
    {{"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}, {"int4", DType::kI4}}};

int64_t required_size(FieldReader& fields, const char* key, int64_t max) {
  fields.require(key);
  return fields.integer(key, 1, max).value_or(1);
}

template <typename T, size_t N>
std::optional<T> choice(FieldReader& fields, const char* key, const std::array<Choice<T>, N>& choices) {
  return fields.choice<T>(key, std::span<const Choice<T>>(choices));
}

int32_t token_id(FieldReader& fields, const char* key, const Json& value, int64_t vocab_size) {
  const auto id = as_integer(value, 0, std::numeric_limits<int32_t>::max());
  if (!id) {
    fields.fail(key, fmt::format("'{}' must be a token id or a list of them, got {}", key, quote_json(value)));
  } else if (*id >= vocab_size) {
    fields.fail(key, fmt::format("'{}' is {}, but vocab_size is {}", key, *id, vocab_size));
  }
  return static_cast<int32_t>(id.value_or(-1));
}

// One id or a list of them.
std::vector<int32_t> token_ids(FieldReader& fields, const char* key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const Json* value = fields.raw(key);
  if (value == nullptr) return ids;
  if (!value->is_array()) return {token_id(fields, key, *value, vocab_size)};
  for (const Json& element : *value) {
    const int32_t id = token_id(fields, key, element, vocab_size);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

void read_sizes(FieldReader& fields, ModelConfig& config) {
  config.hidden_size = required_size(fields, "hidden_size", kMaxSize);
  config.intermediate_size = required_size(fields, "intermediate_size", kMaxSize);
  config.num_layers = required_size(fields, "num_hidden_layers", kMaxLayers);
  config.num_heads = required_size(fields, "num_attention_heads", kMaxSize);
  config.num_kv_heads = fields.integer("num_key_value_heads", 1, kMaxSize).value_or(config.num_heads);
  config.vocab_size = required_size(fields, "vocab_size", kMaxVocab);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxStatedLength).value_or(0);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.fail("num_attention_heads",
                fmt::format("'num_attention_heads' ({}) must be a multiple of num_key_value_heads ({})",
                            config.num_heads, config.num_kv_heads));
  }
  if (fields.has("head_dim")) {
    config.head_dim = required_size(fields, "head_dim", kMaxSize);
  } else {
    if (config.hidden_size % config.num_heads != 0) {
      fields.fail("head_dim", fmt::format("'head_dim' is missing, and hidden_size ({}) is not a multiple of "
                                          "num_attention_heads ({})",
                                          config.hidden_size, config.num_heads));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.q_size() > kMaxSize) {
    fields.fail("head_dim", fmt::format("'head_dim' ({}) times num_attention_heads ({}) must be at most {}",
                                        config.head_dim, config.num_heads, kMaxSize));
  }
}

void read_positions(FieldReader& fields, ModelConfig& config) {
  fields.require("position_encoding");
  config.position_encoding = choice(fields, "position_encoding", kPositionEncodings).value_or(PositionEncoding::kBam);
  config.ssmax = fields.boolean("ssmax").value_or(false);
  config.ssmax_prior = fields.boolean("ssmax_prior").value_or(true);
  // The authors' SSMax model scales outside of the power, their model without SSMax inside.
  config.prior_form = choice(fields, "prior_form", kPriorForms)
                          .value_or(config.ssmax ? PriorForm::kScaleOutside : PriorForm::kScaleInside);
  config.prior_scope = choice(fields, "prior_scope", kPriorScopes).value_or(PriorScope::kLayer);
  config.prior_eps = fields.positive("prior_eps", 1.0).value_or(1e-5);
  config.rope_theta = fields.positive("rope_theta", 1e15).value_or(500000.0);
  config.rope_style = choice(fields, "rope_style", kRopeStyles).value_or(RopeStyle::kInterleaved);
  config.sinusoidal_theta = fields.positive("sinusoidal_theta", 1e15).value_or(10000.0);

  config.relative_buckets = fields.integer("relative_attention_num_buckets", 2, kMaxBiasBuckets).value_or(32);
  config.relative_max_distance = fields.integer("relative_attention_max_distance", 2, kMaxPositions).value_or(128);
  if (config.relative_max_distance <= config.relative_buckets / 2) {
    fields.fail("relative_attention_max_distance",
                fmt::format("'relative_attention_max_distance' ({}) must be more than half of "
                            "relative_attention_num_buckets ({})",
                            config.relative_max_distance, config.relative_buckets));
  }

  const bool local = config.position_encoding == PositionEncoding::kRopeLocal;
  const int64_t window = fields.integer("sliding_window", 1, kMaxStatedLength).value_or(-1);
  if (local && window < 0)
    fields.fail("sliding_window", "'sliding_window' is missing: position_encoding \"rope_local\" needs it");
  config.sliding_window = local ? window : -1;
  if ((local || config.position_encoding == PositionEncoding::kRope) && config.head_dim % 2 != 0) {
    fields.fail("head_dim", fmt::format("'head_dim' must be even for rotary positions, got {}", config.head_dim));
  }
}

}  // namespace

int64_t ModelConfig::num_parameters_without_embedding() const {
  const int64_t attention = hidden_size * (2 * q_size() + 2 * kv_size());
  const int64_t feed_forward = 3 * hidden_size * intermediate_size;
  const int64_t prior = position_encoding == PositionEncoding::kBam  ? 3 * num_heads
                        : position_encoding == PositionEncoding::kT5 ? relative_buckets * num_heads
                                                                     : 0;
  const bool prior_per_layer = prior_scope == PriorScope::kLayer;
  const int64_t layer =
      attention + feed_forward + 2 * hidden_size + (ssmax ? num_heads : 0) + (prior_per_layer ? prior : 0);
  const int64_t head = tie_word_embeddings ? 0 : vocab_size * hidden_size;
  return num_layers * layer + (prior_per_layer ? 0 : prior) + hidden_size + head;
}

std::string_view position_encoding_name(PositionEncoding encoding) {
  for (const auto& [name, value] : kPositionEncodings) {
    if (value == encoding) return name;
  }
  return "?";
}

ModelConfig parse_model_config(const std::string& json_text, const std::string& origin) {
  const Result<Json> document = parse_json(json_text, {.max_bytes = size_t{1} << 20});
  if (!document) throw Error("{}: {}", origin, document.error().what());
  if (!document->is_object()) throw Error("{}: must be a JSON object", origin);
  FieldReader fields(*document, {}, throw_field_error(origin));
  fields.require("model_type");
  choice(fields, "model_type", kModelTypes);
  ModelConfig config;
  read_sizes(fields, config);
  read_positions(fields, config);
  config.rms_norm_eps = static_cast<float>(fields.positive("rms_norm_eps", 1.0).value_or(1e-5));
  if (config.rms_norm_eps < std::numeric_limits<float>::min()) {
    fields.fail("rms_norm_eps", "'rms_norm_eps' is too small for float32");
  }
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  if (const Json* bos = fields.raw("bos_token_id")) {
    config.bos_token_id = token_id(fields, "bos_token_id", *bos, config.vocab_size);
  }
  config.eos_token_ids = token_ids(fields, "eos_token_id", config.vocab_size);
  config.torch_dtype = choice(fields, "torch_dtype", kTorchDTypes).value_or(DType::kF32);
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& checkpoint_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(checkpoint_dir, error)) {
    throw Error("{}: no such checkpoint folder", checkpoint_dir.string());
  }
  const std::filesystem::path path = checkpoint_dir / "config.json";
  return parse_model_config(std::string(MappedFile(path).text()), path.string());
}

}  // namespace bam
