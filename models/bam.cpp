#include "models/bam.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "models/bam_layer.h"
#include "models/weight_memory.h"

namespace bam {

namespace {

// A step that ends by an exception leaves nothing behind that the device would run with the next one.
class StepGuard {
 public:
  explicit StepGuard(Backend& backend) : backend_(backend) {}
  ~StepGuard() {
    if (!done_) backend_.abandon_step();
  }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;
  void done() { done_ = true; }

 private:
  Backend& backend_;
  bool done_ = false;
};

HostMatrix host_matrix(const WeightView& view) {
  return {.data = view.data,
          .dtype = view.dtype,
          .rows = view.shape[0],
          .cols = view.shape.size() > 1 ? view.shape[1] : 1,
          .int4_factors = view.int4_factors,
          .int4_scales = view.int4_scales};
}

}  // namespace

BamModel::BamModel(Backend& backend, ModelConfig config, CheckpointWeights weights, ModelOptions options)
    : backend_(backend), config_(std::move(config)), options_(options), weights_(std::move(weights)) {
  BAM_CHECK(options_.max_rows > 0 && options_.max_logit_rows > 0);
  StageRange& range = options_.stage;
  if (range.num_layers < 0) range.num_layers = static_cast<int>(config_.num_layers) - range.first_layer;
  BAM_CHECK(range.first_layer >= 0 && range.num_layers > 0 &&
            range.first_layer + range.num_layers <= config_.num_layers);
  if (options_.weight_dtype == DType::kI4 && !backend_.supports_int4_weights())
    throw UsageError("--dtype int4: {} has no kernels for weights of four bits; int8 is the smallest format there",
                     backend_.description());
  group_reach_.assign(static_cast<size_t>(num_groups()), -1);
  counters_.resize(static_cast<size_t>(range.num_layers * config_.num_heads));
  for (int i = range.first_layer; i < range.first_layer + range.num_layers; ++i) {
    build_layer(weights_.layers[static_cast<size_t>(i)], i);
  }
  build_ends();
  weights_.check_unchanged();

  const auto rows = static_cast<size_t>(options_.max_rows), logit_rows = static_cast<size_t>(options_.max_logit_rows);
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const size_t operand = backend_.operand_bytes();
  const auto wide =
      static_cast<size_t>(std::max(config_.q_size() + 2 * config_.kv_size(), 2 * config_.intermediate_size));
  const auto narrow = static_cast<size_t>(std::max(config_.q_size(), config_.intermediate_size));
  scratch_ = std::make_unique<Scratch>();
  scratch_->x = backend_.allocate(rows * hidden * sizeof(float));
  scratch_->selected = backend_.allocate(logit_rows * hidden * sizeof(float));
  scratch_->normed = backend_.allocate(rows * hidden * operand);
  scratch_->wide = backend_.allocate(rows * wide * operand);
  scratch_->narrow = backend_.allocate(rows * narrow * operand);
  if (!backend_.in_host_memory() && last_stage()) {
    scratch_->logits = backend_.allocate(logit_rows * static_cast<size_t>(config_.vocab_size) * sizeof(float));
  }
  scratch_->queries.reserve(logit_rows);
}

BamModel::~BamModel() = default;

// The embedding is copied: a served model must not change, or die, with its file.
void BamModel::build_ends() {
  const bool tied = weights_.output.data == weights_.tok_embeddings.data;
  if (options_.check_finite && last_stage()) weights_.check_finite({weights_.norm, weights_.output});
  if (options_.check_finite && first_stage() && !(tied && last_stage())) {
    weights_.check_finite({weights_.tok_embeddings});
  }
  if (first_stage()) {
    const std::span<const std::byte> table = weights_.tok_embeddings.bytes();
    embedding_memory_ = LazyMemory(table.size(), /*huge_pages=*/false);
    std::memcpy(embedding_memory_.data(), table.data(), table.size());
    embedding_ = host_matrix(weights_.tok_embeddings);
    embedding_.data = embedding_memory_.as<std::byte>();
  }
  if (last_stage()) {
    host_final_norm_ = weights_.norm.to_f32();
    final_norm_ = backend_.make_vector(host_final_norm_);
    output_ = make_linear({weights_.output}, output_dtype(options_));
  }
  weights_.release(weights_.output);
  weights_.release(weights_.tok_embeddings);
}

std::unique_ptr<LinearWeights> BamModel::make_linear(const std::vector<WeightView>& parts, DType dtype) {
  std::vector<HostMatrix> matrices;
  std::vector<std::vector<float>> widened;
  for (const WeightView& part : parts) {
    matrices.push_back(host_matrix(part));
    if (part.dtype != DType::kI4 || backend_.supports_int4_weights()) continue;
    widened.push_back(part.to_f32());
    matrices.back() = {.data = reinterpret_cast<const std::byte*>(widened.back().data()),
                       .dtype = DType::kF32,
                       .rows = part.shape[0],
                       .cols = part.shape[1]};
  }
  return backend_.make_linear(matrices, dtype);
}

void BamModel::build_layer(const LayerWeights& weights, int index) {
  if (options_.check_finite) weights_.check_finite(weights.views());
  auto layer = std::make_unique<Layer>();
  layer->index = index;
  layer->attention_norm = backend_.make_vector(weights.attention_norm.to_f32());
  layer->ffn_norm = backend_.make_vector(weights.ffn_norm.to_f32());
  layer->qkv = make_linear({weights.wq, weights.wk, weights.wv}, options_.weight_dtype);
  layer->wo = make_linear({weights.wo}, options_.weight_dtype);
  layer->gate_up = make_linear({weights.w1, weights.w3}, options_.weight_dtype);
  layer->down = make_linear({weights.w2}, options_.weight_dtype);
  AttentionSpec spec = attention_spec(config_, weights, index);
  prove_reach(spec, weights, index);
  spec.first_group -= static_cast<int>(stage().first_layer * config_.num_kv_heads);  // block tables are the stage's
  layer->attention = backend_.make_attention(spec);
  attention_layers_.push_back(layer->attention.get());
  layers_.push_back(std::move(layer));
  for (const WeightView& view : weights.views()) weights_.release(view);
}

void BamModel::prove_reach(AttentionSpec& spec, const LayerWeights& weights, int index) {
  const std::vector<HeadReport> reports =
      report_heads(config_, weights, spec,
                   {options_.weight_dtype, options_.kv_dtype, backend_.rounding(static_cast<int>(config_.head_dim))},
                   options_.attention.epsilon);
  spec.reach.assign(static_cast<size_t>(config_.num_heads), -1);
  if ((options_.attention.certified && options_.use_reach) || spec.window >= 0) {
    for (size_t h = 0; h < reports.size(); ++h) spec.reach[h] = reports[h].reach;
    std::ranges::copy(page_reach(config_, reports),
                      group_reach_.begin() + (index - stage().first_layer) * config_.num_kv_heads);
  }
  heads_.insert(heads_.end(), reports.begin(), reports.end());
}

size_t BamModel::weight_bytes() const {
  size_t bytes = output_ ? output_->size_bytes() : 0;
  for (const auto& layer : layers_) {
    bytes +=
        layer->qkv->size_bytes() + layer->wo->size_bytes() + layer->gate_up->size_bytes() + layer->down->size_bytes();
  }
  return bytes;
}

void BamModel::reserve_positions(int64_t n) {
  if (n <= reserved_positions_) return;
  backend_.reserve_positions(attention_layers_, n);
  reserved_positions_ = n;
}

std::span<AttentionCounters> BamModel::layer_counters(const Layer& layer) {
  return std::span(counters_).subspan(static_cast<size_t>((layer.index - stage().first_layer) * config_.num_heads),
                                      static_cast<size_t>(config_.num_heads));
}

FloatRows BamModel::residual(int64_t rows) const {
  return backend_.float_rows(*scratch_->x, rows, config_.hidden_size);
}

void BamModel::feed_forward(Layer& layer, FloatRows x) {
  const OperandRows normed = backend_.operand_rows(*scratch_->normed, x.count, config_.hidden_size);
  const OperandRows wide = backend_.operand_rows(*scratch_->wide, x.count, 2 * config_.intermediate_size);
  const OperandRows narrow = backend_.operand_rows(*scratch_->narrow, x.count, config_.intermediate_size);
  backend_.rms_norm(x, *layer.ffn_norm, config_.rms_norm_eps, normed);
  backend_.linear(*layer.gate_up, normed, wide);
  backend_.swiglu(wide, narrow);
  backend_.linear_add(*layer.down, narrow, x);
}

OperandRows BamModel::project_qkv(Layer& layer, int64_t rows) {
  const OperandRows normed = backend_.operand_rows(*scratch_->normed, rows, config_.hidden_size);
  const OperandRows qkv = backend_.operand_rows(*scratch_->wide, rows, layer.attention->spec.qkv_width());
  backend_.rms_norm(residual(rows), *layer.attention_norm, config_.rms_norm_eps, normed);
  backend_.linear(*layer.qkv, normed, qkv);
  return qkv;
}

void BamModel::run_layer(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows) {
  const FloatRows x = residual(rows);
  const OperandRows qkv = project_qkv(layer, rows);
  const OperandRows attended = backend_.operand_rows(*scratch_->narrow, rows, config_.q_size());
  backend_.write_and_attend(*layer.attention, kv, input.sequences, qkv, options_.attention, attended,
                            layer_counters(layer));
  backend_.linear_add(*layer.wo, attended, x);
  feed_forward(layer, x);
}

void BamModel::run_last_layer(Layer& layer, const ForwardInput& input, const KvCacheView& kv, int64_t rows) {
  const FloatRows x = residual(rows);
  const auto count = static_cast<int64_t>(input.logit_rows.size());
  const FloatRows wanted = backend_.float_rows(*scratch_->selected, count, config_.hidden_size);
  if (count == rows) {
    run_layer(layer, input, kv, rows);
    return backend_.gather_rows(x, input.logit_rows, wanted);
  }
  const OperandRows qkv = project_qkv(layer, rows);
  backend_.write_kv(*layer.attention, kv, input.sequences, qkv);
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
  const OperandRows attended = backend_.operand_rows(*scratch_->narrow, count, config_.q_size());
  backend_.attention(*layer.attention, kv, queries, input.logit_rows, qkv, options_.attention, attended,
                     layer_counters(layer));
  backend_.gather_rows(x, input.logit_rows, wanted);
  backend_.linear_add(*layer.wo, attended, wanted);
  feed_forward(layer, wanted);
}

void BamModel::begin_rows(const ForwardInput& input) {
  const auto rows = static_cast<int64_t>(input.tokens.size());
  BAM_CHECK(first_stage() == (input.residual_in == nullptr));
  if (!first_stage()) {
    const ConstFloatRows in{input.residual_in, rows, config_.hidden_size};
    if (input.residual_on_device) return backend_.load_rows_on_device(in, residual(rows));
    return backend_.load_rows({in.data, static_cast<size_t>(in.size())}, residual(rows));
  }
  backend_.embed(embedding_, input.tokens, residual(rows));
  if (config_.position_encoding == PositionEncoding::kSinusoidal) {
    backend_.add_sinusoidal(input.sequences, config_.sinusoidal_theta, residual(rows));
  }
}

void BamModel::hand_on_rows(const ForwardInput& input) {
  const FloatRows x = residual(static_cast<int64_t>(input.tokens.size()));
  if (input.residual_on_device) return backend_.keep_on_device(x, {input.residual_out, x.count, x.width});
  backend_.read_floats(x, {input.residual_out, static_cast<size_t>(x.size())});
}

void BamModel::read_hidden(int64_t rows, float* hidden) {
  const auto size = static_cast<size_t>(config_.hidden_size);
  backend_.read_floats(backend_.float_rows(*scratch_->selected, rows, config_.hidden_size),
                       {hidden, static_cast<size_t>(rows) * size});
  for (int64_t r = 0; r < rows; ++r) {
    const std::span<float> row(hidden + static_cast<size_t>(r) * size, size);
    double squares = 0;
    for (const float x : row) squares += double{x} * x;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(size) + config_.rms_norm_eps);
    for (size_t i = 0; i < size; ++i) row[i] = static_cast<float>(row[i] * scale * host_final_norm_[i]);
  }
}

