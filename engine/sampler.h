// From one row of logits to one token. Order of operations:
//
//   repetition, presence and frequency penalties -> logit bias -> min_tokens and constraint masks -> temperature
//   -> top-k -> top-p (of what top-k left) -> min-p -> draw
//
// Ties are broken by the lower token id everywhere, and the draw walks the tokens that are left by id. Weights are
// rounded so that their sums are exact (kernels/draw.h): a device that sums in another order draws the same token.
// Log-probabilities are those of the model itself: log-softmax of the raw logits, before penalties, bias, masks and
// temperature. All of it depends on the row, the request and the sequence's own history only. One thread at a time uses
// a Sampler; see BatchSampler for more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/logits_math.h"
#include "engine/mask_budget.h"
#include "engine/request.h"
#include "kernels/draw.h"

namespace bam {

// What sampling remembers of one sequence.
class SamplerState {
 public:
  // params outlives the state. prompt: for the repetition penalty. constraint may be null.
  SamplerState(const SamplingParams& params, uint64_t seed, int32_t choice, int32_t vocab_size,
               std::span<const int32_t> prompt, std::unique_ptr<TokenConstraint> constraint);

  // A token was sampled (or is replayed): it counts for penalties, the constraint and the random stream.
  void accept(int32_t token);

  int64_t num_generated() const { return num_generated_; }
  // Nothing but the end may follow.
  bool constraint_finished() const { return constraint_ && constraint_->finished(); }
  // Why the constraint gave up; empty: it did not.
  std::string_view constraint_failure() const { return constraint_ ? constraint_->failure() : std::string_view(); }
  // What the constraint has cost so far, and for the last token; the first one may cost anything.
  uint64_t constraint_work() const { return constraint_ ? constraint_->work() : 0; }
  uint64_t last_token_work() const { return last_token_work_; }

 private:
  friend class Sampler;
  const SamplingParams& params_;
  uint64_t seed_;
  int32_t choice_;
  std::unique_ptr<TokenConstraint> constraint_;
  uint64_t last_token_work_ = 0;
  uint64_t accepted_work_ = 0;  // of all tokens
  int64_t num_generated_ = 0;
  bool distinct_biases_ = true;  // else their order matters, and the host adds them up
  // Only with penalties:
  std::vector<int32_t> seen_;           // distinct tokens of prompt and output
  std::vector<int32_t> output_counts_;  // [vocab]; -1: not seen at all
};

enum class SampleStatus : uint8_t {
  kOk,
  kBadLogits,  // NaN or infinity
  kNoToken,    // the constraint allows nothing
  kDeferred,   // nothing was done: the step's budget of masks is spent
};

struct Sample {
  SampleStatus status = SampleStatus::kOk;
  int32_t token = -1;
  std::optional<TokenLogprobs> logprobs;
};

class Sampler {
 public:
  Sampler(int32_t vocab_size, std::vector<int32_t> eos_token_ids);

  // Samples the next token of a sequence from logits [vocab]; does not accept() it. budget: null: masks may cost anything.
  Sample sample(std::span<const float> logits, SamplerState& state, const MaskBudget* budget = nullptr);
  // The same for a device: appends the draws of the next `count` tokens to the batch, but for the rows of logits. False,
  // with nothing appended: the host must sample, because a constraint, log-probabilities or long lists of tokens are
  // involved, or, beyond the next token, penalties, which depend on those before.
  bool plan_draw(const SamplerState& state, DrawBatch& batch, int64_t count = 1) const;
  // Such a draw on this machine: what sample() would give. A token, or one of kDrawBadLogits and kDrawNothing.
  int32_t draw_planned(std::span<const float> logits, const DrawBatch& batch, const DrawRow& row);
  // What was drawn elsewhere.
  static Sample from_draw(int32_t drawn);
  // Log-probabilities of `token`; nullopt for bad logits.
  std::optional<TokenLogprobs> logprobs(std::span<const float> logits, int32_t token, int32_t num_top);

 private:
  using Candidate = TokenValue;

  bool modifies(const SamplerState& state) const;
  bool uses_top_k(const DrawRow& p) const { return p.top_k > 0 && p.top_k < vocab_size_; }
  void apply_penalties(const SamplerState& state);
  bool apply_masks(SamplerState& state);
  int32_t argmax(std::span<const float> row) const;
  int32_t draw(std::span<const float> row, const DrawRow& settings);
  // But for lists of tokens and the row of logits.
  DrawRow settings_of(const SamplerState& state, int64_t ahead) const;
  // Makes tokens impossible unless nothing else is left; brings maxima_ up to date with work_. False: nothing is left.
  bool ban(std::span<const int32_t> tokens);
  void append_draw(const SamplerState& state, int64_t ahead, DrawBatch& batch) const;
  // What min_tokens forbids.
  void append_ends(const SamplingParams& params, std::vector<int32_t>& tokens) const;
  int32_t draw_from_blocks(double target) const;
  int32_t draw_from_candidates(double uniform);
  static double next_uniform(const SamplerState& state, int64_t ahead = 0);
  // candidates_ = what top-k, top-p and min-p leave; total = sum of probs_. False: see restrict_flat().
  bool restrict_candidates(const DrawRow& settings, double total);
  // top-p and min-p for rows with very many likely tokens: zeroes the others in probs_ and renews sums_.
  void restrict_flat(const DrawRow& settings, double total);
  void keep_top(size_t count, std::span<const float> values);
  // top-k from the logits: only the candidates' weights are computed, not the row's. False: the row needs the long way.
  bool keep_top_logits(std::span<const float> row, const DrawRow& settings);
  // A value that at least `count` tokens reach.
  float nth_block_maximum(size_t count);
  void keep_best(size_t count);
  // top-p and min-p of what top-k left.
  void narrow_top(const DrawRow& settings);
  void drop_below(float min_p);
  void keep_mass(double mass);
  struct Bin {
    float floor, ceiling;  // its values are in [floor, ceiling)
    double mass_above;     // of the values from ceiling up
  };
  // A narrow bin of probs_ in which the tokens, best first, reach `count` or `mass`.
  Bin find_bin(size_t count, double mass) const;
  // candidates_ = everything in `values` within [low, high), by id; at most limit + 1 of them.
  void gather(std::span<const float> values, float low, float high, size_t limit);
  TokenLogprobs make_logprobs(std::span<const float> row, int32_t token, int32_t num_top);

  int32_t vocab_size_;
  std::vector<int32_t> eos_token_ids_;
  // Scratch, sized once.
  std::vector<float> work_;          // [vocab] modified logits
  std::vector<float> probs_;         // [vocab] relative to the best token
  std::vector<float> maxima_;        // [blocks] of the values being looked at
  std::vector<float> order_;         // [blocks]
  std::vector<double> sums_;         // [blocks] of probs_
  std::vector<Candidate> buffer_;    // [vocab + 1]
  std::span<Candidate> candidates_;  // the front of buffer_
  std::vector<uint32_t> allowed_;    // [(vocab + 31) / 32]
  std::vector<int32_t> banned_;
};

}  // namespace bam
