#include "tests/reference/oracle.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace bam::reference {
namespace {

std::vector<double> to_f64(const WeightView& view) {
  const std::vector<float> values = view.to_f32();
  return {values.begin(), values.end()};
}

bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

// a += b
void add(std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

}  // namespace

HeadParams head_params(const ModelConfig& config, const LayerWeights& layer, int64_t head) {
  HeadParams params;
  params.encoding = config.position_encoding;
  params.ssmax = config.ssmax;
  if (config.ssmax) params.seq_scale = layer.seq_scale.at(head);
  if (config.position_encoding == PositionEncoding::kBam) {
    params.ssmax_prior = config.ssmax_prior;
    params.prior_form = config.prior_form;
    params.prior_eps = config.prior_eps;
    params.theta_alpha = layer.prior.at(head).alpha;
    params.theta_beta = layer.prior.at(head).beta;
    params.theta_mu = layer.prior.at(head).theta_mu;
  }
  if (config.position_encoding == PositionEncoding::kAlibi) {
    params.slope = alibi_slopes(config.num_heads).at(head);
  }
  if (config.position_encoding == PositionEncoding::kT5) {
    for (int64_t b = 0; b < config.relative_buckets; ++b) {
      params.buckets.push_back(layer.relative_bias.at(b * config.num_heads + head));
    }
    params.max_distance = config.relative_max_distance;
  }
  if (config.position_encoding == PositionEncoding::kRopeLocal) params.sliding_window = config.sliding_window;
  return params;
}

std::vector<double> alibi_slopes(int64_t num_heads) {
  std::vector<double> slopes;
  if (is_power_of_two(num_heads)) {
    const double start = std::pow(2.0, -std::pow(2.0, -(std::log2(static_cast<double>(num_heads)) - 3)));
    for (int64_t k = 0; k < num_heads; ++k) slopes.push_back(std::pow(start, static_cast<double>(k + 1)));
    return slopes;
  }
  int64_t lower_power = 1;
  while (lower_power * 2 < num_heads) lower_power *= 2;
  slopes = alibi_slopes(lower_power);
  const std::vector<double> finer = alibi_slopes(2 * lower_power);
  for (int64_t k = 0; k < num_heads - lower_power; ++k) slopes.push_back(finer.at(2 * k));
  return slopes;
}

int64_t first_visible_key(const HeadParams& head, int64_t i) {
  if (head.encoding != PositionEncoding::kRopeLocal) return 0;
  return std::max<int64_t>(0, i - head.sliding_window);
}

// From whole numbers alone: d >= e (m / e)^(s / r), with e exact buckets, m = max_distance, and r buckets beyond them,
// is d^r >= e^(r - s) m^s. Compared as logarithms in extended precision, where equal products of whole numbers are
// equal.
int64_t relative_bucket(int64_t num_buckets, int64_t max_distance, int64_t distance) {
  const int64_t exact = num_buckets / 2, rest = num_buckets - exact;
  if (distance < exact) return distance;
  const auto ln = [](int64_t n) { return std::log(static_cast<long double>(n)); };
  int64_t step = 0;
  while (step + 1 < rest) {
    const long double left = static_cast<long double>(rest) * ln(distance);
    const long double right =
        static_cast<long double>(rest - step - 1) * ln(exact) + static_cast<long double>(step + 1) * ln(max_distance);
    if (left < right - 1e-14L) break;
    ++step;
  }
  return exact + step;
}

double prior(const HeadParams& head, int64_t i, int64_t j) {
  const double mu = std::exp(head.theta_mu) - std::exp(-head.theta_mu);
  const double offset = static_cast<double>(j) - static_cast<double>(i) - mu;
  const double scale = std::exp(head.theta_alpha);
  switch (head.prior_form) {
    case PriorForm::kScaleOutside: return -scale * std::pow(std::abs(offset) + head.prior_eps, head.theta_beta);
    case PriorForm::kScaleInside: return -std::pow(std::abs(offset * scale) + head.prior_eps, head.theta_beta);
  }
  BAM_CHECK(false);
}

double attention_logit(const HeadParams& head, double z, int64_t i, int64_t j) {
  double c = 1;
  if (head.ssmax) {
    const int64_t num_visible = i + 1 - first_visible_key(head, i);
    c = head.seq_scale * std::log(static_cast<double>(num_visible));
  }
  switch (head.encoding) {
    case PositionEncoding::kBam:
      if (!head.ssmax) return z + prior(head, i, j);
      return head.ssmax_prior ? (z + prior(head, i, j)) * c : z * c + prior(head, i, j);
    case PositionEncoding::kAlibi: return z * c - head.slope * static_cast<double>(i - j);
    case PositionEncoding::kT5: {
      const auto buckets = static_cast<int64_t>(head.buckets.size());
      return z * c + head.buckets.at(relative_bucket(buckets, head.max_distance, i - j));
    }
    case PositionEncoding::kNope:
    case PositionEncoding::kRope:
    case PositionEncoding::kRopeLocal:
    case PositionEncoding::kSinusoidal: return z * c;
  }
  BAM_CHECK(false);
}

AttentionRow attention_row(const HeadParams& head, int64_t i, const double* q, const double* k, const double* v,
                           int64_t head_dim, int64_t row_stride) {
  const int64_t first = first_visible_key(head, i);
  AttentionRow row;
  row.probabilities.assign(i + 1, 0.0);
  row.output.assign(head_dim, 0.0);

  std::vector<double> logits(i + 1);
  double largest = 0;
  for (int64_t j = first; j <= i; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < head_dim; ++d) dot += q[d] * k[j * row_stride + d];
    logits[j] = attention_logit(head, dot / std::sqrt(static_cast<double>(head_dim)), i, j);
    largest = j == first ? logits[j] : std::max(largest, logits[j]);
  }

