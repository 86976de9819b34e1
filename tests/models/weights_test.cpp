#include "models/weights.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "models/finite_check.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::CheckpointSpec;
using testing::make_tensor;
using testing::make_tensors;
using testing::RawTensor;
using testing::serialize_safetensors;
using testing::TempDir;
using testing::tiny_config;
using testing::write_checkpoint;
using testing::write_file;

std::string load_failure(const std::filesystem::path& dir, const ModelConfig& config, bool check_finite = true) {
  try {
    const CheckpointWeights weights = load_weights(dir, config);
    if (check_finite) {
      for (const LayerWeights& layer : weights.layers) weights.check_finite(layer.views());
      weights.check_finite({weights.tok_embeddings, weights.norm, weights.output});
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

// A checkpoint whose tensors are changed by `edit` before they are written.
std::string edited_failure(const CheckpointSpec& spec, const std::function<void(std::vector<RawTensor>&)>& edit,
                           bool check_finite = true) {
  TempDir dir;
  std::vector<RawTensor> tensors = make_tensors(spec);
  edit(tensors);
  write_file(dir / "model.safetensors", serialize_safetensors(tensors));
  return load_failure(dir.path(), spec.config, check_finite);
}

RawTensor& named(std::vector<RawTensor>& tensors, const std::string& name) {
  for (RawTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::invalid_argument("no tensor " + name);
}

void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "expected: " << part << "\n     got: " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Weights, ViewsHaveTheRightValuesAndShapes) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool pad_header : {true, false}) {
      CheckpointSpec spec{.config = tiny_config(), .dtype = dtype, .pad_header = pad_header};
      spec.config.num_kv_heads = 2;
      TempDir dir;
      write_checkpoint(spec, dir.path());
      const ModelConfig config = load_model_config(dir.path());
      const CheckpointWeights weights = load_weights(dir.path(), config);
      ASSERT_EQ(weights.layers.size(), 2u);
      EXPECT_EQ(weights.tok_embeddings.shape, (std::vector<int64_t>{512, 64}));
      EXPECT_EQ(weights.output.shape, (std::vector<int64_t>{512, 64}));
      EXPECT_EQ(weights.norm.shape, (std::vector<int64_t>{64}));
      EXPECT_EQ(weights.layers[1].wq.shape, (std::vector<int64_t>{64, 64}));
      EXPECT_EQ(weights.layers[1].wk.shape, (std::vector<int64_t>{32, 64}));
      EXPECT_EQ(weights.layers[1].w2.shape, (std::vector<int64_t>{64, 96}));
      EXPECT_EQ(weights.layers[1].w3.name, "layers.1.feed_forward.w3.weight");
      EXPECT_EQ(weights.layers[0].wv.dtype, dtype);
      EXPECT_EQ(weights.file_bytes, std::filesystem::file_size(dir / "model.safetensors"));

      std::vector<RawTensor> tensors = make_tensors(spec);
      const RawTensor& raw = named(tensors, "layers.1.attention.wo.weight");
      EXPECT_EQ(0, std::memcmp(weights.layers[1].wo.data, raw.data.data(), raw.data.size()));
      const std::vector<float> values = weights.layers[1].wo.to_f32();
      EXPECT_EQ(make_tensor("", dtype, {64, 64}, values).data, raw.data);
    }
  }
}

TEST(Weights, PriorAndSeqScaleInBothShapes) {
  const std::vector<PriorParams> prior = {{-1, 1, 0}, {0.5, 0, 0.25}, {2, -0.5, -0.25}, {-3, -1.5, 1}};
  for (const bool authors_shapes : {true, false}) {
    CheckpointSpec spec{
        .config = tiny_config(), .prior = prior, .seq_scale = {0.5f, 1, 2, -0.25f}, .authors_shapes = authors_shapes};
    for (const PriorScope scope : {PriorScope::kLayer, PriorScope::kGlobal}) {
      spec.config.prior_scope = scope;
      TempDir dir;
      write_checkpoint(spec, dir.path());
      const CheckpointWeights weights = load_weights(dir.path(), spec.config);
      for (const LayerWeights& layer : weights.layers) {
        EXPECT_EQ(layer.seq_scale, spec.seq_scale);
        ASSERT_EQ(layer.prior.size(), 4u);
        for (size_t head = 0; head < 4; ++head) {
          EXPECT_EQ(layer.prior[head].alpha, prior[head].alpha);
          EXPECT_EQ(layer.prior[head].beta, prior[head].beta);
          EXPECT_EQ(layer.prior[head].theta_mu, prior[head].theta_mu);
        }
      }
    }
  }
}

