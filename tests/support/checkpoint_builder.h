// Writes complete random checkpoint folders for tests. Everything is a pure function of the spec and its seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/prior.h"
#include "models/model_config.h"

namespace bam::testing {

// One tensor of a safetensors file, data already encoded.
struct RawTensor {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  std::string data;
};

// The bytes of a well-formed safetensors file; offsets follow the order of `tensors`. `pad_header`: spaces up to a
// multiple of 8, as the usual writers do; false leaves the data wherever the header ends (unaligned).
std::string serialize_safetensors(const std::vector<RawTensor>& tensors, bool pad_header = true);

// `values` rounded to `dtype` (kF32, kF16 or kBF16).
RawTensor make_tensor(std::string name, DType dtype, std::vector<int64_t> shape, const std::vector<float>& values);

struct CheckpointSpec {
  ModelConfig config;
  DType dtype = DType::kF32;  // of every tensor: kF32, kF16 or kBF16
  uint64_t seed = 1;
  // Standard deviation of a linear layer's weight is weight_gain / sqrt(inputs).
  float weight_gain = 1.0f;
  // bam: [heads] used in every layer, or [layers * heads]; empty: trained-looking values from the seed.
  std::vector<PriorParams> prior;
  // t5: [buckets, heads] used in every layer; empty: from the seed.
  std::vector<float> relative_bias;
  // SSMax: [heads] or [layers * heads]; empty: trained-looking values from the seed.
  std::vector<float> seq_scale;
  bool authors_shapes = true;  // prior and seq_scale as [1, heads, 1, 1]; false: [heads]
  int num_shards = 1;          // > 1: model-0000k-of-0000n.safetensors and an index
  bool pad_header = true;
  bool with_tokenizer = true;  // tokenizer.model of tests/fixtures
  std::string tokenizer_config = R"({"add_bos_token": true, "add_eos_token": false})";  // empty: no file
};

// 2 layers, hidden 64, 4 heads of 16, ffn 96, and the fixture tokenizer's 512 tokens. rope_local gets a window of 24.
ModelConfig tiny_config(PositionEncoding encoding = PositionEncoding::kBam, bool ssmax = true);

// Every key of config.json, spelled out.
std::string model_config_json(const ModelConfig& config);

// All tensors in checkpoint order.
std::vector<RawTensor> make_tensors(const CheckpointSpec& spec);

// Creates `dir` if needed, fills it and returns it.
std::filesystem::path write_checkpoint(const CheckpointSpec& spec, const std::filesystem::path& dir);

}  // namespace bam::testing
