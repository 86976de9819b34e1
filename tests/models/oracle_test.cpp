// The oracle checked against numbers worked out by hand and against identities of the model's definition.
#include "tests/reference/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

namespace bam::reference {
namespace {

constexpr PositionEncoding kAllEncodings[] = {
    PositionEncoding::kBam,       PositionEncoding::kAlibi,      PositionEncoding::kNope, PositionEncoding::kRope,
    PositionEncoding::kRopeLocal, PositionEncoding::kSinusoidal, PositionEncoding::kT5};

// Random q, k, v of one head: [n, head_dim] each.
struct Qkv {
  Qkv(int64_t n, int64_t head_dim, uint32_t seed) : n(n), head_dim(head_dim) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (auto* values : {&q, &k, &v}) {
      for (int64_t i = 0; i < n * head_dim; ++i) values->push_back(normal(generator));
    }
  }
  AttentionRow row(const HeadParams& head, int64_t i) const {
    return attention_row(head, i, &q[i * head_dim], k.data(), v.data(), head_dim, head_dim);
  }
  int64_t n, head_dim;
  std::vector<double> q, k, v;
};

void expect_same_rows(const HeadParams& a, const HeadParams& b, double tolerance) {
  const Qkv qkv(70, 16, 7);
  for (int64_t i = 0; i < qkv.n; ++i) {
    const AttentionRow row_a = qkv.row(a, i), row_b = qkv.row(b, i);
    for (int64_t d = 0; d < qkv.head_dim; ++d) ASSERT_NEAR(row_a.output[d], row_b.output[d], tolerance) << "row " << i;
  }
}

// A model whose weights live in memory.
struct SmallModel {
  ModelConfig config;
  CheckpointWeights weights;
  std::deque<std::vector<float>> storage;

  explicit SmallModel(const ModelConfig& c, uint32_t seed = 1) : config(c), generator_(seed) {
    weights.tok_embeddings = random({c.vocab_size, c.hidden_size}, 1.0f);
    weights.norm = random({c.hidden_size}, 1.0f);
    weights.output = random({c.vocab_size, c.hidden_size}, 0.3f);
    for (int64_t l = 0; l < c.num_layers; ++l) {
      LayerWeights layer;
      layer.attention_norm = random({c.hidden_size}, 1.0f);
      layer.ffn_norm = random({c.hidden_size}, 1.0f);
      layer.wq = random({c.q_size(), c.hidden_size}, 0.3f);
      layer.wk = random({c.kv_size(), c.hidden_size}, 0.3f);
      layer.wv = random({c.kv_size(), c.hidden_size}, 0.3f);
      layer.wo = random({c.hidden_size, c.q_size()}, 0.3f);
      layer.w1 = random({c.intermediate_size, c.hidden_size}, 0.3f);
      layer.w3 = random({c.intermediate_size, c.hidden_size}, 0.3f);
      layer.w2 = random({c.hidden_size, c.intermediate_size}, 0.3f);
      for (int64_t h = 0; h < c.num_heads; ++h) {
        layer.seq_scale.push_back(0.4f + 0.1f * static_cast<float>(h));
        layer.prior.push_back({.alpha = -0.5, .beta = -0.4 + 0.3 * static_cast<double>(h), .theta_mu = 0});
      }
      for (int64_t b = 0; b < c.relative_buckets * c.num_heads; ++b) {
        layer.relative_bias.push_back(static_cast<float>(b * 7 % 13) * 0.2f - 1.0f);
      }
      weights.layers.push_back(std::move(layer));
    }
  }

  WeightView random(std::vector<int64_t> shape, float scale) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    std::normal_distribution<float> normal(0, scale);
    std::vector<float>& values = storage.emplace_back(count);
    for (float& value : values) value = normal(generator_);
    return {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, std::move(shape), "in memory"};
  }
  float* data(const WeightView& view) { return reinterpret_cast<float*>(const_cast<std::byte*>(view.data)); }

