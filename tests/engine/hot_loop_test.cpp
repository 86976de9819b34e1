// What a decode step may not do once it is warm: allocate, lock a mutex, format text. The counters below stand in front
// of the C++ allocator, of pthread_mutex_lock and of fmt for every thread of this program.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <new>

#include "engine/engine_core.h"
#include "tests/engine/engine_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BAM_COUNTS_CALLS 0  // the sanitizers stand there themselves
#else
#define BAM_COUNTS_CALLS 1
#endif

namespace {
std::atomic<int64_t> allocations{0}, locks{0}, formats{0};
std::atomic<int64_t> fail_in{-1};  // allocations until one fails; negative: none does

void count_allocation() {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (fail_in.load(std::memory_order_relaxed) >= 0 && fail_in.fetch_sub(1) == 0) throw std::bad_alloc();
}
}  // namespace

#if BAM_COUNTS_CALLS
void* operator new(size_t bytes) {
  count_allocation();
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  count_allocation();
  const size_t align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  locks.fetch_add(1, std::memory_order_relaxed);
  return next(mutex);
}

namespace fmt {
inline namespace v9 {
std::string vformat(string_view text, format_args args) {
  formats.fetch_add(1, std::memory_order_relaxed);
  std::string result;
  vformat_to(std::back_inserter(result), text, args);
  return result;
}
}  // namespace v9
}  // namespace fmt
#endif

namespace bam {
namespace {

// Looks at every event and keeps nothing.
class CountingSink : public EventSink {
 public:
  bool on_events(std::vector<Event>&& events) override {
    for (const Event& event : events) tokens_ += std::holds_alternative<TokenEvent>(event);
    return true;
  }
  int64_t tokens() const { return tokens_; }

