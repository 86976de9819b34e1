// Thousands of random schedules without a model: arrivals, cancels, failures, forks, priorities, shared prefixes,
// finite reaches, tiny pools, prompts of up to 500K tokens, drafts, one to four stages with several steps on their way,
// ranks that are lost. Physical pages are simulated by what was written to them,
// so a page that is freed too early, owned twice or hit by mistake is noticed when it is read.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "engine/scheduler.h"

namespace bam {
namespace {

uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

// What a page holds: `filled` keys of one block of one group, of a text whose tokens up to there hash to `text`.
struct PageContent {
  int group = -1;
  int64_t block = -1, filled = 0;
  uint64_t text = 0;
  bool operator==(const PageContent&) const = default;
};

struct Settings {
  uint64_t seed = 0;
  int64_t max_prompt = 600;
  int num_requests = 20;
  int max_sequences = 8;
  bool check_everything = true;  // O(pages) checks after every step
  int stages = 1;
};

struct SimSequence : Sequence {
  std::vector<uint64_t> text = {0};  // [known + 1] hash of the first i tokens
  int32_t forks_left = 0;
  int64_t cancel_at_step = -1, fail_at_step = -1;
  int64_t pause_at_step = -1, resume_at_step = -1;
  int64_t first_own_block = 0;
  bool started = false;
  std::unique_ptr<NgramIndex> ngrams;  // of the prompt, for the drafter

  void may_draft() {
    const DraftParams params{.tokens = 8, .ngram = 1};
    ngrams = std::make_unique<NgramIndex>(params.ngram, num_prompt);
    drafter.emplace(params, *ngrams, std::vector<int32_t>{}, max_len - num_prompt);
  }

  void push(int32_t token) {
    tokens.push_back(token);
    text.push_back(mix(text.back(), static_cast<uint64_t>(token) + 1));
  }
};

class Simulation {
 public:
  explicit Simulation(const Settings& settings) : settings_(settings), rng_(settings.seed) {
    const int page = pick(4) == 0 ? 128 : 64;
    depth_ = settings.stages == 1 ? 1 : static_cast<size_t>(1 + pick(2 * settings.stages));
    limits_.max_num_seqs = 1 + pick(settings.max_sequences);
    limits_.max_batched_tokens = std::max<int64_t>(limits_.max_num_seqs, int64_t{1} << (4 + pick(8)));
    limits_.max_logit_rows = limits_.max_num_seqs + pick(64);
    limits_.step_target_ms = 1 + pick(60);
    drafts_ = pick(2) == 0;
    max_len_ = settings.max_prompt + 60;
    for (int stage = 0; stage < settings.stages; ++stage) {
      std::vector<int64_t> reach;
      for (int g = 0, n = 1 + pick(3); g < n; ++g) reach.push_back(pick(2) ? -1 : pick(500));
      const KvGeometry geometry(page, reach, limits_.max_batched_tokens);
      const int64_t alone = geometry.pages_for(max_len_);
      const int64_t pages = alone + pick(static_cast<int>(std::min<int64_t>(2 * alone, 1 << 20)) + 1) * pick(2);
      sizes_.push_back({geometry, pages});
      content_.emplace_back(static_cast<size_t>(pages));
    }
    kv_ = std::make_unique<StagedKv>(sizes_, pick(4) != 0, 1);
    scheduler_ = std::make_unique<Scheduler>(limits_, *kv_, cost_);
  }

