#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/philox.h"

namespace bam {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kGreedyTemperature = 1e-5f;
constexpr int64_t kReservedSeen = 4096;

bool uses_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

template <typename T>
bool better(const T& a, const T& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

}  // namespace

SamplerState::SamplerState(const SamplingParams& params, uint64_t seed, int32_t choice, int32_t vocab_size,
                           std::span<const int32_t> prompt, std::unique_ptr<TokenConstraint> constraint)
    : params_(params), seed_(seed), choice_(choice), constraint_(std::move(constraint)) {
  if (constraint_) last_token_work_ = std::numeric_limits<uint64_t>::max();
  std::vector<int32_t> biased;
  for (const auto& [token, bias] : params.logit_bias) biased.push_back(token);
  std::ranges::sort(biased);
  distinct_biases_ = std::ranges::adjacent_find(biased) == biased.end();
  if (!uses_penalties(params)) return;
  output_counts_.assign(static_cast<size_t>(vocab_size), -1);
  seen_.reserve(static_cast<size_t>(std::min<int64_t>(vocab_size, kReservedSeen)));
  if (params.repetition_penalty == 1.0f) return;  // the prompt matters to nothing else
  for (const int32_t token : prompt) {
    int32_t& count = output_counts_[static_cast<size_t>(token)];
    if (count < 0) seen_.push_back(token);
    count = 0;
  }
}

void SamplerState::accept(int32_t token) {
  ++num_generated_;
  if (constraint_) {
    constraint_->accept(token);
    const uint64_t work = constraint_->work();
    last_token_work_ = work - std::exchange(accepted_work_, work);
  }
  if (output_counts_.empty()) return;
  int32_t& count = output_counts_[static_cast<size_t>(token)];
  if (count < 0) {
    seen_.push_back(token);
    count = 0;
  }
  ++count;
}

Sampler::Sampler(int32_t vocab_size, std::vector<int32_t> eos_token_ids)
    : vocab_size_(vocab_size), eos_token_ids_(std::move(eos_token_ids)) {
  const size_t vocab = static_cast<size_t>(vocab_size);
  work_.resize(vocab);
  probs_.resize(vocab);
  maxima_.resize(num_logit_blocks(vocab));
  order_.resize(maxima_.size());
  sums_.resize(maxima_.size());
  buffer_.resize(vocab + 1);
  allowed_.resize((vocab + 31) / 32);
}

Sample Sampler::sample(std::span<const float> logits, SamplerState& state, const MaskBudget* budget) {
  Sample result;
  if (!block_maxima(logits, maxima_) || std::ranges::max(maxima_) == kMinusInfinity) {
    result.status = SampleStatus::kBadLogits;
    return result;
  }
  // Only what is sane may wait: pages of the other rows must not reach the cache meanwhile.
  if (budget && state.constraint_ && !budget->admits(*state.constraint_)) {
    result.status = SampleStatus::kDeferred;
    return result;
  }
  std::span<const float> row = logits;
  if (modifies(state)) {
    std::ranges::copy(logits, work_.begin());
    apply_penalties(state);
    if (!apply_masks(state)) {
      result.status = SampleStatus::kNoToken;
      return result;
    }
    row = work_;
  }
  const DrawRow settings = settings_of(state, 0);
  result.token = settings.greedy ? argmax(row) : draw(row, settings);
  if (state.params_.num_logprobs >= 0) {
    result.logprobs = logprobs(logits, result.token, state.params_.num_logprobs);
  }
  return result;
}

std::optional<TokenLogprobs> Sampler::logprobs(std::span<const float> logits, int32_t token, int32_t num_top) {
  if (!block_maxima(logits, maxima_) || std::ranges::max(maxima_) == kMinusInfinity) return std::nullopt;
  return make_logprobs(logits, token, num_top);
}

bool Sampler::modifies(const SamplerState& state) const {
  const SamplingParams& p = state.params_;
  return uses_penalties(p) || !p.logit_bias.empty() || state.num_generated_ < p.min_tokens || state.constraint_;
}

void Sampler::apply_penalties(const SamplerState& state) {
  const SamplingParams& p = state.params_;
  for (const int32_t token : state.seen_) {
    float& x = work_[static_cast<size_t>(token)];
    x = penalized_logit(x, state.output_counts_[static_cast<size_t>(token)], p.repetition_penalty, p.presence_penalty,
                        p.frequency_penalty);
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token >= 0 && token < vocab_size_) work_[static_cast<size_t>(token)] += bias;
  }
}

