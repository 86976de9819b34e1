#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "app/serve_config.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "models/tokenizer.h"
#include "server/api/openai_api.h"
#include "transport/transport.h"

namespace bam {

// The layers of one rank, or all.
struct StageModel {
  std::filesystem::path checkpoint;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<BamModel> model;
  DType weight_dtype = DType::kF32;
  int64_t num_parameters = 0;  // of the whole model

  // "layers 4 to 7 of demo, 1.2 MiB bf16 | cpu …"
  std::string description() const;
};

// A checkpoint made ready to run. Members are destroyed from the last to the first: the engine before its backend.
struct LoadedModel {
  std::filesystem::path checkpoint;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GroupSource> group;  // of several stages
  std::unique_ptr<Engine> engine;
  SamplingDefaults defaults;
  DType weight_dtype = DType::kF32;
  uint64_t weight_bytes = 0;
  uint64_t fingerprint = 0;
  int64_t num_parameters = 0;

  // "demo: 4.2M parameters, 8.1 MiB bf16, bam with SSMax, trained on 512 tokens"
  std::string description() const;
  // "KV 1.0 GiB f16 = 262144 tokens, context 262144 | cpu …"
  std::string running_description() const;
};

// The folder behind --model: itself, or for the word `demo` the bundled checkpoint. Throws Error.
std::filesystem::path find_checkpoint(const std::string& model);
DType choose_weight_dtype(const std::string& dtype, const ModelConfig& config);
std::unique_ptr<Backend> make_backend(const ModelSettings& settings);
std::unique_ptr<GroupSource> make_stage_group(const StageSettings& settings, int rank);
StageModel load_stage(const ModelSettings& settings, int rank, int size);
// Throws Error naming the file, tensor or key. With stages this is rank 0, and the others are waited for.
LoadedModel load_model(const ModelSettings& settings);
// Throws UsageError if the KV cache is to be larger than all memory of the device.
void check_kv_memory(uint64_t wanted, uint64_t machine);
// generation_config.json, if the checkpoint has one.
SamplingDefaults load_sampling_defaults(const std::filesystem::path& checkpoint);

}  // namespace bam
