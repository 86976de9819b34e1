// Guesses from the text itself: where they come from, how many are computed, and that a page never shows that there were
// any. That tokens stay the same is in invariance_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>

#include "base/check.h"
#include "engine/drafter.h"
#include "engine/engine_core.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/manual_time.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::make_request;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

using Tokens = std::vector<int32_t>;

int64_t find_last(const Tokens& text, int n) {
  NgramIndex index(n, 100);
  index.extend(text, 0, INT64_MAX, 1'000'000);
  return index.find(text);
}

TEST(NgramIndex, FindsTheNewestPlace) {
  EXPECT_EQ(find_last({1, 2, 3, 9, 1, 2, 3}, 3), 3);
  EXPECT_EQ(find_last({1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3}, 3), 7);
  EXPECT_EQ(find_last({1, 2, 3, 9, 4, 2, 3}, 3), -1);
  EXPECT_EQ(find_last({1, 2, 3, 9, 4, 2, 3}, 2), 3);
  EXPECT_EQ(find_last({7, 7, 7, 7}, 3), 3);  // the one before the last token, which has nothing behind it
  EXPECT_EQ(find_last({7, 7, 7}, 3), -1);
  EXPECT_EQ(find_last({7}, 3), -1);
  EXPECT_EQ(find_last({}, 1), -1);
}

