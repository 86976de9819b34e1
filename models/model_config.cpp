#include "models/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "models/strict_json.h"

namespace bam {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 20;  // hidden, intermediate, heads * head_dim
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

template <typename T>
using Choice = std::pair<std::string_view, T>;

constexpr std::array<Choice<PositionEncoding>, 6> kPositionEncodings = {{
    {"bam", PositionEncoding::kBam},
    {"alibi", PositionEncoding::kAlibi},
    {"nope", PositionEncoding::kNope},
    {"rope", PositionEncoding::kRope},
    {"rope_local", PositionEncoding::kRopeLocal},
    {"sinusoidal", PositionEncoding::kSinusoidal},
}};
constexpr std::array<Choice<int>, 1> kModelTypes = {{{"bam", 0}}};
constexpr std::array<Choice<PriorForm>, 2> kPriorForms = {
    {{"scale_outside", PriorForm::kScaleOutside}, {"scale_inside", PriorForm::kScaleInside}}};
constexpr std::array<Choice<PriorScope>, 2> kPriorScopes = {
    {{"layer", PriorScope::kLayer}, {"global", PriorScope::kGlobal}}};
constexpr std::array<Choice<RopeStyle>, 2> kRopeStyles = {
    {{"interleaved", RopeStyle::kInterleaved}, {"rotate_half", RopeStyle::kRotateHalf}}};
constexpr std::array<Choice<DType>, 3> kTorchDTypes = {
    {{"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}}};

// Typed access to the keys of one JSON object. A null value counts as a missing key, as writers of config.json mean it.
class ConfigReader {
 public:
  ConfigReader(const json& object, const std::string& origin) : object_(object), origin_(origin) {}

  [[noreturn]] void fail(const char* key, const std::string& what) const {
    throw Error("{}: key '{}' {}", origin_, key, what);
  }

  bool has(const char* key) const { return find(key) != nullptr; }

  // A whole number in [low, high].
  int64_t integer(const char* key, int64_t low, int64_t high) const {
    return checked_integer(key, *require(key), low, high);
  }
  int64_t integer_or(const char* key, int64_t low, int64_t high, int64_t fallback) const {
    const json* value = find(key);
    return value == nullptr ? fallback : checked_integer(key, *value, low, high);
  }

  // A finite number > 0 and <= high.
  double positive_or(const char* key, double high, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number > 0) || !std::isfinite(number)) fail(key, "must be a positive number, got " + quote_json(*value));
    if (number > high) fail(key, fmt::format("must be at most {}, got {}", high, quote_json(*value)));
    return number;
  }

  bool boolean_or(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "must be true or false, got " + quote_json(*value));
    return value->get<bool>();
  }

  template <typename T>
  T choice(const char* key, std::span<const Choice<T>> choices) const {
    const json& value = *require(key);
    std::string names;
    for (const auto& [name, result] : choices) {
      if (value.is_string() && value.get_ref<const std::string&>() == name) return result;
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", name);
    }
    fail(key, fmt::format("must be {}{}, got {}", choices.size() > 1 ? "one of " : "", names, quote_json(value)));
  }
  template <typename T>
  T choice_or(const char* key, std::span<const Choice<T>> choices, T fallback) const {
    return has(key) ? choice<T>(key, choices) : fallback;
  }

  // eos_token_id: one id or a list of them.
  std::vector<int32_t> token_ids(const char* key, int64_t vocab_size) const {
    std::vector<int32_t> ids;
    const json* value = find(key);
    if (value == nullptr) return ids;
    if (!value->is_array()) return {token_id(key, *value, vocab_size)};
    for (const json& element : *value) {
      const int32_t id = token_id(key, element, vocab_size);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    return ids;
  }
  int32_t token_id_or(const char* key, int64_t vocab_size, int32_t fallback) const {
    const json* value = find(key);
    return value == nullptr ? fallback : token_id(key, *value, vocab_size);
  }

 private:
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json* require(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) fail(key, "is missing");
    return value;
  }

  int64_t checked_integer(const char* key, const json& value, int64_t low, int64_t high) const {
    const bool whole = value.is_number_integer();  // true for unsigned values too
    const bool fits =
        whole && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    const int64_t number = fits ? value.get<int64_t>() : 0;
    if (!whole || (fits && number < low)) {
      const std::string kind = low > 0 ? "a positive integer" : "an integer >= 0";
      fail(key, fmt::format("must be {}, got {}", kind, quote_json(value)));
    }
    if (!fits || number > high) fail(key, fmt::format("must be at most {}, got {}", high, quote_json(value)));
    return number;
  }

  int32_t token_id(const char* key, const json& value, int64_t vocab_size) const {
    const int64_t id = checked_integer(key, value, 0, std::numeric_limits<int32_t>::max());
    if (id >= vocab_size) fail(key, fmt::format("is {}, but vocab_size is {}", id, vocab_size));
    return static_cast<int32_t>(id);
  }

  const json& object_;
  const std::string& origin_;
};

void read_sizes(const ConfigReader& reader, ModelConfig& config) {
  config.hidden_size = reader.integer("hidden_size", 1, kMaxSize);
  config.intermediate_size = reader.integer("intermediate_size", 1, kMaxSize);
  config.num_layers = reader.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = reader.integer("num_attention_heads", 1, kMaxSize);
  config.num_kv_heads = reader.integer_or("num_key_value_heads", 1, kMaxSize, config.num_heads);
  config.vocab_size = reader.integer("vocab_size", 1, kMaxVocab);
  config.max_position_embeddings = reader.integer_or("max_position_embeddings", 1, kMaxPositions, 0);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.fail("num_attention_heads", fmt::format("({}) must be a multiple of num_key_value_heads ({})",
                                                   config.num_heads, config.num_kv_heads));
  }
  if (reader.has("head_dim")) {
    config.head_dim = reader.integer("head_dim", 1, kMaxSize);
  } else {
    if (config.hidden_size % config.num_heads != 0) {
      reader.fail("head_dim", fmt::format("is missing, and hidden_size ({}) is not a multiple of "
                                          "num_attention_heads ({})",
                                          config.hidden_size, config.num_heads));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.q_size() > kMaxSize) {
    reader.fail("head_dim", fmt::format("({}) times num_attention_heads ({}) must be at most {}", config.head_dim,
                                        config.num_heads, kMaxSize));
  }
}

void read_positions(const ConfigReader& reader, ModelConfig& config) {
  config.position_encoding = reader.choice<PositionEncoding>("position_encoding", kPositionEncodings);
  config.ssmax = reader.boolean_or("ssmax", false);
  config.ssmax_prior = reader.boolean_or("ssmax_prior", true);
  // The authors' SSMax model scales outside of the power, their model without SSMax inside.
  config.prior_form = reader.choice_or<PriorForm>("prior_form", kPriorForms,
                                                  config.ssmax ? PriorForm::kScaleOutside : PriorForm::kScaleInside);
  config.prior_scope = reader.choice_or<PriorScope>("prior_scope", kPriorScopes, PriorScope::kLayer);
  config.prior_eps = reader.positive_or("prior_eps", 1.0, 1e-5);
  config.rope_theta = reader.positive_or("rope_theta", 1e15, 500000.0);
  config.rope_style = reader.choice_or<RopeStyle>("rope_style", kRopeStyles, RopeStyle::kInterleaved);
  config.sinusoidal_theta = reader.positive_or("sinusoidal_theta", 1e15, 10000.0);

  const bool local = config.position_encoding == PositionEncoding::kRopeLocal;
  const int64_t window = reader.integer_or("sliding_window", 1, kMaxPositions, -1);
  if (local && window < 0) reader.fail("sliding_window", "is missing: position_encoding \"rope_local\" needs it");
  config.sliding_window = local ? window : -1;
  if ((local || config.position_encoding == PositionEncoding::kRope) && config.head_dim % 2 != 0) {
    reader.fail("head_dim", fmt::format("must be even for rotary positions, got {}", config.head_dim));
  }
}

}  // namespace