TEST(Weights, EveryVariantLoads) {
  for (const auto encoding :
       {PositionEncoding::kBam, PositionEncoding::kAlibi, PositionEncoding::kNope, PositionEncoding::kRope,
        PositionEncoding::kRopeLocal, PositionEncoding::kSinusoidal, PositionEncoding::kT5}) {
    for (const bool ssmax : {false, true}) {
      for (const int shards : {1, 3}) {
        TempDir dir;
        write_checkpoint({.config = tiny_config(encoding, ssmax), .num_shards = shards}, dir.path());
        const CheckpointWeights weights = load_weights(dir.path(), load_model_config(dir.path()));
        EXPECT_EQ(weights.files.size(), static_cast<size_t>(shards));
        EXPECT_EQ(weights.layers[0].prior.size(), encoding == PositionEncoding::kBam ? 4u : 0u);
        EXPECT_EQ(weights.layers[1].relative_bias.size(), encoding == PositionEncoding::kT5 ? 32u * 4u : 0u);
        EXPECT_EQ(weights.layers[0].seq_scale.size(), ssmax ? 4u : 0u);
      }
    }
  }
}

TEST(Weights, TiedOutput) {
  CheckpointSpec spec{.config = tiny_config()};
  spec.config.tie_word_embeddings = true;
  TempDir dir;
  write_checkpoint(spec, dir.path());
  const CheckpointWeights weights = load_weights(dir.path(), spec.config);
  EXPECT_EQ(weights.output.data, weights.tok_embeddings.data);

  // A tied checkpoint may store the head as well, if it is the same.
  const auto with_head = [&](bool same) {
    return edited_failure(spec, [&](std::vector<RawTensor>& tensors) {
      RawTensor head = named(tensors, "tok_embeddings.weight");
      head.name = "output.weight";
      if (!same) head.data[5] ^= 1;
      tensors.push_back(head);
    });
  };
  EXPECT_EQ(with_head(true), "(no error)");
  expect_part(with_head(false), "'output.weight' differs from tok_embeddings.weight although config.json says");

  spec.config.tie_word_embeddings = false;
  TempDir untied;
  CheckpointSpec tied = spec;
  tied.config.tie_word_embeddings = true;
  write_checkpoint(tied, untied.path());
  expect_part(load_failure(untied.path(), spec.config), "tensor 'output.weight' is missing (a head shared");
}

TEST(Weights, MissingTensorsAreNamed) {
  const CheckpointSpec spec{.config = tiny_config()};
  for (const RawTensor& victim : make_tensors(spec)) {
    const std::string message = edited_failure(spec, [&](std::vector<RawTensor>& tensors) {
      std::erase_if(tensors, [&](const RawTensor& tensor) { return tensor.name == victim.name; });
    });
    expect_part(message, "tensor '" + victim.name + "' is missing");
  }
}

TEST(Weights, WrongShapesAreNamed) {
  const CheckpointSpec spec{.config = tiny_config()};
  for (const RawTensor& victim : make_tensors(spec)) {
    const std::string message =
        edited_failure(spec, [&](std::vector<RawTensor>& tensors) { named(tensors, victim.name).shape.push_back(1); });
    expect_part(message, "model.safetensors: tensor '" + victim.name + "' has shape [");
    expect_part(message, "config.json asks for [");
  }
  const std::string transposed = edited_failure(spec, [](std::vector<RawTensor>& tensors) {
    named(tensors, "layers.0.feed_forward.w1.weight").shape = {64, 96};
  });
  expect_part(transposed, "has shape [64, 96]; config.json asks for [96, 64]");
  const std::string heads = edited_failure(spec, [](std::vector<RawTensor>& tensors) {
    named(tensors, "layers.0.attention.prior.loc").shape = {1, 1, 4, 1};
  });
  expect_part(heads, "has shape [1, 1, 4, 1]; config.json asks for [4] or [1, 4, 1, 1]");
}