TEST(NgramIndex, GrowsWithTheTextAndInPieces) {
  std::mt19937 rng(3);
  Tokens text(5000);
  for (int32_t& t : text) t = static_cast<int32_t>(rng() % 8);
  NgramIndex whole(4, 5000), pieces(4, 5000);
  EXPECT_EQ(whole.extend(text, 0, INT64_MAX, 10'000), 4996);
  int64_t added = 0;
  for (size_t size = 0; size <= text.size(); size += 13) {
    added += pieces.extend(std::span(text).first(size), 0, INT64_MAX, 7);
    EXPECT_LE(added, static_cast<int64_t>(size));
  }
  while (const int64_t more = pieces.extend(text, 0, INT64_MAX, 7)) added += more;
  EXPECT_EQ(added, 4996);
  for (int i = 0; i < 1000; ++i) {
    Tokens end(text.begin(), text.begin() + 4 + i);
    EXPECT_EQ(whole.find(end), pieces.find(end));
  }
}

TEST(NgramIndex, MemoryIsBoundedAndWhatIsFoundIsTrue) {
  std::mt19937 rng(4);
  Tokens text(3'000'000);
  for (int32_t& t : text) t = static_cast<int32_t>(rng() % 32'000);
  NgramIndex index(2, static_cast<int64_t>(text.size()));
  EXPECT_EQ(index.bytes(), size_t{4} << 20);
  index.extend(text, 0, INT64_MAX, INT64_MAX / 2);
  int found = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t at = text.size() - 100'000 + rng() % 90'000;
    text.push_back(text[at]), text.push_back(text[at + 1]);
    const int64_t place = index.find(text);
    if (place < 0) continue;
    ++found;
    EXPECT_EQ(text[static_cast<size_t>(place) - 1], text.back());
    EXPECT_EQ(text[static_cast<size_t>(place) - 2], text[text.size() - 2]);
  }
  EXPECT_GT(found, 850);  // newer n-grams overwrite older ones, so these are nearly all there
  EXPECT_LT(NgramIndex(3, 20).bytes(), 1024u);
}

class DrafterTest : public ::testing::Test {
 protected:
  Tokens propose(const Tokens& text, int64_t room = 100) {
    drafter_.index(text, std::ssize(text), 1'000'000);
    drafter_.propose(text, room);
    return {drafter_.proposal().begin(), drafter_.proposal().end()};
  }
  NgramIndex prompt_{3, 1000};
  Drafter drafter_{{.tokens = 4, .ngram = 3}, prompt_, {2}, 100};
};

TEST_F(DrafterTest, CopiesWhatFollowed) {
  EXPECT_EQ(propose({10, 11, 12, 13, 14, 15, 16, 17, 10, 11, 12}), (Tokens{13, 14, 15, 16}));
  EXPECT_EQ(propose({10, 11, 12, 13, 14, 15, 16, 17, 10, 11, 12}, 2), (Tokens{13, 14}));
}
TEST_F(DrafterTest, GoesOnInItself) { EXPECT_EQ(propose({1, 5, 6, 7, 5, 6, 7}), (Tokens{5, 6, 7, 5})); }
TEST_F(DrafterTest, NeverGuessesAnEnd) {
  EXPECT_EQ(propose({10, 11, 12, 13, 2, 15, 10, 11, 12}), (Tokens{13}));
  EXPECT_EQ(propose({10, 11, 12, 13, 14, 15, 10, 11, 12}, 0), Tokens{});
}
TEST_F(DrafterTest, FollowsItsSourceWhileItIsRight) {
  // "10 11 12" stood in two places; what was guessed right once goes on there, although the other place is newer.
  Tokens text = {9, 10, 11, 12, 50, 51, 52, 53, 54, 55, 56, 57, 58, 8, 11, 12, 50, 60, 9, 10, 11, 12, 50};
  drafter_.index(text, std::ssize(text), 1000);
  drafter_.propose(text, 100);
  EXPECT_EQ(drafter_.proposal()[0], 60);  // after the newer "11 12 50"
  drafter_.learn(Tokens{51});             // wrong, so it looks again
  text.push_back(51);
  EXPECT_EQ(propose(text), (Tokens{52, 53, 54, 55}));
  drafter_.learn(Tokens{52, 53, 54, 55, 56});  // all four and the one behind them
  for (const int32_t t : {52, 53, 54, 55, 56}) text.push_back(t);
  EXPECT_EQ(propose(text), (Tokens{57, 58, 8, 11}));
}
TEST_F(DrafterTest, LearnsFromWhatWasNotComputed) {
  Tokens text = {10, 11, 12, 13, 10, 11, 12};
  double before = drafter_.chance();
  for (int i = 0; i < 20; ++i) {
    propose(text);
    drafter_.learn(Tokens{99});  // one token, nothing verified, but the guess was wrong
    EXPECT_LT(drafter_.chance(), before);
    before = drafter_.chance();
  }
  EXPECT_LT(before, 0.05);
  for (int i = 0; i < 20; ++i) {
    propose(text);
    text.push_back(text[text.size() - 4]);
    drafter_.learn(Tokens{text.back()});
  }
  EXPECT_GT(drafter_.chance(), 0.9);
}

struct NoObserver final : EngineCore::Observer {
  void before_events() override {}
  void on_done(const std::string&) override {}
};

class Drafts : public ::testing::Test {
 protected:
  Drafts() { testing::write_checkpoint(testing::mixed_reach_spec(), dir_.path()); }

  // A text of three different tokens: full of n-grams that come again, with as many wrong guesses as right ones.
  static Request guessable(int64_t tokens) {
    std::mt19937 rng(1);
    Request r = make_request("r", testing::random_prompt(rng, 90), tokens);
    r.sampling.temperature = 1.0f;
    r.sampling.seed = 5;
    r.sampling.ignore_eos = true;
    for (const int32_t token : {11, 12, 13}) r.sampling.logit_bias.emplace_back(token, 30.0f);
    return r;
  }

  TempDir dir_;
};

// Every published page, byte for byte. A page is published when it is full; its statistics come from what is stored then.
TEST_F(Drafts, LeaveNoTraceInPages) {
  TestModel owner(dir_.path());
  const auto model = owner.load();
  NoObserver observer;
  testing::ManualTime time;  // stands still: how many guesses are made does not depend on the machine
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kI4}) {
    for (const int page_size : {64, 128}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype_name(dtype), page_size));
      std::vector<std::vector<std::byte>> pages[2];
      Tokens tokens[2];
      for (const bool drafts : {false, true}) {
        EngineConfig config = small_config();
        config.kv_dtype = dtype;
        config.page_size = page_size;
        config.drafts = drafts;
        const KvPlan plan = plan_kv(*model, config);
        EngineStats stats;
        EngineCore core(*model, plan, stats, time, observer);
        auto sink = std::make_shared<CollectingSink>();
        Request request = guessable(2500);
        const Tokens prompt = request.prompt;
        core.add(std::move(request), sink, time.now());
        while (!sink->peek().done()) {
          core.step();
          ASSERT_EQ(core.check_integrity(), "");
        }
        EXPECT_EQ(stats.drafts_accepted.load() > 100, drafts) << stats.drafts_accepted.load();
        EXPECT_EQ(stats.drafts_proposed.load() - stats.drafts_accepted.load() > 100, drafts);
        Tokens& text = tokens[drafts];
        text = prompt;
        const Tokens answer = sink->peek().choices[0].tokens;
        text.insert(text.end(), answer.begin(), answer.end());
        KvCache& kv = core.kv().stage(0);
        const std::vector<int32_t> chain = kv.cached_chain("", text);
        EXPECT_EQ(std::ssize(chain), (std::ssize(text) - 1) / page_size);
        for (const int32_t node : chain) {
          for (int g = 0; g < model->num_groups(); ++g) {
            const int32_t page = kv.prefix().page(node, g);
            ASSERT_NE(page, kNoPage);
            auto& bytes = pages[drafts].emplace_back(core.runner().page_bytes());
            core.runner().read_pages(0, std::span(&page, 1), bytes);
          }
        }
      }
      EXPECT_EQ(tokens[0], tokens[1]);
      ASSERT_EQ(pages[0].size(), pages[1].size());
      for (size_t i = 0; i < pages[0].size(); ++i) ASSERT_TRUE(pages[0][i] == pages[1][i]) << "page " << i;
    }
  }
}