 private:
  std::mt19937 generator_;
};

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 4;
  config.head_dim = 6;
  config.vocab_size = 50;
  config.sliding_window = 5;
  config.ssmax = true;
  return config;
}

std::vector<int32_t> some_tokens(int64_t n, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * 37 + i * i * 11 + 5) % vocab));
  return tokens;
}

TEST(Oracle, AlibiSlopesWrittenOut) {
  const std::vector<double> eight = {1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16, 1.0 / 32, 1.0 / 64, 1.0 / 128, 1.0 / 256};
  // Eight slopes of 8 heads, then every second slope of 16 heads.
  const std::vector<double> twelve = {0.5,
                                      0.25,
                                      0.125,
                                      0.0625,
                                      0.03125,
                                      0.015625,
                                      0.0078125,
                                      0.00390625,
                                      0.7071067811865476,
                                      0.35355339059327379,
                                      0.17677669529663689,
                                      0.088388347648318447};
  const std::vector<double> sixteen = {0.70710678118654757,  0.5,       0.35355339059327379,  0.25,
                                       0.17677669529663689,  0.125,     0.088388347648318447, 0.0625,
                                       0.044194173824159223, 0.03125,   0.022097086912079612, 0.015625,
                                       0.011048543456039806, 0.0078125, 0.005524271728019903, 0.00390625};
  for (const auto& expected : {eight, twelve, sixteen}) {
    const std::vector<double> slopes = alibi_slopes(static_cast<int64_t>(expected.size()));
    ASSERT_EQ(slopes.size(), expected.size());
    for (size_t h = 0; h < expected.size(); ++h)
      EXPECT_NEAR(slopes[h], expected[h], 1e-15) << expected.size() << " heads, head " << h;
  }
}

TEST(Oracle, PriorWrittenOut) {
  HeadParams head;
  head.encoding = PositionEncoding::kBam;
  head.theta_alpha = 0;
  head.theta_beta = -0.6;
  EXPECT_NEAR(prior(head, 9, 9), -1000, 1e-9);  // (1e-5)^-0.6
  head.theta_beta = -1;
  EXPECT_NEAR(prior(head, 9, 9), -1e5, 1e-6);

  // theta_mu = asinh(1) puts the peak two keys beyond the query: |9 - 9 - 2| = 2.
  head.theta_mu = std::asinh(1.0);
  head.theta_alpha = std::log(3.0);
  head.theta_beta = 2;
  EXPECT_NEAR(prior(head, 9, 9), -3 * 2.00001 * 2.00001, 1e-12);
  EXPECT_NEAR(prior(head, 9, 5), -3 * 6.00001 * 6.00001, 1e-12);
  head.prior_form = PriorForm::kScaleInside;
  EXPECT_NEAR(prior(head, 9, 9), -6.00001 * 6.00001, 1e-12);
  EXPECT_NEAR(prior(head, 9, 5), -18.00001 * 18.00001, 1e-11);
  // A negative theta_mu moves it back: |8 - 9 + 2| = 1.
  head.theta_mu = -std::asinh(1.0);
  EXPECT_NEAR(prior(head, 9, 8), -3.00001 * 3.00001, 1e-12);
}

