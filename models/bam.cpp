#include "models/bam.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "models/bam_layer.h"
#include "models/spectral.h"

namespace bam {

namespace {

HostMatrix host_matrix(const WeightView& view) {
  return {view.data, view.dtype, view.shape[0], view.shape.size() > 1 ? view.shape[1] : 1};
}

}  // namespace

AttentionSpec attention_spec(const ModelConfig& config, const LayerWeights& weights, int layer) {
  AttentionSpec spec;
  spec.num_heads = static_cast<int>(config.num_heads);
  spec.num_kv_heads = static_cast<int>(config.num_kv_heads);
  spec.head_dim = static_cast<int>(config.head_dim);
  spec.encoding = config.position_encoding;
  spec.ssmax = config.ssmax;
  spec.ssmax_prior = config.ssmax_prior;
  spec.prior_form = config.prior_form;
  spec.prior_eps = config.prior_eps;
  spec.window = config.position_encoding == PositionEncoding::kRopeLocal ? config.sliding_window : -1;
  spec.rope_theta = config.rope_theta;
  spec.rope_style = config.rope_style;
  spec.seq_scale = weights.seq_scale;
  spec.prior = weights.prior;
  spec.first_group = layer * spec.num_kv_heads;
  return spec;
}

BamModel::BamModel(Backend& backend, ModelConfig config, CheckpointWeights weights, ModelOptions options)
    : backend_(backend), config_(std::move(config)), options_(options), weights_(std::move(weights)) {
  BAM_CHECK(options_.max_rows > 0 && options_.max_logit_rows > 0);
  group_reach_.assign(static_cast<size_t>(num_groups()), -1);
  counters_.resize(static_cast<size_t>(config_.num_layers * config_.num_heads));
  for (int i = 0; i < config_.num_layers; ++i) build_layer(weights_.layers[static_cast<size_t>(i)], i);
  embedding_ = host_matrix(weights_.tok_embeddings);
  final_norm_ = backend_.make_vector(weights_.norm.to_f32());
  const HostMatrix head[] = {host_matrix(weights_.output)};
  output_ = backend_.make_linear(head, options_.weight_dtype);

  const auto rows = static_cast<size_t>(options_.max_rows), logit_rows = static_cast<size_t>(options_.max_logit_rows);
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const size_t operand = backend_.operand_bytes();
  const auto wide = static_cast<size_t>(std::max(config_.q_size() + 2 * config_.kv_size(), 2 * config_.intermediate_size));
  const auto narrow = static_cast<size_t>(std::max(config_.q_size(), config_.intermediate_size));
  scratch_ = std::make_unique<Scratch>();
  scratch_->x = backend_.allocate(rows * hidden * sizeof(float));
  scratch_->selected = backend_.allocate(logit_rows * hidden * sizeof(float));
  scratch_->normed = backend_.allocate(rows * hidden * operand);
  scratch_->wide = backend_.allocate(rows * wide * operand);
  scratch_->narrow = backend_.allocate(rows * narrow * operand);
  scratch_->logits = backend_.allocate(logit_rows * static_cast<size_t>(config_.vocab_size) * sizeof(float));
  scratch_->queries.reserve(logit_rows);
}

BamModel::~BamModel() = default;

void BamModel::build_layer(const LayerWeights& weights, int index) {
  auto layer = std::make_unique<Layer>();
  layer->index = index;
  layer->attention_norm = backend_.make_vector(weights.attention_norm.to_f32());
  layer->ffn_norm = backend_.make_vector(weights.ffn_norm.to_f32());
  const HostMatrix qkv[] = {host_matrix(weights.wq), host_matrix(weights.wk), host_matrix(weights.wv)};
  const HostMatrix wo[] = {host_matrix(weights.wo)};
  const HostMatrix gate_up[] = {host_matrix(weights.w1), host_matrix(weights.w3)};
  const HostMatrix down[] = {host_matrix(weights.w2)};
  layer->qkv = backend_.make_linear(qkv, options_.weight_dtype);
  layer->wo = backend_.make_linear(wo, options_.weight_dtype);
  layer->gate_up = backend_.make_linear(gate_up, options_.weight_dtype);
  layer->down = backend_.make_linear(down, options_.weight_dtype);
  AttentionSpec spec = attention_spec(config_, weights, index);
  prove_reach(spec, weights, index);
  layer->attention = backend_.make_attention(spec);
  attention_layers_.push_back(layer->attention.get());
  layers_.push_back(std::move(layer));
}

void BamModel::prove_reach(AttentionSpec& spec, const LayerWeights& weights, int index) {
  const std::vector<float> norm = weights.attention_norm.to_f32(), wq = weights.wq.to_f32(), wk = weights.wk.to_f32();
  const int64_t block = config_.head_dim * config_.hidden_size;
  const int64_t group = config_.num_heads / config_.num_kv_heads;
  const bool rotated =
      config_.position_encoding == PositionEncoding::kRope || config_.position_encoding == PositionEncoding::kRopeLocal;
  const auto rows_of = [block](const std::vector<float>& matrix, int64_t head) {
    return std::vector<float>(matrix.begin() + head * block, matrix.begin() + (head + 1) * block);
  };
  std::vector<HeadReport> reports(static_cast<size_t>(config_.num_heads));
  // Only this constructor runs now, so the cores are free for it.
  ThreadPool pool(static_cast<int>(std::min<int64_t>(available_cores(), config_.num_heads)));
  // The cache stores rounded keys and the activations carry rounding too; 1 % is far more than both.
  constexpr double kMargin = 1.01;
  const double quantisation = options_.weight_dtype == DType::kI8 ? 1.05 : 1.0;
  pool.parallel_for(config_.num_heads, [&](int64_t h, int) {
    HeadReport& report = reports[static_cast<size_t>(h)];
    report.layer = index;
    report.head = static_cast<int>(h);
    if (!spec.prior.empty()) {
      const PriorParams& prior = spec.prior[static_cast<size_t>(h)];
      report.alpha = prior.alpha;
      report.beta = prior.beta;
      report.theta_mu = prior.theta_mu;
    }
    if (spec.ssmax) report.seq_scale = spec.seq_scale[static_cast<size_t>(h)];
    report.logit_bound = kMargin * quantisation *
                         logit_bound(rows_of(wq, h), rows_of(wk, h / group), norm, config_.head_dim,
                                     config_.hidden_size, rotated);
    report.reach =
        static_reach(spec, static_cast<int>(h), report.logit_bound, options_.attention.epsilon, kMaxPositions);
  });
  const bool certified = options_.attention.certified && options_.use_reach;
  spec.reach.assign(static_cast<size_t>(config_.num_heads), -1);
  for (int64_t kv = 0; kv < config_.num_kv_heads; ++kv) {
    int64_t reach = 0;
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const int64_t head_reach = reports[static_cast<size_t>(h)].reach;
      if (certified || spec.window >= 0) spec.reach[static_cast<size_t>(h)] = head_reach;
      reach = head_reach < 0 || reach < 0 ? -1 : std::max(reach, head_reach);
    }
    // Statistics of a tile that fills up chain to the tile before it, so pages stay two tiles longer than queries need.
    if (reach >= 0 && (certified || spec.window >= 0)) {
      group_reach_[static_cast<size_t>(index * config_.num_kv_heads + kv)] = std::max<int64_t>(reach, 2 * kTileKeys);
    }
  }
  heads_.insert(heads_.end(), reports.begin(), reports.end());
}