// Leaves at least one token, or returns false. Also brings maxima_ up to date with work_.
bool Sampler::apply_masks(SamplerState& state) {
  const SamplingParams& p = state.params_;
  if (state.constraint_) {
    std::ranges::fill(allowed_, 0u);
    state.constraint_->allowed_tokens(allowed_);
    for (size_t t = 0; t < work_.size(); ++t) {
      if (!((allowed_[t / 32] >> (t % 32)) & 1u)) work_[t] = kMinusInfinity;
    }
  }
  banned_.clear();
  if (state.num_generated_ < p.min_tokens) append_ends(p, banned_);
  // If only the end is left, a constraint that is complete wins over min_tokens.
  return ban(banned_);
}

bool Sampler::ban(std::span<const int32_t> tokens) {
  if (!tokens.empty()) {
    std::vector<float> saved;
    for (const int32_t token : tokens)
      saved.push_back(std::exchange(work_[static_cast<size_t>(token)], kMinusInfinity));
    block_maxima(work_, maxima_);
    if (std::ranges::max(maxima_) > kMinusInfinity) return true;
    // Backwards, in case of repeated ids.
    for (size_t i = tokens.size(); i-- > 0;) work_[static_cast<size_t>(tokens[i])] = saved[i];
  }
  block_maxima(work_, maxima_);
  return std::ranges::max(maxima_) > kMinusInfinity;
}

int32_t Sampler::draw_planned(std::span<const float> logits, const DrawBatch& batch, const DrawRow& settings) {
  if (!block_maxima(logits, maxima_) || std::ranges::max(maxima_) == kMinusInfinity) return kDrawBadLogits;
  const auto slice = [](const auto& list, const DrawSlice& of) {
    return std::span(list).subspan(static_cast<size_t>(of.begin), static_cast<size_t>(of.count));
  };
  std::span<const float> row = logits;
  if (settings.seen.count + settings.biases.count + settings.banned.count > 0) {
    std::ranges::copy(logits, work_.begin());
    for (const auto& [token, count] : slice(batch.seen, settings.seen)) {
      float& x = work_[static_cast<size_t>(token)];
      x = penalized_logit(x, count, settings.repetition_penalty, settings.presence_penalty, settings.frequency_penalty);
    }
    for (const auto& [token, bias] : slice(batch.biases, settings.biases)) work_[static_cast<size_t>(token)] += bias;
    if (!ban(slice(batch.banned, settings.banned))) return kDrawNothing;
    row = work_;
  }
  return settings.greedy ? argmax(row) : draw(row, settings);
}

int32_t Sampler::argmax(std::span<const float> row) const {
  const size_t block = static_cast<size_t>(std::ranges::max_element(maxima_) - maxima_.begin());
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(block * kLogitBlock);
  return static_cast<int32_t>(std::find(begin, row.end(), maxima_[block]) - row.begin());
}

double Sampler::next_uniform(const SamplerState& state, int64_t ahead) {
  return philox_uniform(state.seed_, static_cast<uint32_t>(state.choice_),
                        static_cast<uint64_t>(state.num_generated_ + ahead));
}