  double sum = 0;
  for (int64_t j = first; j <= i; ++j) sum += row.probabilities[j] = std::exp(logits[j] - largest);
  for (int64_t j = first; j <= i; ++j) {
    row.probabilities[j] /= sum;
    for (int64_t d = 0; d < head_dim; ++d) row.output[d] += row.probabilities[j] * v[j * row_stride + d];
  }
  return row;
}

void rotate(double* x, int64_t head_dim, int64_t position, double theta, RopeStyle style) {
  for (int64_t t = 0; t < head_dim / 2; ++t) {
    const double angle =
        static_cast<double>(position) * std::pow(theta, -2.0 * static_cast<double>(t) / static_cast<double>(head_dim));
    double& real = style == RopeStyle::kInterleaved ? x[2 * t] : x[t];
    double& imaginary = style == RopeStyle::kInterleaved ? x[2 * t + 1] : x[t + head_dim / 2];
    const double rotated_real = real * std::cos(angle) - imaginary * std::sin(angle);
    const double rotated_imaginary = real * std::sin(angle) + imaginary * std::cos(angle);
    real = rotated_real;
    imaginary = rotated_imaginary;
  }
}

std::vector<double> sinusoidal_vector(int64_t hidden, int64_t position, double theta) {
  std::vector<double> vector(hidden);
  for (int64_t d = 0; d < hidden; ++d) {
    const double angle = static_cast<double>(position) *
                         std::exp(-std::log(theta) * static_cast<double>(d) / static_cast<double>(hidden));
    vector[d] = d % 2 == 0 ? std::sin(angle) : std::cos(angle);
  }
  return vector;
}

Oracle::Matrix::Matrix(const WeightView& view) : in(view.shape.at(1)), out(view.shape.at(0)), transposed(in * out) {
  const std::vector<double> rows = to_f64(view);  // [out, in]
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) transposed[i * out + o] = rows[o * in + i];
  }
}

std::vector<double> Oracle::Matrix::apply(const std::vector<double>& x, int64_t n) const {
  // Eight tokens share one pass over the weights; without it a large vocabulary makes the oracle memory-bound.
  constexpr int64_t kTokenTile = 8;
  std::vector<double> y(n * out, 0.0);
  for (int64_t first = 0; first < n; first += kTokenTile) {
    const int64_t last = std::min(n, first + kTokenTile);
    for (int64_t i = 0; i < in; ++i) {
      const double* weight = &transposed[i * out];
      for (int64_t token = first; token < last; ++token) {
        const double value = x[token * in + i];
        double* result = &y[token * out];
        for (int64_t o = 0; o < out; ++o) result[o] += value * weight[o];
      }
    }
  }
  return y;
}

Oracle::Oracle(const ModelConfig& config, const CheckpointWeights& weights)
    : config_(config),
      embeddings_(to_f64(weights.tok_embeddings)),
      norm_(to_f64(weights.norm)),
      output_(weights.output) {
  for (const LayerWeights& source : weights.layers) {
    Layer layer;
    layer.attention_norm = to_f64(source.attention_norm);
    layer.ffn_norm = to_f64(source.ffn_norm);
    layer.wq = Matrix(source.wq);
    layer.wk = Matrix(source.wk);
    layer.wv = Matrix(source.wv);
    layer.wo = Matrix(source.wo);
    layer.w1 = Matrix(source.w1);
    layer.w2 = Matrix(source.w2);
    layer.w3 = Matrix(source.w3);
    for (int64_t head = 0; head < config.num_heads; ++head) layer.heads.push_back(head_params(config, source, head));
    layers_.push_back(std::move(layer));
  }
}

