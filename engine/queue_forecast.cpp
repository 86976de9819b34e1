#include "engine/queue_forecast.h"

#include <algorithm>
#include <cmath>

namespace bam {

namespace {

constexpr double kHorizonMs = 3.6e6;
constexpr int kMaxRounds = 20000;

// The length of a text that ends with the same chance at every token, whatever it has got so far. Texts are spread
// evenly over the possible lengths, the same way each time: of many, one ends soon.
double likely_tokens(double mean, uint64_t arrival, int32_t choice) {
  constexpr double kGolden = 0.6180339887498949;
  const double x = static_cast<double>(arrival % 1'000'000) + 0.5 + 0.37 * choice;
  return -std::log1p(-std::fmod(x * kGolden, 1.0)) * mean;
}

struct Sim {
  const ForecastSequence* sequence = nullptr;
  double prefill_ms = 0;   // 0: it decodes
  double row_ms = 0;       // of its prefill
  double tokens_left = 0;  // to generate
  double context = 0;      // keys of its next row
  int32_t choice = 0;
};

double waits_until(const ForecastSequence& s) { return std::min(s.leaves_ms, s.gives_up_ms); }

class Simulation {
 public:
  Simulation(const QueueForecast& forecast, std::span<const ForecastSequence> late)
      : f_(forecast), pages_free_(forecast.pages_free) {
    for (const ForecastSequence& s : f_.running) running_.push_back(start(s, 0));
    for (const ForecastSequence& s : f_.waiting) waiting_.push_back(&s);
    for (const ForecastSequence& s : late) waiting_.push_back(&s);
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const auto* a, const auto* b) { return served_before(*a, *b); });
    for (const auto* s : waiting_) queued_ += s->queued ? 1 : 0;
  }

  double run(QueueForecast::Goal goal) {
    for (int round = 0; round < kMaxRounds && now_ms_ < kHorizonMs; ++round) {
      expire();
      admit();
      if (queued_ == 0 || (left_requests_ >= goal.requests && left_tokens_ >= goal.tokens)) return now_ms_;
      if (running_.empty()) return now_ms_;  // whatever waits fits an empty cache
      advance();
    }
    return now_ms_;
  }

 private:
  Sim start(const ForecastSequence& s, int32_t choice) const {
    Sim sim{.sequence = &s, .choice = choice};
    sim.context = static_cast<double>(s.num_computed);
    if (s.num_uncomputed > 1) {
      sim.prefill_ms = std::max(1e-6, f_.cost.rows_ms(s.num_computed, s.num_uncomputed));
      sim.row_ms = sim.prefill_ms / static_cast<double>(s.num_uncomputed);
    }
    const double limit = static_cast<double>(s.limit), certain = static_cast<double>(s.certain);
    const double usual = certain + likely_tokens(f_.mean_tokens, s.arrival, choice);
    sim.tokens_left = std::max(1.0, std::ceil(std::min(limit, usual)));
    return sim;
  }

  void leave_queue(const ForecastSequence& s) {
    if (!s.queued) return;
    --queued_;
    ++left_requests_;
    left_tokens_ += s.num_prompt;
  }

  // Those whose time is over.
  void expire() {
    std::erase_if(waiting_, [&](const ForecastSequence* s) {
      if (waits_until(*s) > now_ms_) return false;
      leave_queue(*s);
      return true;
    });
    std::erase_if(running_, [&](const Sim& sim) {
      if (sim.sequence->leaves_ms > now_ms_) return false;
      if (sim.choice == 0) pages_free_ += sim.sequence->pages;
      return true;
    });
  }