  void run() {
    int created = 0;
    int64_t idle = 0;
    while (created < settings_.num_requests || !live_.empty()) {
      while (created < settings_.num_requests && (live_.empty() || pick(3) == 0)) add_request(created++);
      step();
      idle = rows_in_step_ == 0 && flights_.empty() && scheduler_->has_work() ? idle + 1 : 0;
      ASSERT_LT(idle, 2) << "work is left but nothing was computed";
      ASSERT_LT(steps_, 400'000) << "some request never ends";
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (int stage = 0; stage < kv_->num_stages(); ++stage) EXPECT_EQ(kv_->stage(stage).pool().num_used(), 0);
    EXPECT_EQ(kv_->check_integrity(), "");
    EXPECT_EQ(ended_, created_sequences_);
  }

  int64_t preemptions() const { return preemptions_; }
  uint64_t evictions() const { return kv_->num_evicted(); }
  int64_t hits() const { return hits_; }
  int64_t guesses() const { return guesses_; }
  int64_t right_guesses() const { return right_guesses_; }

 private:
  // The rows of one step between its plan and its result.
  struct Flight {
    std::vector<ScheduledRows> rows;
    std::vector<uint64_t> stays;
    std::vector<std::vector<int32_t>> guesses;  // [rows] the last of them
  };
  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }

  void add_request(int index) {
    auto owned = std::make_unique<SimSequence>();
    SimSequence& s = *owned;
    s.arrival = static_cast<uint64_t>(index) + 1;
    s.priority = pick(5) == 0 ? pick(3) - 1 : 0;
    // One of a few documents, cut somewhere, then something of its own.
    const int64_t length = pick(6) == 0 ? 1 + pick(static_cast<int>(settings_.max_prompt))
                                        : 1 + pick(static_cast<int>(std::min<int64_t>(settings_.max_prompt, 400)));
    const int64_t shared = pick(3) == 0 ? 0 : pick(static_cast<int>(length));
    const int document = pick(3);
    for (int64_t i = 0; i < length; ++i) {
      s.push(i < shared ? static_cast<int32_t>(mix(static_cast<uint64_t>(document), static_cast<uint64_t>(i)) % 1000)
                        : static_cast<int32_t>(rng_() % 1000));
    }
    s.num_prompt = length;
    s.max_len = length + 1 + pick(59);
    if (pick(4) == 0) s.blocks.salt = "salt";
    if (pick(6) == 0) s.forks_left = 1 + pick(3);
    if (pick(5) == 0) s.cancel_at_step = steps_ + pick(30);
    if (pick(12) == 0) s.fail_at_step = steps_ + pick(30);
    if (pick(8) == 0) s.logits_from = 0;
    if (pick(3) == 0) s.pause_at_step = steps_ + pick(40);
    if (drafts_) s.may_draft();
    scheduler_->add(s);
    live_.push_back(std::move(owned));
    ++created_sequences_;
  }

  void step() {
    ++steps_;
    // Clients that give up, requests that break.
    std::vector<SimSequence*> all;
    for (auto& s : live_) all.push_back(s.get());
    for (SimSequence* s : all) {
      if (s->cancel_at_step == steps_)
        end(*s, false);
      else if (s->fail_at_step == steps_)
        end(*s, true);
      else if (s->pause_at_step == steps_) {
        scheduler_->pause(*s);
        s->resume_at_step = steps_ + 1 + pick(60);
        if (pick(2)) s->pause_at_step = s->resume_at_step + pick(20);
      } else if (s->resume_at_step == steps_) {
        scheduler_->resume(*s);
      }
    }
    if (kv_->num_stages() > 1 && losses_left_ > 0 && pick(200) == 0) lose_group();
    propose_drafts();
    const SchedulePlan& plan = scheduler_->schedule(Clock::time_point(std::chrono::milliseconds(20 * steps_)));
    for (int stage = 0; stage < kv_->num_stages(); ++stage) {
      auto& copies = kv_->stage(stage).pending_copies();
      for (const PageCopy& copy : copies) at(stage, copy.to) = at(stage, copy.from);
      copies.clear();
    }
    preemptions_ += static_cast<int64_t>(plan.preempted.size());
    for (Sequence* s : plan.admitted) note_admitted(*static_cast<SimSequence*>(s));
    check_plan(plan);
    rows_in_step_ = plan.load.rows;
    // Every stage works in the order of plans: what is issued now is written before what is issued later.
    Flight flight{plan.rows, {}, {}};
    for (const ScheduledRows& r : plan.rows) {
      auto& s = *static_cast<SimSequence*>(r.sequence);
      flight.stays.push_back(s.blocks.id);
      flight.guesses.emplace_back();
      if (r.num_drafts > 0) {
        const auto proposal = s.drafter->proposal().first(static_cast<size_t>(r.num_drafts));
        flight.guesses.back().assign(proposal.begin(), proposal.end());
      }
      for (int stage = 0; stage < kv_->num_stages(); ++stage)
        write(stage, s, r.start, flight.guesses.back(), r.num_rows);
    }
    if (!plan.empty()) flights_.push_back(std::move(flight));
    while (!flights_.empty() && (flights_.size() >= depth_ || plan.empty() || pick(4) == 0)) {
      finish(flights_.front());
      flights_.pop_front();
      if (plan.empty()) break;
    }
    if (settings_.check_everything || steps_ % 64 == 0) check_books();
  }

  // As the engine does before it makes a plan.
  void propose_drafts() {
    for (Sequence* s : scheduler_->running()) {
      if (!s->drafter) continue;
      s->drafter->index(s->tokens, s->num_prompt, 4096);
      if (s->num_unscheduled() != 1 || s->num_uncomputed() != 1 || s->num_generated() == 0) continue;
      s->drafter->propose(s->tokens, s->max_len - s->num_known() - 1);
    }
  }

  // Every page is gone, and so is what was on its way.
  void lose_group() {
    --losses_left_;  // a long prompt must get through at last
    flights_.clear();
    scheduler_->give_back_all();
    kv_->reset(sizes_);
    for (auto& content : content_) content.assign(content.size(), {});
  }

  void note_admitted(SimSequence& s) {
    if (!s.started) s.first_own_block = s.num_computed / kv_->page_size();
    s.started = true;
    hits_ += s.num_computed > 0;
    ASSERT_LT(s.num_computed, s.num_known());
    ASSERT_LE(s.num_computed, s.logits_from);
  }

  void check_plan(const SchedulePlan& plan) {
    ASSERT_LE(plan.load.rows, limits_.max_batched_tokens);
    ASSERT_LE(static_cast<int64_t>(scheduler_->running().size()), limits_.max_num_seqs);
    int64_t logit_rows = 0;
    for (const ScheduledRows& r : plan.rows) {
      ASSERT_EQ(r.sequence->queue, Sequence::Queue::kRunning);
      ASSERT_GT(r.num_rows, 0);
      const int64_t known = r.num_rows - r.num_drafts;
      ASSERT_GT(known, 0);
      ASSERT_LE(r.start + known, r.sequence->num_known());
      ASSERT_EQ(r.start + known, r.sequence->num_scheduled);
      if (r.num_drafts > 0) {
        ASSERT_EQ(r.start + 1, r.sequence->num_known());
        ASSERT_LE(r.num_drafts, static_cast<int64_t>(r.sequence->drafter->proposal().size()));
        ASSERT_LT(r.start + r.num_rows, r.sequence->max_len);
      }
      logit_rows += r.sequence->wants_prompt_logits() ? r.num_rows : 1 + r.num_drafts;
    }
    ASSERT_LE(logit_rows, limits_.max_logit_rows);
    for (const Sequence* s : scheduler_->waiting()) {
      ASSERT_EQ(s->blocks.num_pages(), 0) << "a waiting sequence holds pages";
      ASSERT_LE(s->overtaken, Scheduler::kMaxOvertakes);
    }
  }

  PageContent& at(int stage, int32_t page) { return content_[static_cast<size_t>(stage)][static_cast<size_t>(page)]; }
  int32_t entry(int stage, const Sequence& s, int g, int64_t block) {
    const BlockTable& table = s.blocks.stages[static_cast<size_t>(stage)];
    return table.entries[static_cast<size_t>(g * table.stride + block)];
  }

  // The last of the rows are guesses: what they leave is what the text would be if they were right.
  void write(int stage, SimSequence& s, int64_t begin, const std::vector<int32_t>& guesses, int64_t rows) {
    std::vector<uint64_t> ahead{s.text.back()};
    for (const int32_t guess : guesses) ahead.push_back(mix(ahead.back(), static_cast<uint64_t>(guess) + 1));
    const auto text_at = [&](int64_t position) {
      return position <= s.num_known() ? s.text[static_cast<size_t>(position)]
                                       : ahead[static_cast<size_t>(position - s.num_known())];
    };
    const KvGeometry& geometry = kv_->stage(stage).geometry();
    const BlockPool& pool = kv_->stage(stage).pool();
    const int64_t page = geometry.page_size(), end = begin + rows;
    for (int g = 0; g < geometry.num_groups(); ++g) {
      // Everything the queries can reach must be what this sequence once wrote or would have written.
      const int64_t first = geometry.first_needed_block(g, begin), full = begin / page;
      const int64_t stride = settings_.check_everything ? 1 : std::max<int64_t>(1, (full - first) / 16);
      for (int64_t b = first; b < full; b += stride) {
        const int32_t p = entry(stage, s, g, b);
        ASSERT_NE(p, kNoPage) << "group " << g << " block " << b << " at " << begin;
        ASSERT_EQ(at(stage, p), (PageContent{g, b, page, s.text[static_cast<size_t>((b + 1) * page)]}));
      }
      for (int64_t b = full; b * page < end; ++b) {
        const int32_t p = entry(stage, s, g, b);
        ASSERT_NE(p, kNoPage);
        ASSERT_EQ(pool.ref_count(p), 1) << "writing to a shared page";
        ASSERT_LT(pool.owner(p).node, 0) << "writing to a published page";
        if (b * page < begin) {
          ASSERT_EQ(at(stage, p), (PageContent{g, b, begin - b * page, s.text[static_cast<size_t>(begin)]}));
        }
        const int64_t last = std::min(end, (b + 1) * page);
        at(stage, p) = {g, b, last - b * page, text_at(last)};
      }
    }
  }

  // What wrong guesses wrote lies beyond num_computed, where nobody looks.
  void forget_guesses(const SimSequence& s) {
    const int64_t end = s.num_computed, block = end / kv_->page_size(), filled = end % kv_->page_size();
    for (int stage = 0; stage < kv_->num_stages() && filled > 0; ++stage) {
      for (int g = 0; g < kv_->stage(stage).geometry().num_groups(); ++g) {
        PageContent& content = at(stage, entry(stage, s, g, block));
        ASSERT_GE(content.filled, filled);
        content = {g, block, filled, s.text[static_cast<size_t>(end)]};
      }
    }
  }

  void finish(const Flight& flight) {
    for (size_t i = 0; i < flight.rows.size(); ++i) {
      if (!kv_->is_live(flight.stays[i])) continue;
      SimSequence& s = *static_cast<SimSequence*>(flight.rows[i].sequence);
      ASSERT_EQ(s.num_computed, flight.rows[i].start);
      compute_done(s, flight.rows[i].num_rows - flight.rows[i].num_drafts, flight.guesses[i]);
    }
  }

  // Texts of few different tokens repeat themselves, so that some guesses are right.
  int32_t next_token(const SimSequence& s) { return static_cast<int32_t>(rng_() % (s.drafter ? 3 : 1000)); }

  void compute_done(SimSequence& s, int64_t rows, const std::vector<int32_t>& guesses) {
    s.num_computed += rows;
    int32_t token = next_token(s);
    if (!guesses.empty()) {
      std::vector<int32_t> sampled{token};
      for (size_t i = 0; i < guesses.size() && token == guesses[i]; ++i) {
        s.push(token);
        ++s.num_computed;
        ++s.num_scheduled;
        sampled.push_back(token = pick(3) ? guesses[std::min(i + 1, guesses.size() - 1)] : next_token(s));
      }
      s.drafter->learn(sampled);
      guesses_ += static_cast<int64_t>(guesses.size());
      right_guesses_ += static_cast<int64_t>(sampled.size()) - 1;
      forget_guesses(s);
    }
    const int64_t end = s.num_computed;
    if (s.wants_prompt_logits()) s.logits_from = end >= s.num_prompt - 1 ? INT64_MAX : std::max(s.logits_from, end);
    kv_->commit(s.blocks, s.tokens, end);
    if (s.num_uncomputed() > 0) return;
    for (; s.forks_left > 0 && s.num_known() == s.num_prompt; --s.forks_left) fork(s);
    s.push(token);
    if (s.num_known() >= s.max_len) end_sequence(s);
  }

  void fork(SimSequence& s) {
    auto owned = std::make_unique<SimSequence>();
    SimSequence& child = *owned;
    child.arrival = s.arrival;
    child.choice = s.forks_left;
    child.priority = s.priority;
    child.promoted = s.promoted;
    child.tokens = s.tokens;
    child.text = s.text;
    child.num_prompt = s.num_prompt;
    child.num_computed = child.num_scheduled = s.num_computed;
    child.max_len = s.max_len;
    child.started = true;
    child.first_own_block = s.first_own_block;
    kv_->fork(s.blocks, child.blocks);
    scheduler_->add_running(child);
    if (drafts_) child.may_draft();
    child.push(next_token(child));
    live_.push_back(std::move(owned));
    ++created_sequences_;
    if (child.num_known() >= child.max_len) end_sequence(child);
  }

  void end(SimSequence& s, bool failed) {
    if (failed) kv_->quarantine(s.blocks, s.tokens, s.first_own_block);
    end_sequence(s);
  }

  void end_sequence(SimSequence& s) {
    const auto used = [&] {
      int64_t pages = 0;
      for (int stage = 0; stage < kv_->num_stages(); ++stage) pages += kv_->stage(stage).pool().num_used();
      return pages;
    };
    const int64_t before = used(), held = s.blocks.num_pages();
    scheduler_->remove(s);
    EXPECT_EQ(s.blocks.num_pages(), 0);
    EXPECT_LE(before - used(), held);
    ++ended_;
    std::erase_if(live_, [&](const auto& p) { return p.get() == &s; });
  }

  void check_books() {
    ASSERT_EQ(kv_->check_integrity(), "");
    for (int stage = 0; stage < kv_->num_stages(); ++stage) check_stage(stage);
  }

  void check_stage(int stage) {
    const KvGeometry& geometry = kv_->stage(stage).geometry();
    const BlockPool& pool = kv_->stage(stage).pool();
    std::map<int32_t, int32_t> references;
    for (const auto& s : live_) {
      if (s->blocks.stages.empty()) continue;
      int64_t pages = 0;
      for (int g = 0; g < geometry.num_groups(); ++g) {
        for (int64_t b = 0; b < s->blocks.stages[static_cast<size_t>(stage)].num_blocks; ++b) {
          const int32_t p = entry(stage, *s, g, b);
          if (p == kNoPage) continue;
          ++references[p];
          ++pages;
        }
      }
      ASSERT_EQ(pages, s->blocks.num_pages(stage));
      // Rows on their way hold pages beyond it until they are computed.
      if (depth_ == 1) {
        ASSERT_LE(pages, geometry.pages_for(s->max_len));
      }
    }
    ASSERT_EQ(static_cast<int64_t>(references.size()), pool.num_used());
    for (const auto& [page, count] : references) ASSERT_EQ(pool.ref_count(page), count) << "page " << page;
  }

  Settings settings_;
  std::mt19937_64 rng_;
  SchedulerLimits limits_;
  CostModel cost_{20};
  int64_t max_len_ = 0;
  std::vector<StagedKv::Stage> sizes_;
  std::unique_ptr<StagedKv> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::vector<PageContent>> content_;  // [stages][pages]
  size_t depth_ = 1;                               // steps on their way at once
  bool drafts_ = false;
  std::deque<Flight> flights_;
  int losses_left_ = 3;
  std::vector<std::unique_ptr<SimSequence>> live_;
  int64_t steps_ = 0, rows_in_step_ = 0, preemptions_ = 0, hits_ = 0, ended_ = 0, created_sequences_ = 0;
  int64_t guesses_ = 0, right_guesses_ = 0;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSchedules = 200;
#else
constexpr int kSchedules = 3000;
#endif

TEST(ScheduleFuzz, ThousandsOfRandomSchedulesKeepEveryPromise) {
  int64_t preemptions = 0, hits = 0, guesses[2] = {}, right_guesses[2] = {};  // with one stage and with several
  uint64_t evictions = 0;
  for (int i = 0; i < kSchedules; ++i) {
    SCOPED_TRACE("schedule " + std::to_string(i));
    Simulation simulation({.seed = static_cast<uint64_t>(i),
                           .max_prompt = 200 + 100 * (i % 8),
                           .num_requests = 4 + i % 20,
                           .stages = i % 2 == 0 ? 1 : 2 + i / 2 % 3});
    simulation.run();
    if (HasFailure()) return;
    preemptions += simulation.preemptions();
    hits += simulation.hits();
    guesses[i % 2] += simulation.guesses();
    right_guesses[i % 2] += simulation.right_guesses();
    evictions += simulation.evictions();
  }
  // The schedules do exercise what they are meant to.
  EXPECT_GT(preemptions, kSchedules / 2);
  EXPECT_GT(hits, kSchedules);
  for (const int several : {0, 1}) {
    EXPECT_GT(right_guesses[several], kSchedules);
    EXPECT_GT(guesses[several], right_guesses[several] + kSchedules);
  }
  EXPECT_GT(evictions, static_cast<uint64_t>(kSchedules));
}

TEST(ScheduleFuzz, LongPromptsBesideShortOnes) {
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE("schedule " + std::to_string(i));
    Simulation simulation({.seed = 1000 + static_cast<uint64_t>(i),
                           .max_prompt = i % 4 == 0 ? 500'000 : 30'000,
                           .num_requests = 16,
                           .max_sequences = 16,
                           .check_everything = false,
                           .stages = 1 + i % 3});
    simulation.run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace bam
