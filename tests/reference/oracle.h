#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/model_config.h"
#include "models/weights.h"

// A float64 implementation of the whole model family, written from the definition of the model and from nothing else:
// it shares no formula with kernels/. Plain loops and full attention rows; meant for prompts of a few hundred tokens.
namespace bam::reference {

// All that turns z_ij = q_i . k_j / sqrt(head_dim) into one head's attention logit.
struct HeadParams {
  PositionEncoding encoding = PositionEncoding::kNope;
  bool ssmax = false;
  double seq_scale = 1;  // s_h; used only with ssmax
  // bam
  bool ssmax_prior = true;
  PriorForm prior_form = PriorForm::kScaleOutside;
  double prior_eps = 1e-5;
  double theta_alpha = 0, theta_beta = 0, theta_mu = 0;
  // alibi
  double slope = 0;
  // t5: what each bucket adds
  std::vector<double> buckets;
  int64_t max_distance = 0;
  // rope_local: keys with i - j <= sliding_window
  int64_t sliding_window = -1;
};

// The parameters of one query head of one layer.
HeadParams head_params(const ModelConfig& config, const LayerWeights& layer, int64_t head);

// slope_h of `num_heads` ALiBi heads.
std::vector<double> alibi_slopes(int64_t num_heads);

// The first key that query i may see.
int64_t first_visible_key(const HeadParams& head, int64_t i);
// The bucket of T5's relative bias that a key `distance` positions back falls into, one direction only.
int64_t relative_bucket(int64_t num_buckets, int64_t max_distance, int64_t distance);
// The BAM prior B_ij.
double prior(const HeadParams& head, int64_t i, int64_t j);
// The logit of key j for query i, given z_ij.
double attention_logit(const HeadParams& head, double z, int64_t i, int64_t j);

// One query of one head over keys 0..i.
struct AttentionRow {
  std::vector<double> probabilities;  // [i + 1]; 0 where a local window hides the key
  std::vector<double> output;         // [head_dim]
};
// q: [head_dim]; k, v: [at least i + 1, head_dim], row r at k + r * row_stride. Rotated already, if the model rotates.
AttentionRow attention_row(const HeadParams& head, int64_t i, const double* q, const double* k, const double* v,
                           int64_t head_dim, int64_t row_stride);

// Rotates one head vector [head_dim] to `position` in place.
void rotate(double* x, int64_t head_dim, int64_t position, double theta, RopeStyle style);
// The vector that is added to the embedding of the token at `position`: [hidden].
std::vector<double> sinusoidal_vector(int64_t hidden, int64_t position, double theta);

// What happens inside, for tests that look deeper than the logits.
struct Capture {
  struct Layer {
    std::vector<double> hidden;            // [n, hidden], the residual stream after this layer
    std::vector<double> attention_output;  // [n, heads * head_dim], before wo
    std::vector<double> probabilities;     // [heads, n, n]
  };
  std::vector<Layer> layers;
};

class Oracle {
 public:
  Oracle(const ModelConfig& config, const CheckpointWeights& weights);

  // Applied to every key and value head vector [head_dim] when it is cached; models a lossy KV cache. A query sees the
  // rounded vectors, its own included.
  using KvRounding = std::function<void(double* head_vector, int64_t head_dim, bool is_key)>;
  void set_kv_rounding(KvRounding rounding) { kv_rounding_ = std::move(rounding); }

  // Logits of every position: [n, vocab].
  std::vector<double> logits(const std::vector<int32_t>& tokens, Capture* capture = nullptr) const;

 private:
  // A linear layer with its weight transposed, so that the inner loop runs over outputs.
  struct Matrix {
    Matrix() = default;
    explicit Matrix(const WeightView& view);
    int64_t in = 0, out = 0;
    std::vector<double> transposed;  // [in, out]
    // x: [n, in] -> [n, out]
    std::vector<double> apply(const std::vector<double>& x, int64_t n) const;
  };
  struct Layer {
    std::vector<double> attention_norm, ffn_norm;  // [hidden]
    Matrix wq, wk, wv, wo, w1, w2, w3;
    std::vector<HeadParams> heads;
  };

  std::vector<double> embed(const std::vector<int32_t>& tokens) const;
  // x: [n, hidden] -> [n, hidden]
  std::vector<double> rms_norm(const std::vector<double>& x, const std::vector<double>& weight, int64_t n) const;
  std::vector<double> attention(const Layer& layer, const std::vector<double>& x, int64_t n,
                                Capture::Layer* capture) const;
  std::vector<double> feed_forward(const Layer& layer, const std::vector<double>& x, int64_t n) const;

  ModelConfig config_;
  std::vector<double> embeddings_;  // [vocab, hidden]
  std::vector<double> norm_;        // [hidden]
  Matrix output_;
  std::vector<Layer> layers_;
  KvRounding kv_rounding_;
};

}  // namespace bam::reference
