#include "models/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "kernels/int4.h"
#include "models/fingerprint.h"
#include "models/finite_check.h"
#include "models/safetensors.h"

namespace bam {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

// Added to logits of a few hundred at most; far from where float32 products overflow.
constexpr float kMaxRelativeBias = 1e6f;

// Beyond this exp() and sinh() leave float32, and no trained model comes near.
constexpr double kMaxPriorExponent = 80.0;

std::string shape_text(const auto& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string non_finite_text(const NonFinite& bad) {
  return fmt::format("holds {} at index {}; weights must be finite", bad.is_nan ? "NaN" : "an infinity", bad.index);
}

// Hands out the tensors of a checkpoint by name and remembers which ones were asked for.
class TensorSource {
 public:
  TensorSource(const SafetensorsCheckpoint& checkpoint, const std::filesystem::path& folder)
      : checkpoint_(checkpoint), folder_(folder) {}

  bool contains(const std::string& name) const { return checkpoint_.tensors().contains(name); }

  WeightView take(const std::string& name, const std::vector<int64_t>& shape) { return take_any(name, {shape}); }

  // The matrix of a linear layer [out, in], which may be stored in four bits (kernels/int4.h).
  WeightView take_linear(const std::string& name, int64_t out, int64_t in);

  // [heads] values; the authors' files store them as [1, heads, 1, 1].
  std::vector<float> take_per_head(const std::string& name, int64_t heads) {
    return take_values(name, {{heads}, {1, heads, 1, 1}});
  }

  // Few numbers that are wanted as they are; checked.
  std::vector<float> take_values(const std::string& name, const std::vector<std::vector<int64_t>>& shapes) {
    const WeightView view = take_any(name, shapes);
    const std::optional<NonFinite> bad = find_non_finite(view);
    if (bad) fail(name, non_finite_text(*bad));
    return view.to_f32();
  }

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    const auto found = checkpoint_.tensors().find(name);
    const std::filesystem::path& path = found == checkpoint_.tensors().end() ? folder_ : found->second.file->path();
    throw Error("{}: tensor '{}' {}", path.string(), printable(name), what);
  }

  // Tensors that no part of the model uses mean that config.json describes another model.
  void refuse_leftovers(const ModelConfig& config) const;

 private:
  WeightView take_any(const std::string& name, const std::vector<std::vector<int64_t>>& shapes);
  const std::byte* take_bytes(const std::string& name, TensorType type, const std::vector<uint64_t>& shape);
  [[noreturn]] void fail_missing(const std::string& name) const;

  const SafetensorsCheckpoint& checkpoint_;
  const std::filesystem::path& folder_;
  std::set<std::string> used_;
};

WeightView TensorSource::take_any(const std::string& name, const std::vector<std::vector<int64_t>>& shapes) {
  const auto found = checkpoint_.tensors().find(name);
  if (found == checkpoint_.tensors().end()) fail_missing(name);
  const TensorInfo& tensor = *found->second.tensor;

  WeightView view;
  switch (tensor.type) {
    case TensorType::kF32: view.dtype = DType::kF32; break;
    case TensorType::kF16: view.dtype = DType::kF16; break;
    case TensorType::kBF16: view.dtype = DType::kBF16; break;
    default: fail(name, fmt::format("has dtype {}; F32, F16 or BF16 is needed", tensor_type_name(tensor.type)));
  }
  const auto matches = [&](const std::vector<int64_t>& shape) {
    return std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end(),
                      [](int64_t expected, uint64_t actual) { return static_cast<uint64_t>(expected) == actual; });
  };
  const auto shape = std::find_if(shapes.begin(), shapes.end(), matches);
  if (shape == shapes.end()) {
    std::vector<std::string> expected;
    for (const auto& option : shapes) expected.push_back(shape_text(option));
    fail(name,
         fmt::format("has shape {}; config.json asks for {}", shape_text(tensor.shape), fmt::join(expected, " or ")));
  }
  view.shape = *shape;
  view.name = name;
  view.data = found->second.file->data(tensor).data();
  used_.insert(name);
  return view;
}

const std::byte* TensorSource::take_bytes(const std::string& name, TensorType type,
                                          const std::vector<uint64_t>& shape) {
  const auto found = checkpoint_.tensors().find(name);
  if (found == checkpoint_.tensors().end()) fail_missing(name);
  const TensorInfo& tensor = *found->second.tensor;
  if (tensor.type != type || tensor.shape != shape) {
    fail(name, fmt::format("is {} {}; four bits of config.json's shape are {} {}", tensor_type_name(tensor.type),
                           shape_text(tensor.shape), tensor_type_name(type), shape_text(shape)));
  }
  used_.insert(name);
  return found->second.file->data(tensor).data();
}

