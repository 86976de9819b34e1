#include "tests/support/checkpoint_builder.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace bam::testing {
namespace {

using json = nlohmann::ordered_json;

// splitmix64 and sums of its lanes: the same numbers with every compiler and C library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
  // Nearly normal, standard deviation 1, never beyond 3.5.
  float normal() {
    const uint64_t bits = next();
    const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return static_cast<float>((static_cast<double>(sum) / 65535.0 - 2.0) * 1.7320508075688772);
  }

 private:
  uint64_t state_;
};

const char* dtype_tag(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    default: throw std::invalid_argument("checkpoints hold f32, f16 or bf16");
  }
}

const char* torch_dtype_name(DType dtype) {
  return dtype == DType::kF16 ? "float16" : dtype == DType::kBF16 ? "bfloat16" : "float32";
}

// Priors like those of trained models: local, heavy-tailed, nearly uniform and retrieval (beta < 0) heads.
PriorParams trained_looking_prior(Random& random, int64_t head) {
  static constexpr std::array<PriorParams, 6> kKinds = {
      {{-1.5, 1.0, 0.0}, {-0.5, 0.7, 0.1}, {0.4, 0.35, -0.2}, {0.0, 0.0, 0.0}, {-2.0, -0.3, 0.05}, {-3.0, -0.6, 0.0}}};
  PriorParams prior = kKinds[static_cast<size_t>(head) % kKinds.size()];
  prior.alpha += random.uniform(-0.3, 0.3);
  prior.beta += random.uniform(-0.05, 0.05);
  prior.theta_mu += random.uniform(-0.1, 0.1);
  return prior;
}

class TensorMaker {
 public:
  explicit TensorMaker(const CheckpointSpec& spec) : spec_(spec), random_(spec.seed) {}

  std::vector<RawTensor> make() {
    const ModelConfig& c = spec_.config;
    linear("tok_embeddings.weight", c.vocab_size, c.hidden_size, 1.0);
    if (c.position_encoding == PositionEncoding::kBam && c.prior_scope == PriorScope::kGlobal) prior("prior.", 0);
    if (c.position_encoding == PositionEncoding::kT5 && c.prior_scope == PriorScope::kGlobal)
      relative_bias("relative_bias");
    for (int64_t layer = 0; layer < c.num_layers; ++layer) make_layer(layer);
    norm("norm.weight");
    if (!c.tie_word_embeddings) linear("output.weight", c.vocab_size, c.hidden_size, gain(c.hidden_size));
    return std::move(tensors_);
  }

 private:
  void make_layer(int64_t layer) {
    const ModelConfig& c = spec_.config;
    const std::string prefix = fmt::format("layers.{}.", layer);
    const std::string attention = prefix + "attention.";
    norm(prefix + "attention_norm.weight");
    linear(attention + "wq.weight", c.q_size(), c.hidden_size, gain(c.hidden_size));
    linear(attention + "wk.weight", c.kv_size(), c.hidden_size, gain(c.hidden_size));
    linear(attention + "wv.weight", c.kv_size(), c.hidden_size, gain(c.hidden_size));
    linear(attention + "wo.weight", c.hidden_size, c.q_size(), gain(c.q_size()));
    if (c.ssmax) seq_scale(attention + "seq_scale", layer);
    if (c.position_encoding == PositionEncoding::kBam && c.prior_scope == PriorScope::kLayer) {
      prior(attention + "prior.", layer);
    }
    if (c.position_encoding == PositionEncoding::kT5 && c.prior_scope == PriorScope::kLayer) {
      relative_bias(attention + "relative_bias");
    }
    norm(prefix + "ffn_norm.weight");
    linear(prefix + "feed_forward.w1.weight", c.intermediate_size, c.hidden_size, gain(c.hidden_size));
    linear(prefix + "feed_forward.w2.weight", c.hidden_size, c.intermediate_size, gain(c.intermediate_size));
    linear(prefix + "feed_forward.w3.weight", c.intermediate_size, c.hidden_size, gain(c.hidden_size));
  }

  double gain(int64_t inputs) const { return spec_.weight_gain / std::sqrt(static_cast<double>(inputs)); }

