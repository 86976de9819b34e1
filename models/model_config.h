#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/position.h"

namespace bam {

// Of a bam prior or a t5 bias.
enum class PriorScope : uint8_t { kLayer, kGlobal };

// A checkpoint's config.json, typed and validated. Every size has been range-checked, so products of them fit in int64.
struct ModelConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 0;  // the training length, 0: not stated; no serving limit for bam

  PositionEncoding position_encoding = PositionEncoding::kBam;
  bool ssmax = false;
  bool ssmax_prior = true;  // SSMax scales the prior too: (z + B) * c_i
  // Where config.json does not say: kScaleOutside with SSMax, kScaleInside without, as the authors' two models do.
  PriorForm prior_form = PriorForm::kScaleOutside;
  PriorScope prior_scope = PriorScope::kLayer;
  double prior_eps = 1e-5;
  double rope_theta = 500000.0;
  RopeStyle rope_style = RopeStyle::kInterleaved;
  int64_t sliding_window = -1;  // rope_local: keys with i - j <= sliding_window; -1 elsewhere
  double sinusoidal_theta = 10000.0;
  int64_t relative_buckets = 32;        // t5: distances fall into so many buckets,
  int64_t relative_max_distance = 128;  // the last of which begins at or before this one

  int32_t bos_token_id = -1;  // -1: none
  std::vector<int32_t> eos_token_ids;
  DType torch_dtype = DType::kF32;

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  // Parameters without the token embedding; the untied head counts.
  int64_t num_parameters_without_embedding() const;
  int64_t num_embedding_parameters() const { return vocab_size * hidden_size; }
};

std::string_view position_encoding_name(PositionEncoding encoding);

// Throws Error naming the file, the key and the reason.
ModelConfig load_model_config(const std::filesystem::path& checkpoint_dir);
ModelConfig parse_model_config(const std::string& json_text, const std::string& origin);

}  // namespace bam
