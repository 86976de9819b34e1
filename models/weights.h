#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/prior.h"
#include "models/model_config.h"

namespace bam {

// A read-only matrix or vector inside a mapped checkpoint file. `data` may be unaligned.
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;      // kF32, kF16 or kBF16
  std::vector<int64_t> shape;     // row-major, [out, in] for linear layers
  std::string name;               // as in the checkpoint, for messages

  int64_t num_elements() const;
  // Converts everything to float32.
  std::vector<float> to_f32() const;
};

struct LayerWeights {
  WeightView attention_norm;  // [hidden]
  WeightView wq;              // [heads * head_dim, hidden]
  WeightView wk, wv;          // [kv_heads * head_dim, hidden]
  WeightView wo;              // [hidden, heads * head_dim]
  WeightView ffn_norm;        // [hidden]
  WeightView w1, w3;          // [intermediate, hidden]
  WeightView w2;              // [hidden, intermediate]
  std::vector<float> seq_scale;     // [heads], SSMax s_h; empty without SSMax
  std::vector<PriorParams> prior;   // [heads], bam only; a global prior is repeated in every layer
};

class SafetensorsFile;

// All tensors of a checkpoint, checked by name, shape and finiteness. Owns the file mappings that the views point into.
struct CheckpointWeights {
  WeightView tok_embeddings;  // [vocab, hidden]
  WeightView norm;            // [hidden]
  WeightView output;          // [vocab, hidden]; equals tok_embeddings when tied
  std::vector<LayerWeights> layers;

  std::vector<std::shared_ptr<SafetensorsFile>> files;
  uint64_t file_bytes = 0;
  // Content fingerprint of config and tensors (sampled data + all headers), for KV snapshots and prefix hashes.
  uint64_t fingerprint = 0;
};

// Throws Error naming the file and tensor. Checks every value for NaN/Inf unless `check_finite` is false.
CheckpointWeights load_weights(const std::filesystem::path& checkpoint_dir, const ModelConfig& config,
                               bool check_finite = true);

}  // namespace bam
