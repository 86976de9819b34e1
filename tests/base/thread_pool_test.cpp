#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <vector>

namespace bam {
namespace {

TEST(ThreadPool, EveryItemRunsExactlyOnceOnAValidWorker) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.num_threads(), threads);
    for (int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      std::atomic<bool> bad_worker{false};
      pool.parallel_for(n, [&](int64_t item, int worker) {
        hits[static_cast<size_t>(item)].fetch_add(1);
        if (worker < 0 || worker >= threads) bad_worker = true;
      });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      EXPECT_FALSE(bad_worker);
    }
  }
}

TEST(ThreadPool, ALoopAheadKnowsWhatAWorkerGetsNext) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      std::vector<int64_t> promised(static_cast<size_t>(threads), -1);
      std::atomic<int> broken{0}, out_of_range{0};
      pool.parallel_for_ahead(n, [&](int64_t item, int64_t next, int worker) {
        hits[static_cast<size_t>(item)].fetch_add(1);
        int64_t& mine = promised[static_cast<size_t>(worker)];
        if (mine >= 0 && mine != item) ++broken;
        // Near the end it is a guess.
        mine = item + 2 * threads < n ? next : -1;
        if (next < -1 || next >= n || next == item) ++out_of_range;
      });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      EXPECT_EQ(broken, 0);
      EXPECT_EQ(out_of_range, 0);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsInARowSeeTheirOwnData) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64);
  for (int64_t round = 0; round < 20000; ++round) {
    pool.parallel_for(static_cast<int64_t>(values.size()),
                      [&](int64_t item, int) { values[static_cast<size_t>(item)] = item + round; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 64 * 63 / 2 + 64 * round);
  }
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.parallel_for(8, [&](int64_t, int) { ran.fetch_add(1); });
  }
  EXPECT_EQ(ran.load(), 24);
}

}  // namespace
}  // namespace bam