std::vector<double> Oracle::embed(const std::vector<int32_t>& tokens) const {
  const int64_t hidden = config_.hidden_size;
  std::vector<double> x;
  for (size_t position = 0; position < tokens.size(); ++position) {
    const int64_t token = tokens[position];
    BAM_CHECK(token >= 0 && token < config_.vocab_size);
    std::vector<double> row(&embeddings_[token * hidden], &embeddings_[token * hidden] + hidden);
    if (config_.position_encoding == PositionEncoding::kSinusoidal) {
      add(row, sinusoidal_vector(hidden, static_cast<int64_t>(position), config_.sinusoidal_theta));
    }
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

std::vector<double> Oracle::rms_norm(const std::vector<double>& x, const std::vector<double>& weight, int64_t n) const {
  const int64_t hidden = config_.hidden_size;
  std::vector<double> y(x.size());
  for (int64_t token = 0; token < n; ++token) {
    const double* row = &x[token * hidden];
    double sum_of_squares = 0;
    for (int64_t d = 0; d < hidden; ++d) sum_of_squares += row[d] * row[d];
    const double scale =
        1.0 / std::sqrt(sum_of_squares / static_cast<double>(hidden) + static_cast<double>(config_.rms_norm_eps));
    for (int64_t d = 0; d < hidden; ++d) y[token * hidden + d] = row[d] * scale * weight[d];
  }
  return y;
}

std::vector<double> Oracle::attention(const Layer& layer, const std::vector<double>& x, int64_t n,
                                      Capture::Layer* capture) const {
  const int64_t head_dim = config_.head_dim;
  const int64_t q_size = config_.num_heads * head_dim;
  const int64_t kv_size = config_.num_kv_heads * head_dim;
  const int64_t heads_per_kv_head = config_.num_heads / config_.num_kv_heads;
  std::vector<double> q = layer.wq.apply(x, n);  // [n, q_size]
  std::vector<double> k = layer.wk.apply(x, n);  // [n, kv_size]
  std::vector<double> v = layer.wv.apply(x, n);

  for (int64_t i = 0; i < n; ++i) {
    if (config_.position_encoding == PositionEncoding::kRope ||
        config_.position_encoding == PositionEncoding::kRopeLocal) {
      for (int64_t h = 0; h < config_.num_heads; ++h) {
        rotate(&q[i * q_size + h * head_dim], head_dim, i, config_.rope_theta, config_.rope_style);
      }
      for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
        rotate(&k[i * kv_size + h * head_dim], head_dim, i, config_.rope_theta, config_.rope_style);
      }
    }
    for (int64_t h = 0; kv_rounding_ && h < config_.num_kv_heads; ++h) {
      kv_rounding_(&k[i * kv_size + h * head_dim], head_dim, true);
      kv_rounding_(&v[i * kv_size + h * head_dim], head_dim, false);
    }
  }

  std::vector<double> output(n * q_size);
  if (capture != nullptr) capture->probabilities.assign(config_.num_heads * n * n, 0.0);
  for (int64_t h = 0; h < config_.num_heads; ++h) {
    const int64_t kv_offset = (h / heads_per_kv_head) * head_dim;
    for (int64_t i = 0; i < n; ++i) {
      const AttentionRow row = attention_row(layer.heads[h], i, &q[i * q_size + h * head_dim], &k[kv_offset],
                                             &v[kv_offset], head_dim, kv_size);
      std::copy(row.output.begin(), row.output.end(), &output[i * q_size + h * head_dim]);
      if (capture != nullptr) {
        std::copy(row.probabilities.begin(), row.probabilities.end(), &capture->probabilities[(h * n + i) * n]);
      }
    }
  }
  if (capture != nullptr) capture->attention_output = output;
  return layer.wo.apply(output, n);
}

std::vector<double> Oracle::feed_forward(const Layer& layer, const std::vector<double>& x, int64_t n) const {
  std::vector<double> gate = layer.w1.apply(x, n);
  const std::vector<double> up = layer.w3.apply(x, n);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double silu = gate[i] / (1.0 + std::exp(-gate[i]));
    gate[i] = silu * up[i];
  }
  return layer.w2.apply(gate, n);
}

std::vector<double> Oracle::logits(const std::vector<int32_t>& tokens, Capture* capture) const {
  const int64_t n = static_cast<int64_t>(tokens.size());
  if (capture != nullptr) capture->layers.assign(layers_.size(), {});
  std::vector<double> x = embed(tokens);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    Capture::Layer* captured = capture != nullptr ? &capture->layers[l] : nullptr;
    add(x, attention(layer, rms_norm(x, layer.attention_norm, n), n, captured));
    add(x, feed_forward(layer, rms_norm(x, layer.ffn_norm, n), n));
    if (captured != nullptr) captured->hidden = x;
  }
  return output_.apply(rms_norm(x, norm_, n), n);
}

}  // namespace bam::reference