TEST_F(Drafts, AreCountedByChoiceAndInAll) {
  TestModel model(dir_.path());
  testing::ManualTime time;
  Engine engine(model.load(), small_config(), 7, time);
  const auto run = [&](DraftParams params) {
    Request r = guessable(400);
    r.n = 2;
    r.draft = params;
    auto sink = std::make_shared<CollectingSink>(2);
    EXPECT_EQ(engine.submit(std::move(r), sink).status, SubmitStatus::kAccepted);
    return sink->wait();
  };
  const auto with = run({});
  int64_t accepted = 0, rejected = 0;
  for (const auto& c : with.choices) {
    EXPECT_GT(c.finish.accepted_drafts, 10);
    EXPECT_LT(c.finish.accepted_drafts, c.finish.generated_tokens);
    EXPECT_EQ(c.finish.accepted_drafts, c.drafted);
    EXPECT_EQ(c.finish.rejected_drafts, c.rejected_drafts);
    accepted += c.finish.accepted_drafts;
    rejected += c.finish.rejected_drafts;
  }
  EXPECT_EQ(engine.stats().drafts_accepted.load(), static_cast<uint64_t>(accepted));
  EXPECT_EQ(engine.stats().drafts_proposed.load(), static_cast<uint64_t>(accepted + rejected));
  const auto without = run({.tokens = 0});
  for (size_t c = 0; c < 2; ++c) {
    EXPECT_EQ(without.choices[c].finish.accepted_drafts + without.choices[c].finish.rejected_drafts, 0);
    EXPECT_EQ(without.choices[c].tokens, with.choices[c].tokens);
  }
  const auto one = run({.tokens = 1, .ngram = 1});  // at most one guess with every token
  for (const auto& c : one.choices) EXPECT_LE(c.finish.accepted_drafts, c.finish.generated_tokens / 2);
}

