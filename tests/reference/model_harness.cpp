#include "tests/reference/model_harness.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/check.h"

namespace bam::reference {
namespace {

// Distance of neighbouring numbers around x in a format with `bits` significant bits and normal numbers from
// 2^min_exponent on.
double format_step(double x, int bits, int min_exponent) {
  const int exponent = x == 0 ? min_exponent : std::max(std::ilogb(x), min_exponent);
  return std::ldexp(1.0, exponent - (bits - 1));
}
double f16_step(double x) { return format_step(x, 11, -14); }
double bf16_step(double x) { return format_step(x, 8, -126); }
// To nearest even.
double round_to_f16(double x) { return std::nearbyint(x / f16_step(x)) * f16_step(x); }
double round_to_bf16(double x) { return std::nearbyint(x / bf16_step(x)) * bf16_step(x); }

// Codes -127 ... 127 times a half-precision scale, the smallest that does not clip the largest value.
void round_to_int8(double* x, int64_t n) {
  double largest = 0;
  for (int64_t d = 0; d < n; ++d) largest = std::max(largest, std::abs(x[d]));
  double scale = round_to_f16(largest / 127);
  if (scale * 127 < largest) scale += f16_step(scale);
  for (int64_t d = 0; scale > 0 && d < n; ++d) x[d] = std::clamp(std::nearbyint(x[d] / scale), -127.0, 127.0) * scale;
}

// minimum + codes 0 ... 15 times scale, both half precision.
void round_to_int4(double* x, int64_t n) {
  const auto [low, high] = std::minmax_element(x, x + n);
  const double minimum = round_to_f16(*low);
  const double scale = round_to_f16(std::max(*high - minimum, 0.0) / 15);
  for (int64_t d = 0; d < n; ++d) {
    const double code = scale > 0 ? std::clamp(std::nearbyint((x[d] - minimum) / scale), 0.0, 15.0) : 0.0;
    x[d] = minimum + code * scale;
  }
}

// e4m3 numbers times a half-precision scale, the smallest that does not clip the largest value, up to 146.125.
// Quotients in float32 as in the cache: float16 inputs hit exact ties, where float64 may round the other way.
void round_to_fp8(double* x, int64_t n) {
  double largest = 0;
  for (int64_t d = 0; d < n; ++d) largest = std::max(largest, std::abs(x[d]));
  double scale = round_to_f16(static_cast<float>(largest) / 448.0f);
  if (scale * 448 < largest) scale += f16_step(scale);
  scale = std::min(scale, 146.125);
  const float inverse = scale > 0 ? 1.0f / static_cast<float>(scale) : 0.0f;
  for (int64_t d = 0; d < n; ++d) {
    const double q = std::clamp(static_cast<float>(x[d]) * inverse, -448.0f, 448.0f), step = format_step(q, 4, -6);
    x[d] = std::nearbyint(q / step) * step * scale;
  }
}

class VariantList {
 public:
  // Fills in the sizes that no variant is about; head sizes and head groups take turns.
  Variant& add(std::string name, PositionEncoding encoding, bool ssmax) {
    static constexpr int64_t kHeadDims[] = {48, 64, 32, 128, 80, 96};
    static constexpr int64_t kKvHeads[] = {4, 2, 4, 1};
    ModelConfig config = testing::tiny_config(encoding, ssmax);
    config.hidden_size = 96;
    config.intermediate_size = 160;
    config.head_dim = kHeadDims[list.size() % std::size(kHeadDims)];
    config.num_kv_heads = kKvHeads[list.size() % std::size(kKvHeads)];
    Variant variant;
    variant.name = std::move(name);
    variant.spec.config = config;
    variant.spec.seed = list.size() + 1;
    variant.spec.with_tokenizer = false;
    return list.emplace_back(std::move(variant));
  }

  void add_bam(bool ssmax, bool ssmax_prior, PriorForm form, PriorScope scope) {
    Variant& variant = add(bam_name(ssmax, ssmax_prior, form) + (scope == PriorScope::kGlobal ? "_global" : ""),
                           PositionEncoding::kBam, ssmax);
    variant.spec.config.ssmax_prior = ssmax_prior;
    variant.spec.config.prior_form = form;
    variant.spec.config.prior_scope = scope;
  }