int32_t Sampler::draw(std::span<const float> row, const DrawRow& p) {
  if (keep_top_logits(row, p)) {
    narrow_top(p);
    return draw_from_candidates(p.uniform);
  }
  weight_blocks(row, std::ranges::max(maxima_), p.inverse_temperature, probs_, sums_);
  const double total = std::accumulate(sums_.begin(), sums_.end(), 0.0);
  const bool restricted = uses_top_k(p) || p.top_p < 1.0f || p.min_p > 0.0f;
  if (!restricted) return draw_from_blocks(p.uniform * total);
  if (restrict_candidates(p, total)) return draw_from_candidates(p.uniform);
  restrict_flat(p, total);
  return draw_from_blocks(p.uniform * std::accumulate(sums_.begin(), sums_.end(), 0.0));
}

int32_t Sampler::draw_from_blocks(double target) const {
  size_t block = 0;
  while (block + 1 < sums_.size() && target >= sums_[block]) target -= sums_[block++];
  // Rounding may carry the target past the end of the last block: then the last possible token is it.
  while (sums_[block] == 0) --block;
  int32_t last = 0;
  const size_t end = std::min(probs_.size(), (block + 1) * kLogitBlock);
  for (size_t i = block * kLogitBlock; i < end; ++i) {
    if (probs_[i] <= 0) continue;
    last = static_cast<int32_t>(i);
    target -= static_cast<double>(probs_[i]);
    if (target < 0) break;
  }
  return last;
}

int32_t Sampler::draw_from_candidates(double uniform) {
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::ranges::is_sorted(candidates_, by_id)) std::sort(candidates_.begin(), candidates_.end(), by_id);
  double total = 0;
  for (const Candidate& c : candidates_) total += static_cast<double>(c.value);
  double target = uniform * total;
  for (const Candidate& c : candidates_) {
    target -= static_cast<double>(c.value);
    if (target < 0) return c.id;
  }
  return candidates_.back().id;
}

bool Sampler::restrict_candidates(const DrawRow& p, double total) {
  constexpr float kLikely = 0.0025f;  // e^-6: covers the mass of an ordinary trained model's row
  constexpr size_t kMaxSort = 2048;
  block_maxima(probs_, maxima_);
  if (uses_top_k(p)) {
    keep_top(static_cast<size_t>(p.top_k), probs_);
    narrow_top(p);
    return true;
  }
  if (p.top_p < 1.0f) {
    gather(probs_, kLikely, 2.0f, kMaxSort);
    if (candidates_.size() > kMaxSort) return false;
    double likely = 0;
    for (const Candidate& c : candidates_) likely += static_cast<double>(c.value);
    const double mass = static_cast<double>(p.top_p) * total;
    if (likely < mass) return false;
    keep_mass(mass);
  } else {
    gather(probs_, p.min_p, 2.0f, buffer_.size());
  }
  drop_below(p.min_p);
  return true;
}

void Sampler::narrow_top(const DrawRow& p) {
  if (p.top_p < 1.0f) {
    double kept = 0;
    for (const Candidate& c : candidates_) kept += static_cast<double>(c.value);
    keep_mass(static_cast<double>(p.top_p) * kept);
  }
  drop_below(p.min_p);
}

void Sampler::drop_below(float min_p) {
  const auto unlikely = std::ranges::remove_if(candidates_, [&](const Candidate& c) { return c.value < min_p; });
  candidates_ = candidates_.first(candidates_.size() - unlikely.size());
}

void Sampler::restrict_flat(const DrawRow& p, double total) {
  const double mass = static_cast<double>(p.top_p) * total;
  const Bin bin = find_bin(std::numeric_limits<size_t>::max(), mass);
  // Above the bin everything stays, below nothing; inside it the order decides.
  gather(probs_, bin.floor, bin.ceiling, buffer_.size());
  std::sort(candidates_.begin(), candidates_.end(), better<Candidate>);
  mask_below(probs_, std::max(bin.floor, p.min_p), sums_);
  double sum = bin.mass_above;
  for (const Candidate& c : candidates_) {
    const bool keep = sum < mass;
    sum += static_cast<double>(c.value);
    float& prob = probs_[static_cast<size_t>(c.id)];
    if (keep || prob == 0) continue;
    sums_[static_cast<size_t>(c.id) / kLogitBlock] -= static_cast<double>(prob);
    prob = 0;
  }
}

