// Masks have a budget per step: who is put off gets the same tokens later, and nobody else waits for them.
#include <gtest/gtest.h>

#include "engine/engine_core.h"
#include "tests/engine/mixed_requests.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::expect_same;
using testing::HashedLanguage;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::small_config;

constexpr uint64_t kMaskWork = 100;

// The same language, each of whose masks has its price; all of them keep one account.
class CostlyLanguage final : public TokenConstraint {
 public:
  CostlyLanguage(int64_t length, uint64_t* account) : length_(length), account_(account), language_(length) {}
  void allowed_tokens(std::span<uint32_t> allowed) override {
    work_ += kMaskWork;
    *account_ += kMaskWork;
    language_.allowed_tokens(allowed);
  }
  void accept(int32_t token) override { language_.accept(token); }
  uint64_t work() const override { return work_; }
  bool mask_known() const override { return false; }
  bool finished() const override { return language_.finished(); }
  std::unique_ptr<TokenConstraint> clone_initial() const override {
    return std::make_unique<CostlyLanguage>(length_, account_);
  }

 private:
  int64_t length_;
  uint64_t* account_;
  HashedLanguage language_;
  uint64_t work_ = 0;
};

struct NoObserver final : EngineCore::Observer {
  void before_events() override {}
  void on_done(const std::string&) override {}
};

class MaskBudgetTest : public ::testing::Test {
 protected:
  MaskBudgetTest() {
    testing::write_checkpoint(testing::mixed_reach_spec(), dir_.path());
    owner_ = std::make_unique<testing::TestModel>(dir_.path());
    model_ = owner_->load();
    std::mt19937 rng(11);
    for (int i = 0; i < 12; ++i) {
      Request request = make_request("r" + std::to_string(i), random_prompt(rng, 20 + 30 * i), 60);
      request.sampling.temperature = i % 2 ? 0.9f : 0.0f;
      request.sampling.seed = 5;
      request.sampling.num_logprobs = i % 4 == 0 ? 2 : 0;
      request.n = i == 5 ? 3 : 1;
      request.constraint = std::make_shared<CostlyLanguage>(20 + 3 * i, &spent_);
      requests_.push_back(std::move(request));
    }
    requests_.push_back(make_request("plain", random_prompt(rng, 30), 60));
    requests_.back().sampling.ignore_eos = true;
  }

  std::unique_ptr<EngineCore> core(uint64_t mask_work) {
    EngineConfig config = small_config();
    config.mask_work = mask_work;
    return std::make_unique<EngineCore>(*model_, plan_kv(*model_, config), stats_, steady_time(), observer_);
  }
  std::vector<std::shared_ptr<CollectingSink>> add_all(EngineCore& core) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const Request& request : requests_) {
      sinks.push_back(std::make_shared<CollectingSink>(request.n));
      core.add(request, sinks.back(), Clock::now());
    }
    return sinks;
  }
  std::vector<Outcome> one_by_one() {
    std::vector<Outcome> outcomes;
    for (const Request& request : requests_) {
      const auto alone = core(kUnbounded);
      auto sink = std::make_shared<CollectingSink>(request.n);
      alone->add(request, sink, Clock::now());
      while (!sink->peek().done()) alone->step();
      outcomes.push_back(sink->wait());
    }
    return outcomes;
  }
  static bool all_done(const std::vector<std::shared_ptr<CollectingSink>>& sinks) {
    return std::ranges::all_of(sinks, [](const auto& sink) { return sink->peek().done(); });
  }

  static constexpr uint64_t kUnbounded = uint64_t{1} << 60;

  testing::TempDir dir_;
  std::unique_ptr<testing::TestModel> owner_;
  std::unique_ptr<BamModel> model_;
  EngineStats stats_;
  NoObserver observer_;
  uint64_t spent_ = 0;  // by all constraints
  std::vector<Request> requests_;
};

TEST_F(MaskBudgetTest, WhoIsPutOffGetsTheSameTokensAndAStepStaysWithinItsBudget) {
  const std::vector<Outcome> expected = one_by_one();
  ASSERT_EQ(stats_.deferred_samples.load(), 0u);
  constexpr uint64_t kBudget = 3 * kMaskWork;
  const auto together = core(kBudget);
  const auto sinks = add_all(*together);
  for (int step = 0; !all_done(sinks); ++step) {
    ASSERT_LT(step, 100'000);
    const uint64_t before = spent_;
    together->step();
    ASSERT_LE(spent_ - before, kBudget) << "step " << step;  // one thread: masks of 100 fill 300 exactly
    ASSERT_EQ(together->check_integrity(), "");
  }
  EXPECT_GT(stats_.deferred_samples.load(), 100u);
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests_[i], expected[i], sinks[i]->wait());
  EXPECT_FALSE(together->has_work());
}

TEST_F(MaskBudgetTest, APlainStreamDoesNotWaitForThem) {
  const auto together = core(kMaskWork);
  const auto sinks = add_all(*together);
  CollectingSink& plain = *sinks.back();
  while (plain.peek().choices[0].tokens.empty()) together->step();
  for (size_t before = plain.peek().choices[0].tokens.size(); !plain.peek().done();) {
    together->step();
    const size_t now = plain.peek().choices[0].tokens.size();
    ASSERT_GT(now, before);
    before = now;
  }
  EXPECT_GT(stats_.deferred_samples.load(), 20u);
  EXPECT_FALSE(all_done(sinks));
}

TEST_F(MaskBudgetTest, WhoeverWaitsCanBeCancelled) {
  const auto together = core(kMaskWork);
  const auto sinks = add_all(*together);
  while (stats_.deferred_samples.load() < 40) together->step();
  for (size_t i = 0; i < requests_.size(); i += 2) together->cancel(requests_[i].id);
  while (!all_done(sinks)) {
    together->step();
    ASSERT_EQ(together->check_integrity(), "");
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const bool cancelled = i % 2 == 0 && sinks[i]->peek().choices[0].finish.reason == FinishReason::kCancelled;
    EXPECT_EQ(cancelled, i % 2 == 0) << requests_[i].id;
  }
  EXPECT_FALSE(together->has_work());
}

TEST_F(MaskBudgetTest, PreemptionLosesNothing) {
  const std::vector<Outcome> expected = one_by_one();
  // Room for the longest, and little more.
  const int page_size = 64;
  const KvGeometry geometry(page_size, model_->group_reach(), 512);
  const KvLayout layout = make_kv_layout(DType::kF16, static_cast<int>(model_->config().head_dim), page_size);
  const int64_t longest = std::ssize(requests_[11].prompt) + requests_[11].sampling.max_tokens;
  EngineConfig config = small_config(static_cast<uint64_t>(geometry.pages_for(longest) + 3) * layout.page_bytes());
  config.page_size = page_size;
  config.mask_work = 2 * kMaskWork;
  EngineCore together(*model_, plan_kv(*model_, config), stats_, steady_time(), observer_);
  const auto sinks = add_all(together);
  while (!all_done(sinks)) {
    together.step();
    ASSERT_EQ(together.check_integrity(), "");
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_same(requests_[i], expected[i], sinks[i]->wait());
  EXPECT_GT(stats_.preemptions.load(), 0u);
  EXPECT_GT(stats_.deferred_samples.load(), 0u);
}

}  // namespace
}  // namespace bam