WeightView TensorSource::take_linear(const std::string& name, int64_t out, int64_t in) {
  const auto found = checkpoint_.tensors().find(name);
  if (found == checkpoint_.tensors().end() || found->second.tensor->type != TensorType::kU8)
    return take(name, {out, in});
  const auto rows = static_cast<uint64_t>(out);
  WeightView view;
  view.dtype = DType::kI4;
  view.shape = {out, in};
  view.name = name;
  view.data = take_bytes(name, TensorType::kU8, {rows, static_cast<uint64_t>(int4_code_bytes(in))});
  view.int4_factors =
      take_bytes(name + "_factors", TensorType::kU8, {rows, static_cast<uint64_t>(int4_factor_bytes(in))});
  view.int4_scales = take_bytes(name + "_scales", TensorType::kF32, {rows});
  return view;
}

void TensorSource::fail_missing(const std::string& name) const {
  for (const char* prefix : {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."}) {
    if (!contains(prefix + name)) continue;
    throw Error("{}: tensors carry the prefix '{}' of a PyTorch wrapper; run tools/convert.py on the checkpoint",
                folder_.string(), prefix);
  }
  fail(name, name == "output.weight"
                 ? "is missing (a head shared with the embeddings needs \"tie_word_embeddings\": true in config.json)"
                 : "is missing");
}

// Tables that some exporters store although they follow from config.json.
bool is_derived_buffer(std::string_view name) {
  return name == "freqs_cis" || name.ends_with(".freqs_cis") || name.ends_with("inv_freq");
}

void TensorSource::refuse_leftovers(const ModelConfig& config) const {
  std::vector<std::string> leftovers;
  for (const auto& [name, entry] : checkpoint_.tensors()) {
    if (!used_.contains(name) && !is_derived_buffer(name)) leftovers.push_back(name);
  }
  if (leftovers.empty()) return;
  fail(leftovers[0],
       fmt::format("has no place in this model (position_encoding {}, ssmax {}, prior_scope {}, {} layers){}",
                   position_encoding_name(config.position_encoding), config.ssmax,
                   config.prior_scope == PriorScope::kLayer ? "layer" : "global", config.num_layers,
                   leftovers.size() > 1 ? fmt::format("; {} more like it", leftovers.size() - 1) : ""));
}

std::vector<PriorParams> take_prior(TensorSource& source, const std::string& prefix, int64_t heads) {
  const std::vector<float> alpha = source.take_per_head(prefix + "scale", heads);
  const std::vector<float> beta = source.take_per_head(prefix + "shape", heads);
  const std::vector<float> theta_mu = source.take_per_head(prefix + "loc", heads);
  std::vector<PriorParams> prior;
  for (size_t head = 0; head < alpha.size(); ++head) {
    prior.push_back({.alpha = alpha[head], .beta = beta[head], .theta_mu = theta_mu[head]});
    const auto check = [&](const char* field, double value) {
      if (std::abs(value) <= kMaxPriorExponent) return;
      source.fail(prefix + field, fmt::format("is {} for head {}; values beyond +-{} are outside of any trained prior",
                                              value, head, kMaxPriorExponent));
    };
    check("scale", prior[head].alpha);
    check("shape", prior[head].beta);
    check("loc", prior[head].theta_mu);
  }
  return prior;
}

std::vector<float> take_relative_bias(TensorSource& source, const std::string& name, const ModelConfig& config) {
  std::vector<float> bias = source.take_values(name, {{config.relative_buckets, config.num_heads}});
  for (const float value : bias) {
    if (std::abs(value) <= kMaxRelativeBias) continue;
    source.fail(name,
                fmt::format("holds {}; values beyond +-{} are outside of any trained bias", value, kMaxRelativeBias));
  }
  return bias;
}

// What stands in a layer, or once for all of them: `prefix` is "" or "layers.N.attention.".
void take_positions(TensorSource& source, const std::string& prefix, const ModelConfig& config, LayerWeights& layer) {
  if (config.position_encoding == PositionEncoding::kBam) {
    layer.prior = take_prior(source, prefix + "prior.", config.num_heads);
  } else if (config.position_encoding == PositionEncoding::kT5) {
    layer.relative_bias = take_relative_bias(source, prefix + "relative_bias", config);
  }
}

// `shared`: what all layers have in common.
LayerWeights take_layer(TensorSource& source, const ModelConfig& config, int64_t index, const LayerWeights& shared) {
  const std::string prefix = fmt::format("layers.{}.", index);
  const std::string attention = prefix + "attention.";
  const int64_t hidden = config.hidden_size;
  LayerWeights layer = shared;
  layer.attention_norm = source.take(prefix + "attention_norm.weight", {hidden});
  layer.wq = source.take_linear(attention + "wq.weight", config.q_size(), hidden);
  layer.wk = source.take_linear(attention + "wk.weight", config.kv_size(), hidden);
  layer.wv = source.take_linear(attention + "wv.weight", config.kv_size(), hidden);
  layer.wo = source.take_linear(attention + "wo.weight", hidden, config.q_size());
  layer.ffn_norm = source.take(prefix + "ffn_norm.weight", {hidden});
  layer.w1 = source.take_linear(prefix + "feed_forward.w1.weight", config.intermediate_size, hidden);
  layer.w2 = source.take_linear(prefix + "feed_forward.w2.weight", hidden, config.intermediate_size);
  layer.w3 = source.take_linear(prefix + "feed_forward.w3.weight", config.intermediate_size, hidden);
  if (config.ssmax) layer.seq_scale = source.take_per_head(attention + "seq_scale", config.num_heads);
  if (config.prior_scope == PriorScope::kLayer) take_positions(source, attention, config, layer);
  return layer;
}

// A tied checkpoint may still store the head, but then it must be the embeddings again.
WeightView take_output(TensorSource& source, const ModelConfig& config, const WeightView& embeddings) {
  const std::string name = "output.weight";
  if (config.tie_word_embeddings && !source.contains(name)) return embeddings;
  const WeightView output = source.take(name, {config.vocab_size, config.hidden_size});
  if (!config.tie_word_embeddings) return output;
  if (output.dtype != embeddings.dtype || std::memcmp(output.data, embeddings.data, embeddings.bytes().size()) != 0) {
    source.fail(name, "differs from tok_embeddings.weight although config.json says tie_word_embeddings");
  }
  return embeddings;
}

}  // namespace