 private:
  int64_t tokens_ = 0;
};

struct NoObserver final : EngineCore::Observer {
  void before_events() override {}
  void on_done(const std::string&) override {}
};

struct Calls {
  int64_t allocations = 0, locks = 0, formats = 0;
};

template <typename F>
Calls calls_during(F&& work) {
  const Calls before{allocations, locks, formats};
  work();
  return {allocations - before.allocations, locks - before.locks, formats - before.formats};
}

TEST(HotLoop, TheCountersCount) {
  if (!BAM_COUNTS_CALLS) GTEST_SKIP() << "a sanitizer counts instead";
  std::mutex mutex;
  std::string text;
  const Calls calls = calls_during([&] {
    const std::lock_guard lock(mutex);
    text = fmt::format("{} is too long for a small string's own room", 1234567890);
  });
  EXPECT_GE(calls.allocations, 1);
  EXPECT_EQ(calls.locks, 1);
  EXPECT_EQ(calls.formats, 1);
}

// How many guesses are made does not depend on the machine, and looking at this clock takes no lock.
class StillTime final : public TimeSource {
 public:
  Clock::time_point now() const override { return Clock::time_point(std::chrono::hours(1)); }
  void wait(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Clock::time_point) override {
    wake.wait(lock);
  }
};

// Pages are taken and published once per page; in between, a step of all sequences touches what is there. With drafts,
// sequences come near the end of a page in different steps: few of them, then.
class WarmStep : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(HotLoop, WarmStep, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Drafts" : "Plain"; });
TEST_P(WarmStep, NeitherAllocatesNorLocksNorFormats) {
  const bool drafts = GetParam();
  if (!BAM_COUNTS_CALLS) GTEST_SKIP() << "a sanitizer stands where the counters would";
  const testing::TempDir dir;
  testing::write_checkpoint(testing::mixed_reach_spec(), dir.path());
  testing::TestModel owner(dir.path(), {.threads = 2});
  const auto model = owner.load();
  EngineStats stats;
  NoObserver observer;
  EngineConfig config = testing::small_config();
  config.drafts = drafts;
  StillTime time;
  EngineCore core(*model, plan_kv(*model, config), stats, time, observer);
  std::mt19937 rng(5);
  std::vector<std::shared_ptr<CountingSink>> sinks;
  std::vector<int64_t> prompt_len;
  for (int i = 0; i < (drafts ? 3 : 12); ++i) {
    prompt_len.push_back(40 + 129 * (i % 4));  // sequences come to the end of a page in few different steps
    sinks.push_back(std::make_shared<CountingSink>());
    Request request =
        testing::make_request("r" + std::to_string(i), testing::random_prompt(rng, prompt_len.back()), 1000);
    request.sampling.ignore_eos = true;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = i % 3 ? 0.8f : 0.0f;
    request.sampling.top_k = i % 3 == 1 ? 20 : 0;
    request.sampling.top_p = i % 2 ? 0.9f : 1.0f;
    request.sampling.frequency_penalty = i % 4 == 3 ? 0.5f : 0.0f;
    if (drafts) {  // half of the guesses are right
      request.sampling.max_tokens = 4000;
      request.sampling.temperature = 2.0f;
      request.sampling.logit_bias = {{11, 100.0f}, {12, 100.0f}};
    }
    core.add(std::move(request), sinks.back(), Clock::now());
  }
  for (int i = 0; i < 100; ++i) core.step();  // prompts read, every buffer at its size
  const int64_t page = core.kv().page_size();
  int64_t quiet_steps = 0, page_ends = 0, at_page_ends = 0;
  for (int step = 0; step < 400; ++step) {
    int64_t ends = 0;
    for (size_t i = 0; i < sinks.size(); ++i) {
      const int64_t position = prompt_len[i] + sinks[i]->tokens() - 1;  // of the row that this step computes
      const int64_t rows = drafts ? 1 + DraftParams().tokens : 1;
      ends += position % page == 0 || (position + rows) / page > position / page;
    }
    const Calls calls = calls_during([&] { core.step(); });
    ASSERT_EQ(calls.locks, 0) << "step " << step;
    ASSERT_EQ(calls.formats, 0) << "step " << step;
    if (ends == 0) {
      ASSERT_EQ(calls.allocations, 0) << "step " << step;
      ++quiet_steps;
    } else {
      page_ends += ends;
      at_page_ends += calls.allocations;
    }
  }
  for (const auto& sink : sinks) EXPECT_GT(sink->tokens(), 400);
  EXPECT_GT(quiet_steps, drafts ? 50 : 300);
  EXPECT_EQ(stats.drafts_accepted.load() > 0, drafts);
  std::printf("  %lld steps without a single allocation; %lld allocations where %lld times a page began or ended\n",
              static_cast<long long>(quiet_steps), static_cast<long long>(at_page_ends),
              static_cast<long long>(page_ends));
  EXPECT_LE(at_page_ends, 6 * page_ends);
}

// Keeps what it hears without asking for memory.
class FrugalSink : public EventSink {
 public:
  struct Choice {
    std::vector<int32_t> tokens;
    std::optional<FinishReason> end;
  };
  explicit FrugalSink(int32_t n) : choices_(static_cast<size_t>(n)) {
    for (Choice& choice : choices_) choice.tokens.reserve(100);
  }
  bool on_events(std::vector<Event>&& events) override {
    for (const Event& event : events) {
      if (const auto* token = std::get_if<TokenEvent>(&event)) {
        choices_[static_cast<size_t>(token->choice)].tokens.push_back(token->token);
      } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
        auto& end = choices_[static_cast<size_t>(finish->choice)].end;
        EXPECT_FALSE(end) << "ended twice";
        end = finish->reason;
      }
    }
    return true;
  }
  const std::vector<Choice>& choices() const { return choices_; }

 private:
  std::vector<Choice> choices_;
};

// Every single allocation of a small working day fails once: the request it belongs to may end with an error, everybody
// hears of an end, no page is lost, and afterwards the same texts come out.
TEST(OutOfMemory, AnyAllocationMayFailAndTheEngineLives) {
  if (!BAM_COUNTS_CALLS) GTEST_SKIP() << "a sanitizer stands where the counters would";
  const testing::TempDir dir;
  testing::write_checkpoint(testing::mixed_reach_spec(), dir.path());
  testing::TestModel owner(dir.path(), {.threads = 1});
  const auto model = owner.load();
  const KvPlan plan = plan_kv(*model, testing::small_config(220'000));  // tight: some are preempted
  std::mt19937 rng(11);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(testing::make_request("r" + std::to_string(i), testing::random_prompt(rng, 60 + 50 * i), 30));
    requests.back().sampling.ignore_eos = true;
  }
  requests[1].n = 3;
  requests[1].sampling.temperature = 1;
  requests[1].sampling.seed = 3;
  requests[2].sampling.num_prompt_logprobs = 1;
  struct Day {
    std::vector<std::vector<FrugalSink::Choice>> outcomes;
    bool failed = false;
    int64_t errors = 0;
  };
  const auto run = [&](EngineCore& core, int64_t fail_at) {
    Day day;
    std::vector<Request> copies = requests;
    std::vector<std::shared_ptr<FrugalSink>> sinks;
    for (const Request& request : copies) sinks.push_back(std::make_shared<FrugalSink>(request.n));
    fail_in = fail_at;
    for (size_t i = 0; i < copies.size(); ++i) {
      core.add(std::move(copies[i]), sinks[i], Clock::now());
      core.step();
    }
    for (int step = 0; step < 2000 && core.has_work(); ++step) core.step();
    day.failed = fail_in.exchange(-1) < 0;
    for (auto& sink : sinks) {
      day.outcomes.push_back(sink->choices());
      for (const auto& choice : sink->choices()) {
        EXPECT_TRUE(choice.end) << "an end is missing";
        day.errors += choice.end == FinishReason::kError;
      }
    }
    EXPECT_EQ(core.check_integrity(), "");
    EXPECT_EQ(core.kv().stage(0).pool().num_used(), 0);
    return day;
  };
  NoObserver observer;
  const auto expect_right = [&](const Day& day, const Day& expected) {
    for (size_t i = 0; i < requests.size(); ++i) {
      for (size_t c = 0; c < expected.outcomes[i].size(); ++c) {
        ASSERT_EQ(day.outcomes[i][c].tokens, expected.outcomes[i][c].tokens) << i << " " << c;
      }
    }
  };
  EngineStats stats;
  EngineCore first(*model, plan, stats, steady_time(), observer);
  const Day expected = run(first, -1);
  ASSERT_EQ(expected.errors, 0);
  int64_t failures = 0, errors = 0;
  for (int64_t fail_at = 0;; ++fail_at) {
    SCOPED_TRACE("allocation " + std::to_string(fail_at));
    EngineCore core(*model, plan, stats, steady_time(), observer);
    const Day day = run(core, fail_at);
    if (!day.failed) break;
    ++failures;
    errors += day.errors > 0;
    expect_right(run(core, -1), expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  std::printf("  %lld allocations failed, %lld of them cost a request\n", static_cast<long long>(failures),
              static_cast<long long>(errors));
  EXPECT_GT(failures, 200);
}

}  // namespace
}  // namespace bam