TEST(Oracle, LogitsWrittenOut) {
  // Query 7 sees 8 keys; s = 0.5, so c = 0.5 ln 8.
  const double c = 0.5 * std::log(8.0), z = 1.25;
  HeadParams head;
  head.ssmax = true;
  head.seq_scale = 0.5;
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z * c, 1e-14);
  head.encoding = PositionEncoding::kAlibi;
  head.slope = 0.25;
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z * c - 1, 1e-14);
  head.encoding = PositionEncoding::kBam;
  head.theta_beta = 1;
  EXPECT_NEAR(attention_logit(head, z, 7, 3), (z - 4.00001) * c, 1e-14);
  head.ssmax_prior = false;
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z * c - 4.00001, 1e-14);
  head.ssmax = false;
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z - 4.00001, 1e-14);
  // Four buckets up to 8: distances 0 | 1 | 2, 3 | 4 and more.
  head.encoding = PositionEncoding::kT5;
  head.buckets = {0.5, 1.5, -2.5, 3.5};
  head.max_distance = 8;
  EXPECT_NEAR(attention_logit(head, z, 7, 7), z + 0.5, 1e-14);
  EXPECT_NEAR(attention_logit(head, z, 7, 4), z - 2.5, 1e-14);
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z + 3.5, 1e-14);
  head.ssmax = true;
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z * c + 3.5, 1e-14);  // a learned bias is not scaled
  // A window of 5 leaves keys 2..7 to query 7: six of them.
  head.encoding = PositionEncoding::kRopeLocal;
  head.sliding_window = 5;
  head.ssmax = true;
  EXPECT_EQ(first_visible_key(head, 7), 2);
  EXPECT_NEAR(attention_logit(head, z, 7, 3), z * 0.5 * std::log(6.0), 1e-14);
  EXPECT_EQ(first_visible_key(head, 4), 0);
  EXPECT_NEAR(attention_logit(head, z, 4, 3), z * 0.5 * std::log(5.0), 1e-14);
}

TEST(Oracle, BamIsAlibiWhenItsParametersSaySo) {
  for (const PriorForm form : {PriorForm::kScaleOutside, PriorForm::kScaleInside}) {
    for (const bool ssmax : {false, true}) {
      for (const double slope : alibi_slopes(12)) {
        HeadParams bam, alibi;
        bam.encoding = PositionEncoding::kBam;
        bam.ssmax_prior = false;  // ALiBi's bias is never scaled
        bam.prior_form = form;
        bam.theta_beta = 1;
        bam.theta_alpha = std::log(slope);
        alibi.encoding = PositionEncoding::kAlibi;
        alibi.slope = slope;
        bam.ssmax = alibi.ssmax = ssmax;
        bam.seq_scale = alibi.seq_scale = 0.7;
        for (int64_t j = 0; j <= 40; ++j) {
          EXPECT_NEAR(attention_logit(bam, 0.3, 40, j), attention_logit(alibi, 0.3, 40, j), 1.1e-5);
        }
        expect_same_rows(bam, alibi, 1e-12);  // epsilon is the same for all keys and cancels
      }
    }
  }
}

TEST(Oracle, BamWithShapeZeroIsNope) {
  for (const PriorForm form : {PriorForm::kScaleOutside, PriorForm::kScaleInside}) {
    for (const bool ssmax : {false, true}) {
      HeadParams bam, nope;
      bam.encoding = PositionEncoding::kBam;
      bam.prior_form = form;
      bam.theta_alpha = 1.5;
      bam.theta_mu = 0.8;
      bam.ssmax = nope.ssmax = ssmax;
      expect_same_rows(bam, nope, 1e-12);
    }
  }
}

TEST(Oracle, FirstRowIsFirstValueAndProbabilitiesSumToOne) {
  const Qkv qkv(40, 8, 3);
  for (const PositionEncoding encoding : kAllEncodings) {
    for (const double beta : {-1.5, -0.6, 0.0, 0.4, 1.3}) {
      HeadParams head;
      head.encoding = encoding;
      head.ssmax = true;
      head.seq_scale = 0.9;
      head.slope = 0.3;
      head.buckets = {0.5, -3, 2, 1, -1};
      head.max_distance = 20;
      head.sliding_window = 6;
      head.theta_alpha = 3;
      head.theta_beta = beta;
      EXPECT_EQ(qkv.row(head, 0).output, std::vector<double>(qkv.v.begin(), qkv.v.begin() + qkv.head_dim));
      for (int64_t i = 0; i < qkv.n; ++i) {
        const AttentionRow row = qkv.row(head, i);
        double sum = 0;
        for (const double p : row.probabilities) sum += p;
        EXPECT_NEAR(sum, 1, 1e-13);
        for (const double value : row.output) EXPECT_TRUE(std::isfinite(value));
        if (encoding == PositionEncoding::kRopeLocal && i > 6) {
          EXPECT_EQ(row.probabilities[i - 7], 0);
          EXPECT_GT(row.probabilities[i - 6], 0);
        }
      }
    }
  }
}