int64_t WeightView::num_elements() const {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

std::vector<float> WeightView::to_f32() const {
  std::vector<float> values(static_cast<size_t>(num_elements()));
  if (values.empty()) return values;
  if (dtype == DType::kI4) {
    const std::vector<float> scales = floating_part().to_f32();
    Int4Row row(shape[1]);
    for (int64_t r = 0; r < shape[0]; ++r) {
      row.unpack(data + r * int4_code_bytes(shape[1]), int4_factors + r * int4_factor_bytes(shape[1]),
                 scales[static_cast<size_t>(r)]);
      row.to_f32(values.data() + r * shape[1]);
    }
    return values;
  }
  if (dtype == DType::kF32) {
    std::memcpy(values.data(), data, values.size() * sizeof(float));
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + i * sizeof(bits), sizeof(bits));
    values[i] = dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  return values;
}

WeightView WeightView::floating_part() const {
  if (dtype != DType::kI4) return *this;
  return {.data = int4_scales, .dtype = DType::kF32, .shape = {shape[0]}, .name = name + "_scales"};
}

std::span<const std::byte> WeightView::bytes() const {
  if (dtype == DType::kI4) return {data, static_cast<size_t>(shape[0] * int4_code_bytes(shape[1]))};
  return {data, static_cast<size_t>(num_elements()) * dtype_bits(dtype) / 8};
}

void CheckpointWeights::check_finite(const std::vector<WeightView>& tensors) const {
  std::vector<WeightView> views;
  for (const WeightView& tensor : tensors) views.push_back(tensor.floating_part());
  const std::optional<NonFiniteTensor> bad = find_non_finite(views);
  if (!bad) return;
  const WeightView& view = views[bad->tensor];
  const auto file = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f->holds(view.bytes()); });
  throw Error("{}: tensor '{}' {}", file == files.end() ? "checkpoint" : (*file)->path().string(), printable(view.name),
              non_finite_text(bad->value));
}

void CheckpointWeights::check_unchanged() const {
  for (const auto& file : files) {
    if (!file->changed()) continue;
    throw Error("{}: changed while it was loaded; write a new checkpoint beside it and rename it",
                file->path().string());
  }
}

void CheckpointWeights::release(const WeightView& view) const {
  for (const auto& file : files) file->release(view.bytes());
}

CheckpointWeights load_weights(const std::filesystem::path& checkpoint_dir, const ModelConfig& config) {
  const SafetensorsCheckpoint checkpoint(checkpoint_dir);
  TensorSource source(checkpoint, checkpoint_dir);
  CheckpointWeights weights;
  weights.tok_embeddings = source.take("tok_embeddings.weight", {config.vocab_size, config.hidden_size});
  LayerWeights shared;
  if (config.prior_scope == PriorScope::kGlobal) take_positions(source, "", config, shared);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(take_layer(source, config, layer, shared));
  }
  weights.norm = source.take("norm.weight", {config.hidden_size});
  weights.output = take_output(source, config, weights.tok_embeddings);
  source.refuse_leftovers(config);

  weights.files = checkpoint.files();
  for (const auto& file : weights.files) weights.file_bytes += file->file_bytes();
  weights.fingerprint = fingerprint_checkpoint(config, checkpoint);
  return weights;
}

}  // namespace bam