  // Peaks before and behind the query, on and between keys.
  void add_shifted_bam(bool ssmax, PriorForm form) {
    Variant& variant = add(bam_name(ssmax, true, form) + "_shifted", PositionEncoding::kBam, ssmax);
    variant.spec.config.prior_form = form;
    variant.spec.prior = {{.alpha = 0.5, .beta = -0.5, .theta_mu = 0.3},
                          {.alpha = -0.3, .beta = 0.3, .theta_mu = -0.4},
                          {.alpha = -1.0, .beta = 0.9, .theta_mu = std::asinh(1.0)},
                          {.alpha = -2.0, .beta = 1.2, .theta_mu = -std::asinh(1.5)}};
  }

  std::vector<Variant> list;

 private:
  static std::string bam_name(bool ssmax, bool ssmax_prior, PriorForm form) {
    std::string name = form == PriorForm::kScaleOutside ? "bam_outside" : "bam_inside";
    if (ssmax) name += ssmax_prior ? "_ssmax" : "_ssmax_without_prior";
    return name;
  }
};

}  // namespace

std::vector<Variant> all_variants() {
  VariantList variants;
  for (const PriorForm form : {PriorForm::kScaleOutside, PriorForm::kScaleInside}) {
    for (const PriorScope scope : {PriorScope::kLayer, PriorScope::kGlobal}) {
      variants.add_bam(true, true, form, scope);
      variants.add_bam(true, false, form, scope);
      variants.add_bam(false, true, form, scope);
    }
  }
  for (const PriorForm form : {PriorForm::kScaleOutside, PriorForm::kScaleInside}) {
    variants.add_shifted_bam(true, form);
    variants.add_shifted_bam(false, form);
  }
  for (const bool ssmax : {true, false}) {
    const std::string suffix = ssmax ? "_ssmax" : "";
    variants.add("alibi" + suffix, PositionEncoding::kAlibi, ssmax);
    ModelConfig& six_heads = variants.add("alibi_6_heads" + suffix, PositionEncoding::kAlibi, ssmax).spec.config;
    six_heads.num_heads = 6;
    six_heads.num_kv_heads = 3;
    variants.add("nope" + suffix, PositionEncoding::kNope, ssmax);
    variants.add("rope" + suffix, PositionEncoding::kRope, ssmax);
    variants.add("rope_rotate_half" + suffix, PositionEncoding::kRope, ssmax).spec.config.rope_style =
        RopeStyle::kRotateHalf;
    variants.add("rope_local_24" + suffix, PositionEncoding::kRopeLocal, ssmax).spec.config.sliding_window = 24;
    variants.add("rope_local_100" + suffix, PositionEncoding::kRopeLocal, ssmax).spec.config.sliding_window = 100;
    variants.add("sinusoidal" + suffix, PositionEncoding::kSinusoidal, ssmax);
  }
  variants.add("bam_outside_ssmax_tied", PositionEncoding::kBam, true).spec.config.tie_word_embeddings = true;
  // A variant's seed and sizes come from its place in the list: new ones stand at its end.
  for (const bool ssmax : {true, false}) {
    const std::string suffix = ssmax ? "_ssmax" : "";
    variants.add("t5" + suffix, PositionEncoding::kT5, ssmax);
    ModelConfig& shared = variants.add("t5_shared_bias" + suffix, PositionEncoding::kT5, ssmax).spec.config;
    shared.prior_scope = PriorScope::kGlobal;
    shared.relative_buckets = 9;
    shared.relative_max_distance = 200;
  }
  return std::move(variants.list);
}

std::vector<Variant> extreme_variants() {
  VariantList variants;
  for (const PriorForm form : {PriorForm::kScaleOutside, PriorForm::kScaleInside}) {
    for (const bool ssmax : {true, false}) {
      const std::string suffix =
          std::string(form == PriorForm::kScaleOutside ? "_outside" : "_inside") + (ssmax ? "_ssmax" : "");
      // Distance 0 has a logit of -e^3 * 1e7.5 (times c_i), its neighbour one of -e^3.
      Variant& steep = variants.add("retrieval" + suffix, PositionEncoding::kBam, ssmax);
      steep.spec.config.prior_form = form;
      steep.spec.prior = {{.alpha = 3, .beta = -1.5, .theta_mu = 0},
                          {.alpha = 3, .beta = -1.5, .theta_mu = std::asinh(1.0)},
                          {.alpha = 3, .beta = -1.0, .theta_mu = -std::asinh(1.0)},
                          {.alpha = -8, .beta = -1.5, .theta_mu = -0.7}};
      // Every key but the nearest is out of sight.
      Variant& local = variants.add("local" + suffix, PositionEncoding::kBam, ssmax);
      local.spec.config.prior_form = form;
      local.spec.prior = {{.alpha = 3, .beta = 1.3, .theta_mu = 0},
                          {.alpha = 3, .beta = 3, .theta_mu = 0},
                          {.alpha = 3, .beta = 1.3, .theta_mu = 3},
                          {.alpha = 3, .beta = 2, .theta_mu = -3}};
    }
  }
  // A scale that training may leave below zero turns the preference round; zero makes it uniform.
  Variant& negative = variants.add("negative_seq_scale", PositionEncoding::kBam, true);
  negative.spec.seq_scale = {-0.3f, -0.05f, 0.0f, -1.0f};
  Variant& alibi = variants.add("negative_seq_scale_alibi", PositionEncoding::kAlibi, true);
  alibi.spec.seq_scale = {-0.3f, -0.05f, 0.0f, -1.0f};
  return std::move(variants.list);
}

Variant find_variant(const std::string& name) {
  for (Variant& variant : all_variants()) {
    if (variant.name == name) return std::move(variant);
  }
  throw std::invalid_argument("no variant " + name);
}

TestCheckpoint::TestCheckpoint(const testing::CheckpointSpec& spec) {
  testing::write_checkpoint(spec, dir_.path());
  config_ = load_model_config(dir_.path());
  weights_ = load_weights(dir_.path(), config_);
}

RoundedWeights::RoundedWeights(const CheckpointWeights& weights, DType dtype) : weights_(weights) {
  weights_.output = rounded(weights_.output, dtype);
  for (LayerWeights& layer : weights_.layers) {
    for (WeightView* view : {&layer.wq, &layer.wk, &layer.wv, &layer.wo, &layer.w1, &layer.w2, &layer.w3}) {
      *view = rounded(*view, dtype);
    }
  }
}

WeightView RoundedWeights::rounded(const WeightView& view, DType dtype) {
  BAM_CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  auto values = std::make_unique<std::vector<float>>(view.to_f32());
  for (float& value : *values) {
    value = static_cast<float>(dtype == DType::kF16 ? round_to_f16(value) : round_to_bf16(value));
  }
  storage_.push_back(std::move(values));
  return {reinterpret_cast<const std::byte*>(storage_.back()->data()), DType::kF32, view.shape, view.name};
}

Oracle::KvRounding kv_rounding(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kF32: return nullptr;
    case DType::kF16: return [](double* x, int64_t n, bool) { std::transform(x, x + n, x, round_to_f16); };
    case DType::kI8: return [](double* x, int64_t n, bool) { round_to_int8(x, n); };
    case DType::kI4: return [](double* x, int64_t n, bool) { round_to_int4(x, n); };
    case DType::kFp8: return [](double* x, int64_t n, bool) { round_to_fp8(x, n); };
    case DType::kBF16: return [](double* x, int64_t n, bool) { std::transform(x, x + n, x, round_to_bf16); };
  }
  throw std::invalid_argument("no such KV format");
}

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) token = static_cast<int32_t>(generator() % static_cast<uint64_t>(vocab));
  return tokens;
}