TEST(Weights, WrongDtypesAreNamed) {
  const CheckpointSpec spec{.config = tiny_config()};
  const std::string message = edited_failure(
      spec, [](std::vector<RawTensor>& tensors) { named(tensors, "layers.1.ffn_norm.weight").dtype = "I32"; });
  expect_part(message, "tensor 'layers.1.ffn_norm.weight' has dtype I32; F32, F16 or BF16 is needed");
}

TEST(Weights, ExtraTensorsAreNamed) {
  const CheckpointSpec spec{.config = tiny_config()};
  const std::string message = edited_failure(spec, [](std::vector<RawTensor>& tensors) {
    tensors.push_back({"layers.2.attention.wq.weight", "F32", {1}, "0000"});
    tensors.push_back({"lm_head.weight", "F32", {1}, "0000"});
  });
  expect_part(message, "tensor 'layers.2.attention.wq.weight' has no place in this model");
  expect_part(message, "; 1 more like it");

  // The prior of a checkpoint whose config says nope.
  TempDir dir;
  write_checkpoint(spec, dir.path());
  ModelConfig nope = spec.config;
  nope.position_encoding = PositionEncoding::kNope;
  expect_part(load_failure(dir.path(), nope), "has no place in this model (position_encoding nope");
}

TEST(Weights, DerivedBuffersAreHarmless) {
  const std::string message = edited_failure({.config = tiny_config()}, [](std::vector<RawTensor>& tensors) {
    tensors.push_back({"freqs_cis", "F64", {1}, "00000000"});
    tensors.push_back({"rope.freqs_cis", "F32", {1}, "0000"});
    tensors.push_back({"layers.0.attention.rotary_emb.inv_freq", "F32", {1}, "0000"});
  });
  EXPECT_EQ(message, "(no error)");
}

TEST(Weights, WrapperPrefixesPointToTheConverter) {
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
    const std::string message = edited_failure({.config = tiny_config()}, [&](std::vector<RawTensor>& tensors) {
      for (RawTensor& tensor : tensors) tensor.name = prefix + tensor.name;
    });
    expect_part(message, "prefix '" + prefix + "' of a PyTorch wrapper; run tools/convert.py");
  }
}

TEST(Weights, NonFiniteValuesAreNamed) {
  struct Case {
    float value;
    const char* word;
  };
  for (const Case& bad : {Case{std::numeric_limits<float>::quiet_NaN(), "NaN"},
                          Case{std::numeric_limits<float>::infinity(), "an infinity"},
                          Case{-std::numeric_limits<float>::infinity(), "an infinity"}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const CheckpointSpec spec{.config = tiny_config(), .dtype = dtype};
      for (const size_t index : {size_t{0}, size_t{33}, size_t{64 * 96 - 1}}) {
        const auto edit = [&](std::vector<RawTensor>& tensors) {
          const size_t width = dtype == DType::kF32 ? 4 : 2;
          const std::string bits = make_tensor("", dtype, {1}, {bad.value}).data;
          named(tensors, "layers.1.feed_forward.w2.weight").data.replace(index * width, width, bits);
        };
        expect_part(edited_failure(spec, edit),
                    fmt::format("tensor 'layers.1.feed_forward.w2.weight' holds {} at index {}", bad.word, index));
        EXPECT_EQ(edited_failure(spec, edit, false), "(no error)");
      }
    }
  }
}

// The extremes of each type are finite.
TEST(Weights, LargestFiniteValuesPass) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const float largest = dtype == DType::kF16    ? 65504.0f
                          : dtype == DType::kBF16 ? bf16_to_f32(0x7f7f)
                                                  : std::numeric_limits<float>::max();
    for (const float value : {largest, -largest, std::numeric_limits<float>::denorm_min(), -0.0f}) {
      const std::string message = edited_failure({.config = tiny_config(), .dtype = dtype}, [&](auto& tensors) {
        RawTensor& tensor = named(tensors, "norm.weight");
        tensor = make_tensor(tensor.name, dtype, {64}, std::vector<float>(64, value));
      });
      EXPECT_EQ(message, "(no error)") << value;
    }
  }
}