void Sampler::gather(std::span<const float> values, float low, float high, size_t limit) {
  size_t count = 0;
  for (size_t block = 0; block < maxima_.size() && count <= limit; ++block) {
    if (maxima_[block] < low) continue;
    count += gather_between(values, block * kLogitBlock, (block + 1) * kLogitBlock, low, high, &buffer_[count]);
  }
  candidates_ = std::span(buffer_).first(count);
}

float Sampler::nth_block_maximum(size_t count) {
  std::ranges::copy(maxima_, order_.begin());
  const auto nth = order_.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(order_.begin(), nth, order_.end(), std::greater<>());
  return *nth;
}

bool Sampler::keep_top_logits(std::span<const float> row, const DrawRow& p) {
  if (!uses_top_k(p) || static_cast<size_t>(p.top_k) > maxima_.size()) return false;
  const size_t count = static_cast<size_t>(p.top_k);
  const float max = std::ranges::max(maxima_), scale = p.inverse_temperature;
  const float reached = nth_block_maximum(count);
  // Far below the best token the grid of weights makes equals of different logits.
  constexpr float kFineWeights = 0x1p-20f;
  if (!(draw_weight(reached, max, scale) >= kFineWeights)) return false;
  // Whatever lies this much lower weighs 1.5 % less than `reached`: no rounding brings it among the best.
  gather(row, reached - 1 / (64 * scale), std::numeric_limits<float>::infinity(), buffer_.size());
  for (Candidate& c : candidates_) c.value = draw_weight(c.value, max, scale);
  keep_best(count);
  return true;
}

void Sampler::keep_best(size_t count) {
  if (candidates_.size() <= count) return;
  const auto nth = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(candidates_.begin(), nth, candidates_.end(), better<Candidate>);
  candidates_ = candidates_.first(count);
}

// The `count` best of `values`, whose block maxima are in maxima_; in no particular order.
void Sampler::keep_top(size_t count, std::span<const float> values) {
  const bool of_probs = values.data() == probs_.data();
  float threshold = kMinusInfinity;
  if (count <= maxima_.size()) {
    threshold = nth_block_maximum(count);
  } else if (of_probs) {
    threshold = find_bin(count, std::numeric_limits<double>::infinity()).floor;
  }
  // A token of probability zero is no candidate, however few there are.
  if (of_probs) threshold = std::max(threshold, std::numeric_limits<float>::min());
  gather(values, threshold, std::numeric_limits<float>::infinity(), buffer_.size());
  keep_best(count);
}

Sampler::Bin Sampler::find_bin(size_t count, double mass) const {
  constexpr int64_t kFewEnough = 512;
  // Bits of positive floats are in the order of their values: halve the range until few weights are left in it.
  uint32_t floor = std::bit_cast<uint32_t>(0x1p-34f), ceiling = std::bit_cast<uint32_t>(2.0f);
  WeightsAbove above_floor{.count = vocab_size_}, above_ceiling;
  while (above_floor.count - above_ceiling.count > kFewEnough && ceiling - floor > 1) {
    const uint32_t middle = floor + (ceiling - floor) / 2;
    const WeightsAbove above = weights_above(probs_, std::bit_cast<float>(middle));
    const bool reached = static_cast<size_t>(above.count) >= count || above.mass >= mass;
    (reached ? floor : ceiling) = middle;
    (reached ? above_floor : above_ceiling) = above;
  }
  return {std::bit_cast<float>(floor), std::bit_cast<float>(ceiling), above_ceiling.mass};
}

// The fewest best candidates with at least this mass, best first.
void Sampler::keep_mass(double mass) {
  std::sort(candidates_.begin(), candidates_.end(), better<Candidate>);
  size_t keep = 0;
  for (double sum = 0; keep < candidates_.size() && (keep == 0 || sum < mass); ++keep) {
    sum += static_cast<double>(candidates_[keep].value);
  }
  candidates_ = candidates_.first(keep);
}