size_t BamModel::weight_bytes() const {
  size_t bytes = output_->size_bytes();
  for (const auto& layer : layers_) {
    bytes += layer->qkv->size_bytes() + layer->wo->size_bytes() + layer->gate_up->size_bytes() + layer->down->size_bytes();
  }
  return bytes;
}

void BamModel::reserve_positions(int64_t n) {
  if (n <= reserved_positions_) return;
  backend_.reserve_positions(attention_layers_, n);
  reserved_positions_ = n;
}

std::span<AttentionCounters> BamModel::layer_counters(const Layer& layer) {
  return std::span(counters_).subspan(static_cast<size_t>(layer.index * config_.num_heads),
                                      static_cast<size_t>(config_.num_heads));
}

void BamModel::feed_forward(Layer& layer, float* x, int64_t rows) {
  backend_.rms_norm(x, *layer.ffn_norm, config_.rms_norm_eps, rows, config_.hidden_size, scratch_->normed->data());
  backend_.linear(*layer.gate_up, scratch_->normed->data(), rows, scratch_->wide->data());
  backend_.swiglu(scratch_->wide->data(), rows, config_.intermediate_size, scratch_->narrow->data());
  backend_.linear_add(*layer.down, scratch_->narrow->data(), rows, x);
}

void BamModel::project_qkv(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows) {
  backend_.rms_norm(scratch_->residual(), *layer.attention_norm, config_.rms_norm_eps, rows, config_.hidden_size,
                    scratch_->normed->data());
  backend_.linear(*layer.qkv, scratch_->normed->data(), rows, scratch_->wide->data());
  backend_.write_kv(*layer.attention, kv, input.sequences, scratch_->wide->data());
}