  void add(std::string name, std::vector<int64_t> shape, const std::vector<float>& values) {
    tensors_.push_back(make_tensor(std::move(name), spec_.dtype, std::move(shape), values));
  }

  void linear(std::string name, int64_t rows, int64_t columns, double deviation) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& value : values) value = static_cast<float>(deviation) * random_.normal();
    add(std::move(name), {rows, columns}, values);
  }

  void norm(std::string name) {
    std::vector<float> values(static_cast<size_t>(spec_.config.hidden_size));
    for (float& value : values) value = 1.0f + 0.1f * random_.normal();
    add(std::move(name), {spec_.config.hidden_size}, values);
  }

  void per_head(std::string name, const std::vector<float>& values) {
    const int64_t heads = spec_.config.num_heads;
    add(std::move(name), spec_.authors_shapes ? std::vector<int64_t>{1, heads, 1, 1} : std::vector<int64_t>{heads},
        values);
  }

  // The given values may be one set for all layers or one set per layer.
  template <typename T>
  const T& given(const std::vector<T>& values, int64_t layer, int64_t head) const {
    const size_t heads = static_cast<size_t>(spec_.config.num_heads);
    const size_t per_layer = heads * static_cast<size_t>(spec_.config.num_layers);
    if (values.size() != heads && values.size() != per_layer) {
      throw std::invalid_argument("prior and seq_scale need [heads] or [layers * heads] values");
    }
    const size_t base = values.size() == heads ? 0 : static_cast<size_t>(layer) * heads;
    return values[base + static_cast<size_t>(head)];
  }

  void seq_scale(std::string name, int64_t layer) {
    std::vector<float> values;
    for (int64_t head = 0; head < spec_.config.num_heads; ++head) {
      const float random = static_cast<float>(random_.uniform(0.15, 0.6));
      values.push_back(spec_.seq_scale.empty() ? random : given(spec_.seq_scale, layer, head));
    }
    per_head(std::move(name), values);
  }

  void prior(const std::string& prefix, int64_t layer) {
    std::vector<float> shape, scale, loc;
    for (int64_t head = 0; head < spec_.config.num_heads; ++head) {
      const PriorParams random = trained_looking_prior(random_, head + layer);
      const PriorParams& value = spec_.prior.empty() ? random : given(spec_.prior, layer, head);
      shape.push_back(static_cast<float>(value.beta));
      scale.push_back(static_cast<float>(value.alpha));
      loc.push_back(static_cast<float>(value.theta_mu));
    }
    per_head(prefix + "shape", shape);
    per_head(prefix + "scale", scale);
    per_head(prefix + "loc", loc);
  }

  // Every second head falls with the distance; none is smooth.
  void relative_bias(std::string name) {
    const ModelConfig& c = spec_.config;
    if (!spec_.relative_bias.empty()) {
      return add(std::move(name), {c.relative_buckets, c.num_heads}, spec_.relative_bias);
    }
    std::vector<float> values;
    for (int64_t b = 0; b < c.relative_buckets; ++b) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        values.push_back((h % 2 == 0 ? -0.2f * static_cast<float>(b) : 0.0f) + random_.normal());
      }
    }
    add(std::move(name), {c.relative_buckets, c.num_heads}, values);
  }

  const CheckpointSpec& spec_;
  Random random_;
  std::vector<RawTensor> tensors_;
};

void write_shards(const CheckpointSpec& spec, const std::filesystem::path& dir) {
  const std::vector<RawTensor> tensors = make_tensors(spec);
  if (spec.num_shards <= 1) {
    write_file(dir / "model.safetensors", serialize_safetensors(tensors, spec.pad_header));
    return;
  }
  const size_t num_shards = static_cast<size_t>(spec.num_shards);
  json weight_map = json::object();
  uint64_t total_bytes = 0;
  for (size_t shard = 0; shard < num_shards; ++shard) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
    const size_t begin = tensors.size() * shard / num_shards;
    const size_t end = tensors.size() * (shard + 1) / num_shards;
    const std::vector<RawTensor> part(tensors.begin() + static_cast<ptrdiff_t>(begin),
                                      tensors.begin() + static_cast<ptrdiff_t>(end));
    write_file(dir / name, serialize_safetensors(part, spec.pad_header));
    for (const RawTensor& tensor : part) {
      weight_map[tensor.name] = name;
      total_bytes += tensor.data.size();
    }
  }
  const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  write_file(dir / "model.safetensors.index.json", index.dump(2));
}

}  // namespace