TEST(Oracle, RotationWrittenOut) {
  const double theta = 10000;
  std::vector<double> x = {1, 0, 0, 1};
  rotate(x.data(), 4, 3, theta, RopeStyle::kInterleaved);
  // Pair 0 turns by 3, pair 1 by 3 / sqrt(theta) = 0.03.
  EXPECT_NEAR(x[0], std::cos(3.0), 1e-15);
  EXPECT_NEAR(x[1], std::sin(3.0), 1e-15);
  EXPECT_NEAR(x[2], -std::sin(0.03), 1e-15);
  EXPECT_NEAR(x[3], std::cos(0.03), 1e-15);

  x = {1, 0, 0, 1};  // pairs (0, 2) and (1, 3)
  rotate(x.data(), 4, 3, theta, RopeStyle::kRotateHalf);
  EXPECT_NEAR(x[0], std::cos(3.0), 1e-15);
  EXPECT_NEAR(x[2], std::sin(3.0), 1e-15);
  EXPECT_NEAR(x[1], -std::sin(0.03), 1e-15);
  EXPECT_NEAR(x[3], std::cos(0.03), 1e-15);
}

TEST(Oracle, SinusoidalVectorWrittenOut) {
  const std::vector<double> p = sinusoidal_vector(4, 10, 10000);
  EXPECT_NEAR(p[0], std::sin(10.0), 1e-12);
  EXPECT_NEAR(p[1], std::cos(1.0), 1e-12);   // 10 * 10000^(-1/4)
  EXPECT_NEAR(p[2], std::sin(0.1), 1e-12);   // 10 * 10000^(-2/4)
  EXPECT_NEAR(p[3], std::cos(0.01), 1e-12);  // 10 * 10000^(-3/4)
}

TEST(Oracle, OneTokenWrittenOut) {
  // hidden = head_dim = intermediate = 1: every matrix is a number and attention returns v_0.
  ModelConfig config = small_config();
  config.hidden_size = config.intermediate_size = config.head_dim = 1;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.vocab_size = 2;
  SmallModel model(config);
  const LayerWeights& layer = model.weights.layers[0];
  const auto number = [&](const WeightView& view, int64_t index = 0) {
    return static_cast<double>(model.data(view)[index]);
  };
  const auto norm = [&](double x, const WeightView& weight) {
    return x / std::sqrt(x * x + static_cast<double>(config.rms_norm_eps)) * number(weight);
  };

  double x = number(model.weights.tok_embeddings, 1);
  x += number(layer.wo) * number(layer.wv) * norm(x, layer.attention_norm);
  const double gate = number(layer.w1) * norm(x, layer.ffn_norm);
  x += number(layer.w2) * gate / (1 + std::exp(-gate)) * number(layer.w3) * norm(x, layer.ffn_norm);
  const std::vector<double> logits = Oracle(config, model.weights).logits({1});
  ASSERT_EQ(logits.size(), 2u);
  EXPECT_NEAR(logits[0], number(model.weights.output, 0) * norm(x, model.weights.norm), 1e-14);
  EXPECT_NEAR(logits[1], number(model.weights.output, 1) * norm(x, model.weights.norm), 1e-14);

  model.weights.output = model.weights.tok_embeddings;  // as the loader does for tied embeddings
  EXPECT_NEAR(Oracle(config, model.weights).logits({1})[0],
              number(model.weights.tok_embeddings, 0) * norm(x, model.weights.norm), 1e-14);
}