// A long prompt that comes from the cache is not made findable all at once.
TEST_F(Drafts, ALongPromptIsIndexedInPieces) {
  NgramIndex prompt(3, 500'000);
  Drafter drafter({}, prompt, {}, 100);
  Tokens text(500'000);
  std::iota(text.begin(), text.end(), 0);
  for (const int32_t t : {7, 8, 9}) text.push_back(t);
  int64_t calls = 0;
  while (drafter.index(text, std::ssize(text) - 1, 4096) == 4096) ++calls;
  EXPECT_EQ(calls, 500'000 / 4096);
  drafter.propose(text, 16);
  ASSERT_FALSE(drafter.proposal().empty());
  EXPECT_EQ(drafter.proposal()[0], 10);
}

// The scheduler's part, without a model.
class DraftSchedule : public ::testing::Test {
 protected:
  // Steps take `step` ms, 1 ms for each row, `guess` ms for each row of a draft.
  void start(double step, double guess, SchedulerLimits limits = {}, int64_t pages = 1000) {
    cost_ = std::make_unique<CostModel>(64.0);
    for (int i = 0; i < 600; ++i) {
      StepLoad load;
      load.add(0, 1 + i % 3 * 50);
      load.add_drafts(0, i % 4 * 2);
      cost_->observe(load, step + static_cast<double>(load.rows) + guess * static_cast<double>(load.draft_rows));
    }
    kv_ = std::make_unique<StagedKv>(KvGeometry(64, {-1}, 512), pages, false, 1);
    scheduler_ = std::make_unique<Scheduler>(limits, *kv_, *cost_);
    scheduler_->reserve(100);
  }
  // A sequence that decodes and has ten guesses.
  Sequence& add(double chance, int64_t prompt = 20) {
    sequences_.push_back(std::make_unique<Sequence>());
    Sequence& s = *sequences_.back();
    s.arrival = sequences_.size();
    s.tokens = {10, 11, 12, 13};
    while (std::ssize(s.tokens) < prompt) s.tokens.push_back(s.tokens[s.tokens.size() - 4]);
    s.num_prompt = prompt;
    s.max_len = prompt + 1000;
    s.drafter.emplace(DraftParams{.tokens = 10, .ngram = 3}, ngrams_.emplace_back(3, 1000), Tokens{}, 1000);
    scheduler_->add(s);
    scheduler_->schedule(Clock::now());
    s.num_computed = s.num_scheduled = prompt - 1;
    s.drafter->index(s.tokens, prompt, 1000);
    // Right and wrong guesses, the last one wrong, in a text that goes on as it does until the chance is about that.
    Tokens text = s.tokens;
    const auto guess = [&](bool right) {
      s.drafter->propose(text, 100);
      BAM_CHECK(!s.drafter->proposal().empty());
      text.push_back(right ? s.drafter->proposal()[0] : text[text.size() - 4]);
      s.drafter->learn(Tokens{right ? text.back() : -1});
    };
    guess(false);
    while (s.drafter->chance() * 0.85 < chance) guess(true);
    while (s.drafter->chance() > chance) guess(false);
    s.drafter->propose(s.tokens, 100);
    return s;
  }
  int64_t drafts() {
    const SchedulePlan& plan = scheduler_->schedule(Clock::now());
    int64_t count = 0;
    for (const ScheduledRows& rows : plan.rows) {
      count += rows.num_drafts;
      rows.sequence->num_scheduled = rows.start;  // as if it had not been
    }
    EXPECT_EQ(plan.load.draft_rows, count);
    return count;
  }

  std::deque<NgramIndex> ngrams_;
  std::unique_ptr<CostModel> cost_;
  std::unique_ptr<StagedKv> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(DraftSchedule, CheapRowsAreFilledDearOnesAreNot) {
  start(20, 0.05);
  add(0.8);
  EXPECT_GE(drafts(), 8);
  start(20, 30);
  sequences_.clear();
  add(0.8);
  EXPECT_EQ(drafts(), 0);
}

TEST_F(DraftSchedule, TheChanceDecidesHowMany) {
  start(20, 2);
  add(0.8);
  const int64_t likely = drafts();
  EXPECT_GT(likely, 2);
  start(20, 2);
  sequences_.clear();
  add(0.3);
  const int64_t unlikely = drafts();
  EXPECT_GT(likely, unlikely);
  start(20, 2);
  sequences_.clear();
  add(0.05);
  EXPECT_EQ(drafts(), 0);
}

// A price that went wrong in a bad moment would never be seen again if nobody tried.
TEST_F(DraftSchedule, ADearRowIsTriedNowAndThen) {
  start(20, 30);
  add(0.8);
  int64_t tried = 0;
  for (int step = 0; step < 200; ++step) tried += drafts();
  EXPECT_GE(tried, 5);
  EXPECT_LE(tried, 20);
  start(20, 30);
  sequences_.clear();
  add(0.3);
  for (int step = 0; step < 200; ++step) EXPECT_EQ(drafts(), 0);
}

TEST_F(DraftSchedule, NoneWhenTheBatchIsFull) {
  start(20, 0.05, {.max_num_seqs = 2});
  add(0.8);
  EXPECT_GT(drafts(), 0);
  add(0.8);
  EXPECT_EQ(drafts(), 0);
}

TEST_F(DraftSchedule, TakeNoPageThatSomebodyNeeds) {
  start(20, 0.05, {}, 2);
  EXPECT_EQ(add(0.8, 60).num_preemptions, 0);  // four more tokens fit the page, and the other page is for the fifth
  EXPECT_GT(drafts(), 4);
  start(20, 0.05, {}, 1);
  sequences_.clear();
  Sequence& alone = add(0.8, 60);
  alone.max_len = 64;
  EXPECT_EQ(drafts(), 4);  // up to the end of its only page
  EXPECT_EQ(alone.num_preemptions, 0);
}

TEST_F(DraftSchedule, KeepToTheLimitsOfAStep) {
  start(20, 0.05, {.max_num_seqs = 8, .max_batched_tokens = 512, .max_logit_rows = 8});
  add(0.8);
  add(0.8);
  EXPECT_EQ(drafts(), 6);
  start(20, 0.05, {.max_num_seqs = 5, .max_batched_tokens = 5, .max_logit_rows = 64});
  sequences_.clear();
  add(0.8);
  EXPECT_EQ(drafts(), 4);
}

}  // namespace
}  // namespace bam
