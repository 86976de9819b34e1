#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "kernels/backend.h"
#include "models/head_report.h"
#include "models/model_config.h"
#include "models/weights.h"

namespace bam {

// The layers of one rank. The first stage embeds tokens, the last one has the final norm and the head.
struct StageRange {
  int first_layer = 0;
  int num_layers = -1;  // -1: all to the last
};

struct ModelOptions {
  DType weight_dtype = DType::kF32;  // kF32, kBF16, kF16, kI8, kI4
  std::optional<DType> head_dtype;   // of the output head; not given: as the layers, but eight bits beside kI4
  int64_t max_rows = 512;            // rows of one forward call; sizes the scratch memory
  int64_t max_logit_rows = 64;
  AttentionOptions attention;
  DType kv_dtype = DType::kF16;  // of the pages: reach is proved for keys as they store them
  bool use_reach = true;         // static per-head reach (certified attention only)
  bool check_finite = true;      // refuse weights with NaN or infinity
  StageRange stage;              // of the weights, only these layers and ends are read
};

// Tokens that the device draws; only for backends that support it.
struct DrawInput {
  const DrawBatch& batch;              // DrawRow::row counts logit rows
  std::span<int32_t> tokens;           // [batch.rows] result
  std::span<const int32_t> host_rows;  // logit rows that the host wants too
};

struct ForwardInput {
  std::span<const int32_t> tokens;          // [rows]
  std::span<const SequenceRows> sequences;  // cover all rows in order
  std::span<const int32_t> logit_rows;      // ascending rows whose logits are wanted
  const DrawInput* draw = nullptr;          // null: all logits go to the host
  // Between stages, float32 [rows, hidden]. With residual_in the tokens count rows and nothing else.
  const float* residual_in = nullptr;  // from the stage before; the first one embeds
  float* residual_out = nullptr;       // for the next stage; the last one has logits
  bool residual_on_device = false;     // both are in the backend's memory, else in the host's
  float* hidden = nullptr;             // last stage: [logit_rows, hidden] behind the final norm, if wanted
  // With hidden: those of the logit rows, ascending, whose logits are wanted after all; others may stay undefined.
  std::span<const int32_t> head_rows;
};

// Decoder weights in a backend's format plus scratch memory for one step. Not thread-safe: one step at a time.
class BamModel {
 public:
  BamModel(Backend& backend, ModelConfig config, CheckpointWeights weights, ModelOptions options);
  ~BamModel();
  BamModel(const BamModel&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  Backend& backend() { return backend_; }
  // Resolved: the layers that are here. Groups, heads and counters are theirs.
  const StageRange& stage() const { return options_.stage; }
  bool first_stage() const { return stage().first_layer == 0; }
  bool last_stage() const { return stage().first_layer + stage().num_layers == config_.num_layers; }
  int num_groups() const { return static_cast<int>(stage().num_layers * config_.num_kv_heads); }
  // [groups] keys a page of that group must stay reachable for; -1: forever.
  const std::vector<int64_t>& group_reach() const { return group_reach_; }
  const std::vector<HeadReport>& heads() const { return heads_; }
  uint64_t fingerprint() const { return weights_.fingerprint; }
  size_t weight_bytes() const;

  // Prepares positions < n. forward() does so by itself, a little at a time.
  void reserve_positions(int64_t n);
  // Pages will have this layout: the device gets ready for it, or Error says why it cannot.
  void prepare_kv(const KvLayout& layout) { backend_.prepare_attention(attention_layers_, layout); }
  // Writes K and V of all rows to the cache and logits [logit_rows, vocab] to host memory; before the last stage the
  // residual stream instead of logits.
  void forward(const ForwardInput& input, const KvCacheView& kv, std::span<float> logits);
  // Per (layer, head), added up since construction.
  const std::vector<AttentionCounters>& counters() const { return counters_; }

 private:
  friend class AttentionProbe;
  struct Layer;
  struct Scratch;
  void build_ends();
  void build_layer(const LayerWeights& weights, int index);
  // The matrices stacked, as `dtype`.
  std::unique_ptr<LinearWeights> make_linear(const std::vector<WeightView>& parts, DType dtype);
  void prove_reach(AttentionSpec& spec, const LayerWeights& weights, int index);
  // q, k and v of all rows in scratch, not yet rotated and not yet in their pages.
  // The residual stream of a step; queries, keys and values of its rows.
  FloatRows residual(int64_t rows) const;
  OperandRows project_qkv(Layer& layer, int64_t rows);
  void run_layer(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows);
  // Rows whose logits nobody wants need only their K and V in the last layer. Leaves logit rows in scratch.
  void run_last_layer(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows);
  // The selected rows behind the final norm, in full precision whatever operands the device has.
  void read_hidden(int64_t rows, float* hidden);
  void feed_forward(Layer& layer, FloatRows x);
  // logits = output head of these rows; with hidden of head_rows only, where the device lets us choose.
  void run_head(const ForwardInput& input, ConstOperandRows normed, FloatRows logits);
  std::span<AttentionCounters> layer_counters(const Layer& layer);
  // The residual stream of the step's rows, at the start and at the end of this stage.
  void begin_rows(const ForwardInput& input);
  void hand_on_rows(const ForwardInput& input);
  // Of a layer of the whole model.
  Layer& layer_at(int index) { return *layers_[static_cast<size_t>(index - stage().first_layer)]; }

  Backend& backend_;
  ModelConfig config_;
  ModelOptions options_;
  CheckpointWeights weights_;  // of the files nothing is read any more once the model is built
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<AttentionLayer*> attention_layers_;
  std::unique_ptr<Scratch> scratch_;
  LazyMemory embedding_memory_;
  HostMatrix embedding_;
  std::unique_ptr<LinearWeights> output_;
  std::unique_ptr<DeviceBuffer> final_norm_;
  std::vector<float> host_final_norm_;
  std::vector<HeadReport> heads_;
  std::vector<int64_t> group_reach_;
  std::vector<AttentionCounters> counters_;
  int64_t reserved_positions_ = 0;
};

}  // namespace bam
