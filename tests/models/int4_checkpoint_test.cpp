// Checkpoints whose layers are stored in four bits, and models that hold any checkpoint that way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "kernels/int4.h"
#include "tests/reference/model_harness.h"

namespace bam::reference {
namespace {

using testing::CheckpointSpec;
using testing::RawTensor;

std::string pack_nibbles(const std::vector<uint8_t>& numbers) {
  std::string bytes((numbers.size() + 1) / 2, '\0');
  for (size_t i = 0; i < numbers.size(); ++i) {
    bytes[i / 2] = static_cast<char>(static_cast<uint8_t>(bytes[i / 2]) | numbers[i] << 4 * (i % 2));
  }
  return bytes;
}

// The tensors of `spec` with every matrix of the layers in four bits.
std::vector<RawTensor> int4_tensors(const CheckpointSpec& spec) {
  std::vector<RawTensor> tensors;
  for (RawTensor& tensor : testing::make_tensors(spec)) {
    if (!tensor.name.starts_with("layers.") || tensor.shape.size() != 2 || !tensor.name.ends_with(".weight")) {
      tensors.push_back(std::move(tensor));
      continue;
    }
    const int64_t rows = tensor.shape[0], depth = tensor.shape[1];
    std::vector<float> values(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    RawTensor codes{tensor.name, "U8", {rows, int4_code_bytes(depth)}, ""};
    RawTensor factors{tensor.name + "_factors", "U8", {rows, int4_factor_bytes(depth)}, ""};
    std::vector<float> scales;
    Int4Row row(depth);
    for (int64_t r = 0; r < rows; ++r) {
      row.quantize(values.data() + r * depth);
      codes.data += pack_nibbles(row.codes);
      factors.data += pack_nibbles(row.factors);
      scales.push_back(row.scale);
    }
    tensors.push_back(std::move(codes));
    tensors.push_back(std::move(factors));
    tensors.push_back(testing::make_tensor(tensor.name + "_scales", DType::kF32, {rows}, scales));
  }
  return tensors;
}

class Int4Checkpoint : public ::testing::Test {
 protected:
  Int4Checkpoint() {
    spec_.config.intermediate_size = 90;  // k of the last matrix ends inside a group
    write(int4_tensors(spec_));
  }
  void write(const std::vector<RawTensor>& tensors) {
    testing::write_checkpoint(spec_, dir_.path());
    testing::write_file(dir_ / "model.safetensors", testing::serialize_safetensors(tensors));
  }
  std::string failure(const std::function<void(std::vector<RawTensor>&)>& edit) {
    std::vector<RawTensor> tensors = int4_tensors(spec_);
    edit(tensors);
    write(tensors);
    try {
      const CheckpointWeights weights = load_weights(dir_.path(), spec_.config);
      for (const LayerWeights& layer : weights.layers) weights.check_finite(layer.views());
    } catch (const Error& error) {
      return error.what();
    }
    return "(no error)";
  }

  testing::TempDir dir_;
  CheckpointSpec spec_{.config = testing::tiny_config()};
};

std::vector<float> logits(const CheckpointWeights& weights, const ModelConfig& config, DType dtype,
                          const std::vector<int32_t>& tokens) {
  const auto backend = make_cpu_backend({.num_threads = 2});
  const auto rows = static_cast<int64_t>(tokens.size());
  BamModel model(*backend, config, weights, {.weight_dtype = dtype, .max_rows = rows, .max_logit_rows = rows});
  KvCacheView kv;
  kv.layout = make_kv_layout(DType::kF32, static_cast<int>(config.head_dim), kTileKeys);
  const int64_t pages = (rows + kTileKeys - 1) / kTileKeys;
  kv.num_pages = pages * model.num_groups();
  const auto memory = backend->allocate(static_cast<size_t>(kv.num_pages) * kv.layout.page_bytes());
  kv.base = static_cast<std::byte*>(memory->data());
  std::vector<int32_t> table(static_cast<size_t>(kv.num_pages)), wanted(tokens.size());
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<int32_t>(i);
  const SequenceRows sequence{table.data(), pages, 0, rows, 0};
  std::vector<float> result(tokens.size() * static_cast<size_t>(config.vocab_size));
  model.forward({tokens, {&sequence, 1}, wanted}, kv, result);
  return result;
}

TEST_F(Int4Checkpoint, HoldsWhatQuantisingAtLoadGives) {
  const TestCheckpoint plain(spec_);
  const CheckpointWeights stored = load_weights(dir_.path(), spec_.config);
  EXPECT_EQ(stored.layers[0].wq.dtype, DType::kI4);
  const std::vector<int32_t> tokens = random_tokens(150, spec_.config.vocab_size);
  const std::vector<float> at_load = logits(plain.weights(), spec_.config, DType::kI4, tokens);
  const std::vector<float> from_file = logits(stored, spec_.config, DType::kI4, tokens);
  EXPECT_EQ(std::memcmp(at_load.data(), from_file.data(), at_load.size() * sizeof(float)), 0);
}

TEST_F(Int4Checkpoint, AgreesWithTheOracle) {
  const TestCheckpoint plain(spec_);
  const CheckpointWeights stored = load_weights(dir_.path(), spec_.config);
  const std::vector<int32_t> tokens = random_tokens(150, spec_.config.vocab_size);
  const std::vector<double> exact = Oracle(spec_.config, plain.weights()).logits(tokens);
  const std::vector<double> rounded = Oracle(spec_.config, stored).logits(tokens);
  // Widened to float32, the weights are the oracle's.
  EXPECT_LE(max_difference(logits(stored, spec_.config, DType::kF32, tokens), rounded), 1e-4);
  // In integers, activations and the head are rounded to eight bits: a sixteenth of what the weights were rounded by,
  // per number.
  const Difference cost = difference(rounded, exact);
  const Difference error = difference(logits(stored, spec_.config, DType::kI4, tokens), rounded);
  EXPECT_LE(error.root_mean_square, cost.root_mean_square / 4);
  EXPECT_LE(error.largest, cost.largest / 2);
}

TEST_F(Int4Checkpoint, BrokenTensorsAreNamed) {
  const std::string name = "layers.1.feed_forward.w2.weight";
  const auto find = [](std::vector<RawTensor>& tensors, const std::string& wanted) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const RawTensor& t) { return t.name == wanted; });
  };
  const auto expect = [&](const std::string& message, const std::string& tensor, const std::string& part) {
    EXPECT_NE(message.find("'" + tensor + "'"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(failure([&](auto& tensors) { tensors.erase(find(tensors, name + "_scales")); }), name + "_scales",
         "is missing");
  expect(failure([&](auto& tensors) {
           find(tensors, name + "_factors")->shape = {3, 64};
         }),
         name + "_factors", "are U8 [64, 3]");
  expect(failure([&](auto& tensors) {
           const float infinity = std::numeric_limits<float>::infinity();
           std::memcpy(find(tensors, name + "_scales")->data.data() + 8, &infinity, sizeof infinity);
         }),
         name + "_scales", "an infinity at index 2");
}

TEST(Int4Config, TorchDtypeNamesIt) {
  ModelConfig config = testing::tiny_config();
  std::string json = testing::model_config_json(config);
  const size_t at = json.find("float32");
  ASSERT_NE(at, std::string::npos);
  json.replace(at, 7, "int4");
  EXPECT_EQ(parse_model_config(json, "test").torch_dtype, DType::kI4);
}

}  // namespace
}  // namespace bam::reference