TEST(Weights, PriorsAreCheckedEvenWithoutTheFullScan) {
  for (const std::string field : {"scale", "shape", "loc"}) {
    const std::string name = "layers.0.attention.prior." + field;
    const auto with = [&](float value) {
      return edited_failure(
          {.config = tiny_config()},
          [&](std::vector<RawTensor>& tensors) {
            named(tensors, name) = make_tensor(name, DType::kF32, {4}, {0, 0, value, 0});
          },
          false);
    };
    expect_part(with(std::nanf("")), "tensor '" + name + "' holds NaN at index 2");
    expect_part(with(1e6f), "tensor '" + name + "' is 1000000 for head 2");
    EXPECT_EQ(with(3.0f), "(no error)");
  }
  expect_part(
      edited_failure(
          {.config = tiny_config()},
          [](std::vector<RawTensor>& tensors) {
            RawTensor& scale = named(tensors, "layers.1.attention.seq_scale");
            scale = make_tensor(scale.name, DType::kF32, {4}, {1, 1, 1, std::numeric_limits<float>::infinity()});
          },
          false),
      "tensor 'layers.1.attention.seq_scale' holds an infinity at index 3");
}

TEST(FiniteCheck, FindsTheFirstOfManyInLargeTensors) {
  // 96 MiB: the threaded path. Unaligned on purpose.
  const size_t count = size_t{48} << 20;
  std::vector<std::byte> storage(count * 2 + 1, std::byte{0x12});
  const auto put = [&](size_t index, uint16_t bits) { std::memcpy(storage.data() + 1 + 2 * index, &bits, 2); };
  WeightView view{
      .data = storage.data() + 1, .dtype = DType::kBF16, .shape = {static_cast<int64_t>(count)}, .name = "x"};
  EXPECT_FALSE(find_non_finite(view).has_value());
  put(count - 1, 0xff80);
  ASSERT_TRUE(find_non_finite(view).has_value());
  EXPECT_EQ(find_non_finite(view)->index, static_cast<int64_t>(count - 1));
  EXPECT_FALSE(find_non_finite(view)->is_nan);
  put(30'000'001, 0x7fc0);
  put(12'345'677, 0xffff);
  const auto first = find_non_finite({view, view});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->tensor, 0u);
  EXPECT_EQ(first->value.index, 12'345'677);
  EXPECT_TRUE(first->value.is_nan);
}

TEST(Weights, FingerprintTellsModelsApart) {
  const auto fingerprint = [](const CheckpointSpec& spec, const ModelConfig& config) {
    TempDir dir;
    write_checkpoint(spec, dir.path());
    return load_weights(dir.path(), config).fingerprint;
  };
  const CheckpointSpec spec{.config = tiny_config()};
  const uint64_t base = fingerprint(spec, spec.config);
  EXPECT_EQ(base, 0x762a16a9c68a7ca7u)
      << "snapshots of other builds would not be found: a debug build must agree with a release";
  EXPECT_EQ(fingerprint(spec, spec.config), base) << "the folder's place must not matter";
  CheckpointSpec other = spec;
  other.seed = 2;
  EXPECT_NE(fingerprint(other, other.config), base);
  ModelConfig config = spec.config;
  config.ssmax_prior = false;
  EXPECT_NE(fingerprint(spec, config), base);
  config = spec.config;
  config.prior_eps = 1e-4;
  EXPECT_NE(fingerprint(spec, config), base);

  // One changed prior value in one layer.
  TempDir dir;
  std::vector<RawTensor> tensors = make_tensors(spec);
  named(tensors, "layers.1.attention.prior.shape").data[0] ^= 1;
  write_file(dir / "model.safetensors", serialize_safetensors(tensors));
  EXPECT_NE(load_weights(dir.path(), spec.config).fingerprint, base);
}

TEST(Weights, MappingOutlivesTheFolder) {
  CheckpointWeights weights;
  const CheckpointSpec spec{.config = tiny_config(), .num_shards = 2};
  {
    TempDir dir;
    write_checkpoint(spec, dir.path());
    weights = load_weights(dir.path(), spec.config);
  }
  std::vector<RawTensor> tensors = make_tensors(spec);
  const RawTensor& raw = named(tensors, "output.weight");
  EXPECT_EQ(0, std::memcmp(weights.output.data, raw.data.data(), raw.data.size()));
}

}  // namespace
}  // namespace bam