void BamModel::run_head(const ForwardInput& input, ConstOperandRows normed, FloatRows logits) {
  if (input.hidden == nullptr || !backend_.in_host_memory()) return backend_.linear_logits(*output_, normed, logits);
  const auto* operands = static_cast<const std::byte*>(normed.data);
  for (size_t i = 0; i < input.head_rows.size();) {
    size_t end = i + 1;  // of a run of neighbours
    while (end < input.head_rows.size() && input.head_rows[end] == input.head_rows[end - 1] + 1) ++end;
    const int64_t first = input.head_rows[i], count = static_cast<int64_t>(end - i);
    const auto skipped = static_cast<size_t>(first * normed.width) * backend_.operand_bytes();
    backend_.linear_logits(*output_, {operands + skipped, count, normed.width},
                           {logits.data + first * logits.width, count, logits.width});
    i = end;
  }
}

void BamModel::forward(const ForwardInput& input, const KvCacheView& kv, std::span<float> logits) {
  const auto rows = static_cast<int64_t>(input.tokens.size());
  const auto logit_rows = static_cast<int64_t>(input.logit_rows.size());
  BAM_CHECK(rows > 0 && rows <= options_.max_rows && logit_rows <= options_.max_logit_rows);
  BAM_CHECK(last_stage() ? logits.size() == static_cast<size_t>(logit_rows * config_.vocab_size)
                         : logit_rows == 0 && input.residual_out != nullptr);
  int64_t positions = 0;
  for (const SequenceRows& seq : input.sequences) positions = std::max(positions, seq.start_pos + seq.num_rows);
  StepGuard guard(backend_);
  reserve_positions(positions);
  backend_.begin_step({input.tokens, input.sequences, input.logit_rows, input.draw ? &input.draw->batch : nullptr});

  begin_rows(input);
  for (size_t i = 0; i + 1 < layers_.size(); ++i) run_layer(*layers_[i], input, kv, rows);
  if (!last_stage()) {
    run_layer(*layers_.back(), input, kv, rows);
    hand_on_rows(input);
    return guard.done();
  }
  run_last_layer(*layers_.back(), input, kv, rows);
  if (logit_rows == 0) return guard.done();
  if (input.hidden != nullptr) read_hidden(logit_rows, input.hidden);
  const OperandRows normed = backend_.operand_rows(*scratch_->normed, logit_rows, config_.hidden_size);
  backend_.rms_norm(backend_.float_rows(*scratch_->selected, logit_rows, config_.hidden_size), *final_norm_,
                    config_.rms_norm_eps, normed);
  const FloatRows device_logits = backend_.in_host_memory()
                                      ? FloatRows{logits.data(), logit_rows, config_.vocab_size}
                                      : backend_.float_rows(*scratch_->logits, logit_rows, config_.vocab_size);
  run_head(input, normed, device_logits);
  if (input.draw != nullptr) {
    backend_.draw_tokens(device_logits, input.draw->batch, input.draw->tokens, input.draw->host_rows, logits);
  } else {
    backend_.read_floats(device_logits, logits);
  }
  guard.done();
}

}  // namespace bam