ModelHarness::ModelHarness(const TestCheckpoint& checkpoint, const HarnessOptions& options)
    : options_(options),
      backend_(options.backend ? options.backend : make_cpu_backend({.num_threads = options.num_threads})) {
  const ModelConfig& config = checkpoint.config();
  const ModelOptions model_options = {.weight_dtype = options.weight_dtype,
                                      .max_rows = options.max_tokens * options.num_sequences,
                                      .max_logit_rows = options.max_tokens * options.num_sequences,
                                      .attention = options.attention,
                                      .kv_dtype = options.kv_dtype,
                                      .use_reach = options.use_reach};
  model_ = std::make_unique<BamModel>(*backend_, config, checkpoint.weights(), model_options);
  model_->reserve_positions(options.max_tokens);

  pages_per_group_ = (options.max_tokens + options.page_size - 1) / options.page_size;
  const int64_t num_pages = options.num_sequences * model_->num_groups() * pages_per_group_;
  kv_.layout = make_kv_layout(options.kv_dtype, static_cast<int>(config.head_dim), options.page_size);
  kv_.num_pages = num_pages;
  memory_ = backend_->allocate(static_cast<size_t>(num_pages) * kv_.layout.page_bytes());
  kv_.base = static_cast<std::byte*>(memory_->data());
  block_tables_.resize(static_cast<size_t>(num_pages));
  std::iota(block_tables_.begin(), block_tables_.end(), 0);
  std::shuffle(block_tables_.begin(), block_tables_.end(), std::mt19937(5));
  for (const int32_t page : block_tables_) poison(page);
  histories_.resize(static_cast<size_t>(options.num_sequences));
  for (TableHistory& history : histories_) history.start_over(model_->num_groups());
}