bool Sampler::plan_draw(const SamplerState& state, DrawBatch& batch, int64_t count) const {
  const SamplingParams& p = state.params_;
  if (state.constraint_ || p.num_logprobs >= 0 || vocab_size_ > kMaxDrawVocab || !state.distinct_biases_) return false;
  if (count > 1 && uses_penalties(p)) return false;
  // What goes to the device must be less than what it spares: a row of logits.
  if (2 * (state.seen_.size() + p.logit_bias.size()) > static_cast<size_t>(vocab_size_)) return false;
  for (int64_t ahead = 0; ahead < count; ++ahead) append_draw(state, ahead, batch);
  return true;
}

DrawRow Sampler::settings_of(const SamplerState& state, int64_t ahead) const {
  const SamplingParams& p = state.params_;
  const bool greedy = p.temperature < kGreedyTemperature;
  return {.greedy = greedy,
          .inverse_temperature = greedy ? 1.0f : 1.0f / p.temperature,
          .top_k = p.top_k < vocab_size_ ? p.top_k : 0,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .repetition_penalty = p.repetition_penalty,
          .presence_penalty = p.presence_penalty,
          .frequency_penalty = p.frequency_penalty,
          .uniform = next_uniform(state, ahead)};
}

void Sampler::append_ends(const SamplingParams& p, std::vector<int32_t>& tokens) const {
  for (const std::span<const int32_t> ids : {std::span(eos_token_ids_), std::span(p.stop_token_ids)}) {
    for (const int32_t token : ids) {
      if (token >= 0 && token < vocab_size_) tokens.push_back(token);
    }
  }
}

void Sampler::append_draw(const SamplerState& state, int64_t ahead, DrawBatch& batch) const {
  const SamplingParams& p = state.params_;
  const auto begin = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  DrawRow row = settings_of(state, ahead);
  row.seen = {begin(batch.seen), begin(state.seen_)};
  row.biases.begin = begin(batch.biases);
  row.banned.begin = begin(batch.banned);
  for (const auto& [token, bias] : p.logit_bias) {
    if (token >= 0 && token < vocab_size_) batch.biases.push_back({token, bias});
  }
  row.biases.count = begin(batch.biases) - row.biases.begin;
  for (const int32_t token : state.seen_) {
    batch.seen.push_back({token, state.output_counts_[static_cast<size_t>(token)]});
  }
  if (state.num_generated_ + ahead < p.min_tokens) append_ends(p, batch.banned);
  row.banned.count = begin(batch.banned) - row.banned.begin;
  batch.rows.push_back(row);
}

Sample Sampler::from_draw(int32_t drawn) {
  if (drawn >= 0) return {.token = drawn};
  return {.status = drawn == kDrawNothing ? SampleStatus::kNoToken : SampleStatus::kBadLogits};
}

TokenLogprobs Sampler::make_logprobs(std::span<const float> row, int32_t token, int32_t num_top) {
  const float max = std::ranges::max(maxima_);
  exp_blocks(row, max, 1.0f, probs_, sums_);
  const double log_total = std::log(std::accumulate(sums_.begin(), sums_.end(), 0.0));
  const auto logprob = [&](float x) {
    return static_cast<float>(static_cast<double>(x) - static_cast<double>(max) - log_total);
  };
  TokenLogprobs result;
  const float own = row[static_cast<size_t>(token)];
  result.logprob = logprob(own);
  result.rank = static_cast<int32_t>(count_greater(row, own)) + 1;
  if (num_top > 0) {
    keep_top(static_cast<size_t>(std::min(num_top, vocab_size_)), row);
    std::sort(candidates_.begin(), candidates_.end(), better<Candidate>);
    for (const Candidate& c : candidates_) result.top.emplace_back(c.id, logprob(c.value));
  }
  return result;
}

}  // namespace bam