TEST(Oracle, LaterTokensDoNotChangeEarlierLogits) {
  for (const PositionEncoding encoding : kAllEncodings) {
    ModelConfig config = small_config();
    config.position_encoding = encoding;
    SmallModel model(config);
    const Oracle oracle(config, model.weights);
    std::vector<int32_t> tokens = some_tokens(20, config.vocab_size);
    const std::vector<double> longer = oracle.logits(tokens);
    tokens.resize(13);
    const std::vector<double> shorter = oracle.logits(tokens);
    ASSERT_EQ(shorter.size(), 13u * 50u);
    EXPECT_EQ(shorter, std::vector<double>(longer.begin(), longer.begin() + 13 * 50));
  }
}

TEST(Oracle, GroupedQueriesEqualRepeatedKeysAndValues) {
  ModelConfig grouped_config = small_config();
  grouped_config.num_kv_heads = 2;
  SmallModel grouped(grouped_config);
  ModelConfig full_config = small_config();
  SmallModel full(grouped_config);  // the same random numbers
  const int64_t head_size = grouped_config.head_dim * grouped_config.hidden_size;
  for (LayerWeights& layer : full.weights.layers) {
    for (WeightView* view : {&layer.wk, &layer.wv}) {
      const float* source = full.data(*view);
      std::vector<float> repeated;
      for (int64_t h = 0; h < 4; ++h) {  // kv heads 0 0 1 1
        repeated.insert(repeated.end(), source + (h / 2) * head_size, source + (h / 2 + 1) * head_size);
      }
      full.storage.push_back(std::move(repeated));
      view->data = reinterpret_cast<const std::byte*>(full.storage.back().data());
      view->shape = {full_config.kv_size(), full_config.hidden_size};
    }
  }
  const std::vector<int32_t> tokens = some_tokens(17, 50);
  EXPECT_EQ(Oracle(grouped_config, grouped.weights).logits(tokens), Oracle(full_config, full.weights).logits(tokens));
}

TEST(Oracle, CaptureShowsWhatTheLogitsAreMadeOf) {
  const ModelConfig config = small_config();
  SmallModel model(config);
  const Oracle oracle(config, model.weights);
  const int64_t n = 9;
  Capture capture;
  const std::vector<double> logits = oracle.logits(some_tokens(n, 50), &capture);
  EXPECT_EQ(logits, oracle.logits(some_tokens(n, 50)));
  ASSERT_EQ(capture.layers.size(), 2u);
  for (const Capture::Layer& layer : capture.layers) {
    ASSERT_EQ(layer.hidden.size(), static_cast<size_t>(n * config.hidden_size));
    ASSERT_EQ(layer.attention_output.size(), static_cast<size_t>(n * config.q_size()));
    ASSERT_EQ(layer.probabilities.size(), static_cast<size_t>(config.num_heads * n * n));
    for (int64_t row = 0; row < config.num_heads * n; ++row) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += layer.probabilities[row * n + j];
      EXPECT_NEAR(sum, 1, 1e-13);
    }
  }
}

TEST(Oracle, KvRoundingIsAppliedToEveryCachedVector) {
  const ModelConfig config = small_config();
  SmallModel model(config);
  Oracle oracle(config, model.weights);
  const std::vector<int32_t> tokens = some_tokens(11, 50);
  const std::vector<double> exact = oracle.logits(tokens);
  int64_t num_keys = 0, num_values = 0;
  oracle.set_kv_rounding([&](double*, int64_t head_dim, bool is_key) {
    EXPECT_EQ(head_dim, config.head_dim);
    ++(is_key ? num_keys : num_values);
  });
  EXPECT_EQ(oracle.logits(tokens), exact);
  EXPECT_EQ(num_keys, config.num_layers * config.num_kv_heads * 11);
  EXPECT_EQ(num_values, num_keys);
  oracle.set_kv_rounding([](double* x, int64_t head_dim, bool) {
    for (int64_t d = 0; d < head_dim; ++d) x[d] = std::round(x[d] * 8) / 8;
  });
  EXPECT_NE(oracle.logits(tokens), exact);
}

}  // namespace
}  // namespace bam::reference