void BamModel::run_layer(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows) {
  float* x = scratch_->residual();
  project_qkv(layer, input, kv, rows);
  backend_.attention(*layer.attention, kv, input.sequences, {}, scratch_->wide->data(), options_.attention,
                     scratch_->narrow->data(), layer_counters(layer));
  backend_.linear_add(*layer.wo, scratch_->narrow->data(), rows, x);
  feed_forward(layer, x, rows);
}

void BamModel::run_last_layer(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows) {
  float* x = scratch_->residual();
  float* wanted = static_cast<float*>(scratch_->selected->data());
  project_qkv(layer, input, kv, rows);
  const auto count = static_cast<int64_t>(input.logit_rows.size());
  if (count == 0) return;

  // Runs of neighbouring rows of one sequence become one query range each.
  std::vector<SequenceRows>& queries = scratch_->queries;
  queries.clear();
  size_t seq = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = input.logit_rows[static_cast<size_t>(i)];
    while (row >= input.sequences[seq].row_begin + input.sequences[seq].num_rows) ++seq;
    const SequenceRows& source = input.sequences[seq];
    const int64_t position = source.start_pos + row - source.row_begin;
    if (!queries.empty() && queries.back().block_table == source.block_table &&
        queries.back().start_pos + queries.back().num_rows == position) {
      ++queries.back().num_rows;
      continue;
    }
    SequenceRows run = source;
    run.row_begin = i;
    run.num_rows = 1;
    run.start_pos = position;
    queries.push_back(run);
  }
  backend_.attention(*layer.attention, kv, queries, input.logit_rows, scratch_->wide->data(), options_.attention,
                     scratch_->narrow->data(), layer_counters(layer));
  backend_.gather_rows(x, input.logit_rows, config_.hidden_size, wanted);
  backend_.linear_add(*layer.wo, scratch_->narrow->data(), count, wanted);
  feed_forward(layer, wanted, count);
}

void BamModel::forward(const ForwardInput& input, const KvCacheView& kv, std::span<float> logits) {
  const auto rows = static_cast<int64_t>(input.tokens.size());
  const auto logit_rows = static_cast<int64_t>(input.logit_rows.size());
  BAM_CHECK(rows > 0 && rows <= options_.max_rows && logit_rows <= options_.max_logit_rows);
  BAM_CHECK(logits.size() == static_cast<size_t>(logit_rows * config_.vocab_size));
  int64_t positions = 0;
  for (const SequenceRows& seq : input.sequences) positions = std::max(positions, seq.start_pos + seq.num_rows);
  reserve_positions(positions);

  backend_.embed(embedding_, input.tokens, scratch_->residual());
  if (config_.position_encoding == PositionEncoding::kSinusoidal) {
    backend_.add_sinusoidal(input.sequences, config_.sinusoidal_theta, config_.hidden_size, scratch_->residual());
  }
  for (size_t i = 0; i + 1 < layers_.size(); ++i) run_layer(*layers_[i], input, kv, rows);
  run_last_layer(*layers_.back(), input, kv, rows);
  if (logit_rows == 0) return;
  backend_.rms_norm(static_cast<const float*>(scratch_->selected->data()), *final_norm_, config_.rms_norm_eps, logit_rows,
                    config_.hidden_size, scratch_->normed->data());
  float* device_logits = static_cast<float*>(scratch_->logits->data());
  backend_.linear_logits(*output_, scratch_->normed->data(), logit_rows, device_logits);
  backend_.read_floats(device_logits, logits);
}

}  // namespace bam
