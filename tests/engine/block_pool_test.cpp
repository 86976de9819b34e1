#include "engine/block_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace bam {
namespace {

int32_t take(BlockPool& pool) {
  PageOwner evicted;
  return pool.allocate(&evicted);
}

TEST(BlockPool, HandsOutLowPagesFirstAndRecyclesTheLastReleased) {
  BlockPool pool(4);
  EXPECT_EQ(take(pool), 0);
  EXPECT_EQ(take(pool), 1);
  pool.release(0);
  EXPECT_EQ(take(pool), 0);
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_EQ(pool.check_integrity(), "");
}

TEST(BlockPool, ReturnsNoPageWhenEverythingIsUsed) {
  BlockPool pool(2);
  take(pool), take(pool);
  EXPECT_EQ(take(pool), kNoPage);
  EXPECT_EQ(pool.num_available(), 0);
  EXPECT_EQ(pool.check_integrity(), "");
}

TEST(BlockPool, PublishedPagesAreCachedAndEvictedOldestFirst) {
  BlockPool pool(3);
  for (int32_t p = 0; p < 3; ++p) {
    take(pool);
    pool.publish(p, {10 + p, p});
  }
  pool.release(1), pool.release(0), pool.release(2);
  EXPECT_EQ(pool.num_cached(), 3);
  EXPECT_EQ(pool.check_integrity(), "");
  for (const int32_t expected : {1, 0, 2}) {
    PageOwner evicted;
    EXPECT_EQ(pool.allocate(&evicted), expected);
    EXPECT_EQ(evicted.node, 10 + expected);
    EXPECT_EQ(evicted.group, expected);
    EXPECT_EQ(pool.owner(expected).node, -1);
  }
  EXPECT_EQ(pool.check_integrity(), "");
}

TEST(BlockPool, FreePagesAreTakenBeforeCachedOnes) {
  BlockPool pool(2);
  take(pool);
  pool.publish(0, {5, 0});
  pool.release(0);
  PageOwner evicted;
  EXPECT_EQ(pool.allocate(&evicted), 1);
  EXPECT_EQ(evicted.node, -1);
}

TEST(BlockPool, AReferenceRevivesACachedPageAndRenewsItsAge) {
  BlockPool pool(2);
  for (int32_t p = 0; p < 2; ++p) {
    take(pool);
    pool.publish(p, {p, 0});
    pool.release(p);
  }
  pool.add_ref(0);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.num_cached(), 1);
  pool.release(0);
  PageOwner evicted;
  EXPECT_EQ(pool.allocate(&evicted), 1) << "page 0 was used more recently";
}

TEST(BlockPool, UnpublishFreesACachedPageAtOnceAndAUsedOneLater) {
  BlockPool pool(2);
  take(pool), take(pool);
  pool.publish(0, {1, 0}), pool.publish(1, {1, 1});
  pool.release(0);
  pool.unpublish(0), pool.unpublish(1);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_used(), 1);
  pool.release(1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.check_integrity(), "");
}

TEST(BlockPool, RandomOperationsKeepTheBooks) {
  std::mt19937 rng(7);
  BlockPool pool(50);
  std::vector<int32_t> refs;  // one entry per reference held
  for (int step = 0; step < 20000; ++step) {
    switch (rng() % 4) {
      case 0: {
        const int32_t page = take(pool);
        if (page != kNoPage) refs.push_back(page);
        break;
      }
      case 1:
        if (!refs.empty()) {
          const int32_t page = refs[rng() % refs.size()];
          pool.add_ref(page);
          refs.push_back(page);
        }
        break;
      case 2:
        if (!refs.empty()) {
          const size_t i = rng() % refs.size();
          pool.release(refs[i]);
          refs.erase(refs.begin() + static_cast<std::ptrdiff_t>(i));
        }
        break;
      case 3:
        if (!refs.empty()) {
          const int32_t page = refs[rng() % refs.size()];
          pool.owner(page).node < 0 ? pool.publish(page, {step, 0}) : pool.unpublish(page);
        }
        break;
    }
    if (step % 50 == 0) {
      ASSERT_EQ(pool.check_integrity(), "");
      std::vector<int32_t> counts(50, 0);
      for (const int32_t page : refs) ++counts[static_cast<size_t>(page)];
      for (int32_t page = 0; page < 50; ++page) {
        ASSERT_EQ(pool.ref_count(page), counts[static_cast<size_t>(page)]);
      }
    }
  }
}

}  // namespace
}  // namespace bam