void ModelHarness::poison(int32_t page) {
  backend_->write_page(kv_, page, std::vector<std::byte>(kv_.layout.page_bytes(), std::byte{0xff}));
}

int32_t& ModelHarness::table_entry(int sequence, int64_t group, int64_t page) {
  return block_tables_.at((sequence * model_->num_groups() + group) * pages_per_group_ + page);
}

std::vector<float> ModelHarness::step(const std::vector<Piece>& pieces, const std::vector<int32_t>& logit_rows) {
  std::vector<int32_t> tokens;
  std::vector<SequenceRows> sequences;
  for (const Piece& piece : pieces) {
    const int64_t num_rows = static_cast<int64_t>(piece.tokens.size());
    BAM_CHECK(piece.start_pos + num_rows <= options_.max_tokens);
    sequences.push_back(
        {.block_table = &table_entry(piece.sequence, 0, 0),
         .table_stride = pages_per_group_,
         .row_begin = static_cast<int64_t>(tokens.size()),
         .num_rows = num_rows,
         .start_pos = piece.start_pos,
         .history = options_.resident_tables ? &histories_[static_cast<size_t>(piece.sequence)] : nullptr});
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
  }
  std::vector<float> logits(logit_rows.size() * static_cast<size_t>(model_->config().vocab_size));
  model_->forward({.tokens = tokens, .sequences = sequences, .logit_rows = logit_rows}, kv_, logits);
  return logits;
}

std::vector<float> ModelHarness::step(const std::vector<Piece>& pieces) {
  size_t num_rows = 0;
  for (const Piece& piece : pieces) num_rows += piece.tokens.size();
  std::vector<int32_t> all_rows(num_rows);
  std::iota(all_rows.begin(), all_rows.end(), 0);
  return step(pieces, all_rows);
}

std::vector<float> ModelHarness::logits(const std::vector<int32_t>& tokens, int64_t chunk, int sequence) {
  std::vector<float> logits;
  const int64_t n = static_cast<int64_t>(tokens.size());
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t end = std::min(n, start + chunk);
    const Piece piece = {sequence, {tokens.begin() + start, tokens.begin() + end}, start};
    const std::vector<float> rows = step({piece});
    logits.insert(logits.end(), rows.begin(), rows.end());
  }
  return logits;
}

int64_t ModelHarness::drop_unreachable_pages(int64_t position, int sequence) {
  int64_t num_dropped = 0;
  for (int64_t group = 0; group < model_->num_groups(); ++group) {
    const int64_t reach = model_->group_reach().at(group);
    for (int64_t page = 0; reach >= 0 && page < pages_per_group_; ++page) {
      const int64_t last_key = (page + 1) * options_.page_size - 1;
      int32_t& entry = table_entry(sequence, group, page);
      if (position - last_key <= reach || entry == kNoPage) continue;
      poison(entry);
      entry = kNoPage;
      histories_[static_cast<size_t>(sequence)].note(group, page);
      ++num_dropped;
    }
  }
  return num_dropped;
}

}  // namespace bam::reference