RawTensor make_tensor(std::string name, DType dtype, std::vector<int64_t> shape, const std::vector<float>& values) {
  RawTensor tensor{std::move(name), dtype_tag(dtype), std::move(shape), {}};
  if (dtype == DType::kF32) {
    tensor.data.resize(values.size() * sizeof(float));
    if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
    return tensor;
  }
  tensor.data.resize(values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = dtype == DType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    std::memcpy(tensor.data.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return tensor;
}

std::string serialize_safetensors(const std::vector<RawTensor>& tensors, bool pad_header) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  size_t offset = 0;
  for (const RawTensor& tensor : tensors) {
    const size_t end = offset + tensor.data.size();
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  if (pad_header) text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file(sizeof(uint64_t), '\0');
  static_assert(std::endian::native == std::endian::little);
  const uint64_t header_bytes = text.size();
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  file += text;
  for (const RawTensor& tensor : tensors) file += tensor.data;
  return file;
}

ModelConfig tiny_config(PositionEncoding encoding, bool ssmax) {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 4;
  config.head_dim = 16;
  config.vocab_size = 512;
  config.max_position_embeddings = 128;
  config.position_encoding = encoding;
  config.ssmax = ssmax;
  config.prior_form = ssmax ? PriorForm::kScaleOutside : PriorForm::kScaleInside;
  if (encoding == PositionEncoding::kRopeLocal) config.sliding_window = 24;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

std::string model_config_json(const ModelConfig& c) {
  json config = {
      {"model_type", "bam"},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"vocab_size", c.vocab_size},
      {"rms_norm_eps", static_cast<double>(c.rms_norm_eps)},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"max_position_embeddings", c.max_position_embeddings},
      {"position_encoding", position_encoding_name(c.position_encoding)},
      {"ssmax", c.ssmax},
      {"ssmax_prior", c.ssmax_prior},
      {"prior_form", c.prior_form == PriorForm::kScaleOutside ? "scale_outside" : "scale_inside"},
      {"prior_scope", c.prior_scope == PriorScope::kLayer ? "layer" : "global"},
      {"prior_eps", c.prior_eps},
      {"rope_theta", c.rope_theta},
      {"rope_style", c.rope_style == RopeStyle::kInterleaved ? "interleaved" : "rotate_half"},
      {"sinusoidal_theta", c.sinusoidal_theta},
      {"relative_attention_num_buckets", c.relative_buckets},
      {"relative_attention_max_distance", c.relative_max_distance},
      {"torch_dtype", torch_dtype_name(c.torch_dtype)},
  };
  if (c.sliding_window >= 0) config["sliding_window"] = c.sliding_window;
  if (c.bos_token_id >= 0) config["bos_token_id"] = c.bos_token_id;
  if (!c.eos_token_ids.empty()) config["eos_token_id"] = c.eos_token_ids;
  return config.dump(2);
}

std::vector<RawTensor> make_tensors(const CheckpointSpec& spec) { return TensorMaker(spec).make(); }

std::filesystem::path write_checkpoint(const CheckpointSpec& spec, const std::filesystem::path& dir) {
  std::filesystem::create_directories(dir);
  ModelConfig config = spec.config;
  config.torch_dtype = spec.dtype;
  write_file(dir / "config.json", model_config_json(config));
  write_shards(spec, dir);
  if (spec.with_tokenizer) {
    write_file(dir / "tokenizer.model", read_file(fixtures_dir() / "tokenizer.model"));
  }
  if (!spec.tokenizer_config.empty()) write_file(dir / "tokenizer_config.json", spec.tokenizer_config);
  return dir;
}

}  // namespace bam::testing
