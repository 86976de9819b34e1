#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/prior.h"
#include "models/model_config.h"

namespace bam {

// A read-only matrix or vector inside a mapped checkpoint file. `data` may be unaligned.
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;   // kF32, kF16 or kBF16; linear layers also kI4
  std::vector<int64_t> shape;  // row-major, [out, in] for linear layers
  std::string name;            // as in the checkpoint, for messages
  const std::byte* int4_factors = nullptr;
  const std::byte* int4_scales = nullptr;  // [out] float32

  int64_t num_elements() const;
  std::span<const std::byte> bytes() const;
  // Converts everything to float32.
  std::vector<float> to_f32() const;
  // What can be NaN or infinite: the values themselves, or the scales of four-bit weights.
  WeightView floating_part() const;
};

struct LayerWeights {
  WeightView attention_norm;         // [hidden]
  WeightView wq;                     // [heads * head_dim, hidden]
  WeightView wk, wv;                 // [kv_heads * head_dim, hidden]
  WeightView wo;                     // [hidden, heads * head_dim]
  WeightView ffn_norm;               // [hidden]
  WeightView w1, w3;                 // [intermediate, hidden]
  WeightView w2;                     // [hidden, intermediate]
  std::vector<float> seq_scale;      // [heads], SSMax s_h; empty without SSMax
  std::vector<PriorParams> prior;    // [heads], bam only; a global prior is repeated in every layer
  std::vector<float> relative_bias;  // [buckets, heads], t5 only; a shared one is repeated in every layer

  // Everything that is still in the file.
  std::vector<WeightView> views() const { return {attention_norm, wq, wk, wv, wo, ffn_norm, w1, w3, w2}; }
};

class SafetensorsFile;

// All tensors of a checkpoint, checked by name and shape; the small per-head vectors also by value. Owns the file
// mappings that the views point into. Matrices have not been touched: whoever uses one checks it first and releases it
// afterwards, so that a load reads every weight once and holds one layer of the file in memory at a time.
struct CheckpointWeights {
  WeightView tok_embeddings;  // [vocab, hidden]
  WeightView norm;            // [hidden]
  WeightView output;          // [vocab, hidden]; equals tok_embeddings when tied
  std::vector<LayerWeights> layers;

  std::vector<std::shared_ptr<SafetensorsFile>> files;
  uint64_t file_bytes = 0;
  // Content fingerprint of config and tensors (sampled data + all headers), for KV snapshots and prefix hashes.
  uint64_t fingerprint = 0;

  // Throws Error naming the file and tensor that holds the first NaN or infinity.
  void check_finite(const std::vector<WeightView>& views) const;
  // Throws Error naming a file that was replaced or rewritten since it was opened: what was read from it may be neither
  // the old weights nor the new ones.
  void check_unchanged() const;
  // The view stays valid: it is read from the file again when touched.
  void release(const WeightView& view) const;
};

// Throws Error naming the file and tensor.
CheckpointWeights load_weights(const std::filesystem::path& checkpoint_dir, const ModelConfig& config);

}  // namespace bam