  void admit() {
    int blocked = 0;
    for (size_t i = 0; i < waiting_.size() && blocked <= Scheduler::kMaxBlocked;) {
      if (static_cast<int64_t>(running_.size()) >= f_.limits.max_num_seqs) return;
      const ForecastSequence& s = *waiting_[i];
      if (s.pages > pages_free_ && !running_.empty()) {
        ++blocked;
        ++i;
        continue;
      }
      pages_free_ -= s.pages;
      leave_queue(s);
      running_.push_back(start(s, 0));
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // As many steps as pass before anything changes, at least one.
  void advance() {
    StepLoad decode;
    double growth = 0;  // keys that each further step adds to the decode rows
    double steps = 1e9;
    const ForecastSequence* best = nullptr;  // of the class whose prompts are read now
    for (const Sim& s : running_) {
      if (s.prefill_ms == 0) {
        decode.add(static_cast<int64_t>(s.context), 1);
        growth += 1;
        steps = std::min(steps, s.tokens_left);
      } else if (!best || served_before(*s.sequence, *best)) {
        best = s.sequence;
      }
    }
    double share_ms = 0;  // of each prompt per step
    if (best) {
      double prefills = 0, row_ms = 0, shortest = 1e18;
      for (const Sim& s : running_) {
        if (s.prefill_ms == 0 || !same_class(*s.sequence, *best)) continue;
        ++prefills;
        row_ms += s.row_ms;
        shortest = std::min(shortest, s.prefill_ms);
      }
      const double rows_left = std::max<double>(1, static_cast<double>(f_.limits.max_batched_tokens - decode.rows));
      const double budget =
          std::min(prefill_budget_ms(f_.limits, f_.cost, decode, decode.rows > 0), rows_left * row_ms / prefills);
      share_ms = std::max(budget, 1e-3) / prefills;
      steps = std::min(steps, shortest / share_ms);
    }
    const double step_ms = f_.pace * std::max(f_.cost.predict_ms(decode), f_.cost.step_overhead_ms());
    double next_leave = kHorizonMs;
    for (const Sim& s : running_) next_leave = std::min(next_leave, s.sequence->leaves_ms);
    for (const ForecastSequence* s : waiting_) next_leave = std::min(next_leave, waits_until(*s));
    steps = std::min(steps, (next_leave - now_ms_) / std::max(step_ms, 1e-3));
    steps = std::max(1.0, std::floor(steps));
    StepLoad grown = decode;  // at the middle of the stretch
    grown.row_keys += 0.5 * growth * (steps - 1);
    now_ms_ += steps * f_.pace * std::max(f_.cost.predict_ms(grown), f_.cost.step_overhead_ms());
    progress(steps, share_ms, best);
  }

  void progress(double steps, double share_ms, const ForecastSequence* best) {
    std::vector<Sim> forks;
    std::erase_if(running_, [&](Sim& s) {
      if (s.prefill_ms == 0) {
        s.tokens_left -= steps;
        s.context += steps;
      } else if (same_class(*s.sequence, *best)) {
        const double done = std::min(s.prefill_ms, steps * share_ms);
        now_ms_ += f_.pace * done;
        s.prefill_ms -= done;
        if (s.prefill_ms > 1e-9) return false;
        s.prefill_ms = 0;
        s.context = static_cast<double>(s.sequence->num_computed + s.sequence->num_uncomputed);
        s.tokens_left -= 1;  // sampled where the prompt ends
        for (int32_t c = 1; c < s.sequence->choices; ++c) {
          Sim fork = start(*s.sequence, c);
          fork.prefill_ms = 0;
          fork.context = s.context;
          fork.tokens_left -= 1;
          if (fork.tokens_left > 0) forks.push_back(fork);
        }
      } else {
        return false;
      }
      if (s.tokens_left > 0) return false;
      if (s.choice == 0) pages_free_ += s.sequence->pages;
      return true;
    });
    running_.insert(running_.end(), forks.begin(), forks.end());
  }

  const QueueForecast& f_;
  std::vector<Sim> running_;
  std::vector<const ForecastSequence*> waiting_;
  int64_t pages_free_;
  double now_ms_ = 0;
  int64_t queued_ = 0;
  int64_t left_requests_ = 0, left_tokens_ = 0;
};

}  // namespace

ForecastSequence forecast_of(const Request& request, int64_t max_len, int64_t generated) {
  const SamplingParams& sampling = request.sampling;
  ForecastSequence f;
  f.num_prompt = static_cast<int64_t>(request.prompt.size());
  f.num_uncomputed = f.num_prompt;
  f.limit = max_len - f.num_prompt - generated;
  f.choices = request.n;
  f.priority = request.priority;
  f.queued = true;
  const bool endless = sampling.ignore_eos && sampling.stop_token_ids.empty() && !request.constraint;
  f.certain = endless ? f.limit : std::clamp<int64_t>(sampling.min_tokens - generated, 0, f.limit);
  return f;
}

double QueueForecast::ms_until(Goal goal, std::span<const ForecastSequence> late) const {
  return Simulation(*this, late).run(goal);
}

double QueueForecast::step_ms() const {
  StepLoad decode;
  double prefill_ms = 0;
  for (const ForecastSequence& s : running) {
    if (s.num_uncomputed > 1) {
      prefill_ms += cost.rows_ms(s.num_computed, std::min(s.num_uncomputed, limits.max_batched_tokens));
    } else {
      decode.add(s.num_computed, 1);
    }
  }
  return std::max(cost.predict_ms(decode), cost.step_overhead_ms()) +
         std::min(prefill_ms, std::max(0.0, prefill_budget_ms(limits, cost, decode, decode.rows > 0)));
}

}  // namespace bam