int64_t ModelConfig::num_parameters_without_embedding() const {
  const int64_t attention = hidden_size * (2 * q_size() + 2 * kv_size());
  const int64_t feed_forward = 3 * hidden_size * intermediate_size;
  const int64_t prior = position_encoding == PositionEncoding::kBam ? 3 * num_heads : 0;
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
  const Result<json> document = parse_strict_json(json_text, {.max_bytes = size_t{1} << 20, .max_depth = 32});
  if (!document) throw Error("{}: {}", origin, document.error().what());
  if (!document->is_object()) throw Error("{}: must be a JSON object", origin);
  const ConfigReader reader(*document, origin);
  reader.choice<int>("model_type", kModelTypes);
  ModelConfig config;
  read_sizes(reader, config);
  read_positions(reader, config);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1.0, 1e-5));
  if (config.rms_norm_eps < std::numeric_limits<float>::min()) {
    reader.fail("rms_norm_eps", "is too small for float32");
  }
  config.tie_word_embeddings = reader.boolean_or("tie_word_embeddings", false);
  config.bos_token_id = reader.token_id_or("bos_token_id", config.vocab_size, -1);
  config.eos_token_ids = reader.token_ids("eos_token_id", config.vocab_size);
  config.torch_dtype = reader.choice_or<DType>("torch_dtype", kTorchDTypes, DType::kF32);
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
