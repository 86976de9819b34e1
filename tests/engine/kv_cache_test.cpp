#include "engine/kv_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "kernels/backend.h"

namespace bam {
namespace {

constexpr int kPage = 64;

std::vector<int32_t> make_tokens(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

int32_t entry(const BlockTable& t, int group, int64_t block) {
  return t.entries[static_cast<size_t>(group * t.stride + block)];
}

// Computes all of `tokens` in chunks as an engine would.
int64_t compute(KvCache& kv, BlockTable& table, const std::vector<int32_t>& tokens, int64_t from, int64_t chunk = 64) {
  int64_t released = 0;
  for (int64_t at = from; at < static_cast<int64_t>(tokens.size());) {
    const int64_t end = std::min<int64_t>(at + chunk, static_cast<int64_t>(tokens.size()));
    EXPECT_TRUE(kv.grow(table, at, end));
    released += kv.commit(table, tokens, end);
    at = end;
  }
  EXPECT_EQ(kv.check_integrity(), "");
  return released;
}

// A whole request: admit, compute, release. Returns the cached tokens.
int64_t run(KvCache& kv, const std::vector<int32_t>& tokens, const std::string& salt = "") {
  BlockTable table;
  table.salt = salt;
  const int64_t size = static_cast<int64_t>(tokens.size());
  const auto cached = kv.admit(table, tokens, size - 1, size, 0);
  EXPECT_TRUE(cached.has_value());
  compute(kv, table, tokens, *cached);
  kv.release(table);
  EXPECT_EQ(kv.check_integrity(), "");
  return *cached;
}

TEST(KvGeometry, PagesForCountsTheReachedWindowOnly) {
  // Window of 200 keys = 4 blocks of 64; a chunk of 128 touches at most 3 blocks.
  const KvGeometry geometry(kPage, {-1, 200}, 128);
  EXPECT_EQ(geometry.pages_for(1), 2);
  EXPECT_EQ(geometry.pages_for(64), 2);
  EXPECT_EQ(geometry.pages_for(65), 4);
  EXPECT_EQ(geometry.pages_for(6400), 100 + 7);
  EXPECT_EQ(geometry.max_tokens(107), 6400);
  EXPECT_EQ(geometry.max_tokens(1), 0);
  EXPECT_EQ(KvGeometry(kPage, {8}, 64).max_tokens(100), kMaxPositions);
}

TEST(KvGeometry, TheTwoNewestTilesAlwaysStay) {
  const KvGeometry geometry(kPage, {0}, 64);
  for (int64_t n = 1; n < 1000; ++n) {
    const int64_t first_key = geometry.first_needed_block(0, n) * kPage;
    EXPECT_LE(first_key, std::max<int64_t>(0, n - 128)) << n;
  }
}

TEST(KvCache, ARepeatedPromptIsFoundUpToItsLastFullBlock) {
  KvCache kv(KvGeometry(kPage, {-1, -1, -1}, 256), 100, true, 1);
  EXPECT_EQ(run(kv, make_tokens(200)), 0);
  EXPECT_EQ(run(kv, make_tokens(200)), 192);
  EXPECT_EQ(run(kv, make_tokens(500)), 192);
  EXPECT_EQ(run(kv, make_tokens(192)), 128) << "one token must be left to compute";
  EXPECT_EQ(run(kv, make_tokens(193)), 192);
}

TEST(KvCache, OneDifferentTokenEndsTheHit) {
  KvCache kv(KvGeometry(kPage, {-1}, 256), 100, true, 1);
  auto tokens = make_tokens(300);
  run(kv, tokens);
  tokens[70] = 9999;
  EXPECT_EQ(run(kv, tokens), 64);
}

TEST(KvCache, SaltsDoNotShare) {
  KvCache kv(KvGeometry(kPage, {-1}, 256), 100, true, 1);
  run(kv, make_tokens(300), "a");
  EXPECT_EQ(run(kv, make_tokens(300), "b"), 0);
  EXPECT_EQ(run(kv, make_tokens(300), "a"), 256);
}

TEST(KvCache, SwitchedOffItKeepsNothing) {
  KvCache kv(KvGeometry(kPage, {-1}, 256), 100, false, 1);
  run(kv, make_tokens(300));
  EXPECT_EQ(run(kv, make_tokens(300)), 0);
  EXPECT_EQ(kv.pool().num_free(), 100);
}

TEST(KvCache, EvictionTakesTheTailOfAPrefixFirst) {
  KvCache kv(KvGeometry(kPage, {-1}, 640), 10, true, 1);
  run(kv, make_tokens(640));          // ten blocks, all cached now
  run(kv, make_tokens(192, 100000));  // needs three pages: blocks 9, 8, 7 go
  EXPECT_EQ(kv.num_evicted(), 3u);
  EXPECT_EQ(run(kv, make_tokens(640)), 7 * 64);
}

TEST(KvCache, PagesOutOfReachAreReleasedAndReallyReusable) {
  // Group 1 reaches 128 keys back.
  KvCache kv(KvGeometry(kPage, {-1, 128}, 64), 100, false, 1);
  const auto tokens = make_tokens(1000);
  BlockTable table;
  ASSERT_TRUE(kv.admit(table, tokens, 999, 1000, 0));
  EXPECT_EQ(compute(kv, table, tokens, 0), 15 - 2);
  // 16 blocks: group 0 keeps all, group 1 those from (1000 / 64) - 2 = 13 on.
  for (int64_t b = 0; b < 16; ++b) {
    EXPECT_NE(entry(table, 0, b), kNoPage);
    EXPECT_EQ(entry(table, 1, b) == kNoPage, b < 13) << b;
  }
  EXPECT_EQ(table.num_pages, 16 + 3);
  EXPECT_EQ(kv.pool().num_used(), 19);
  EXPECT_EQ(kv.pool().num_free(), 81);
  kv.release(table);
  EXPECT_EQ(kv.pool().num_free(), 100);
}

TEST(KvCache, HitsNeedOnlyThePagesWithinReach) {
  KvCache kv(KvGeometry(kPage, {-1, 128}, 64), 40, true, 1);
  run(kv, make_tokens(640));  // 20 pages cached; group 1's old ones were released early, so they are evicted first
  BlockTable filler;
  filler.salt = "other";
  const auto others = make_tokens(64 * 14, 5000);
  ASSERT_TRUE(kv.admit(filler, others, 0, 64 * 14, 0));
  compute(kv, filler, others, 0);  // takes 28 pages minus what reach returns
  EXPECT_GT(kv.num_evicted(), 0u);
  const auto chain = kv.cached_chain("", make_tokens(640));
  EXPECT_EQ(chain.size(), 10u) << "old pages of group 1 are gone, but nobody needs them";
  EXPECT_EQ(kv.prefix().page(chain[0], 1), kNoPage);
  BlockTable table;
  const auto tokens = make_tokens(641);
  const auto cached = kv.admit(table, tokens, 640, 641, 0);
  ASSERT_TRUE(cached);
  EXPECT_EQ(*cached, 640);
  EXPECT_EQ(entry(table, 1, 0), kNoPage);
  EXPECT_NE(entry(table, 1, 9), kNoPage);
  EXPECT_NE(entry(table, 0, 0), kNoPage);
  kv.release(table);
  kv.release(filler);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCache, AHoleInAWindowShortensTheHit) {
  // One bounded group only: the newest two blocks before the end of the hit must be there.
  KvCache kv(KvGeometry(kPage, {100}, 64), 8, true, 1);
  run(kv, make_tokens(64 * 6));
  // Six cached pages. Release order: blocks 0..3 early (reach), then 5, 4. Taking 2 + 3 evicts blocks 0, 1, 2.
  auto pages = kv.allocate_pages(5);
  ASSERT_TRUE(pages);
  EXPECT_EQ(kv.num_evicted(), 3u);
  EXPECT_EQ(kv.cached_chain("", make_tokens(64 * 6)).size(), 6u);
  EXPECT_EQ(kv.cached_chain("", make_tokens(64 * 5)).size(), 5u);
  EXPECT_EQ(kv.cached_chain("", make_tokens(64 * 4)).size(), 0u) << "block 2 is missing in the window of a hit of 4";
  kv.release_pages(*pages);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCache, AdmissionIsRefusedWithoutAnyChangeWhenPagesAreMissing) {
  KvCache kv(KvGeometry(kPage, {-1}, 640), 10, true, 1);
  run(kv, make_tokens(320));
  BlockTable table;
  const auto tokens = make_tokens(640);
  EXPECT_FALSE(kv.admit(table, tokens, 639, 640, 1)) << "5 cached + 5 to come + 1 reserved > 10";
  EXPECT_EQ(kv.pool().num_cached(), 5);
  EXPECT_EQ(table.num_blocks, 0);
  EXPECT_TRUE(kv.admit(table, tokens, 639, 640, 0));
  kv.release(table);
}

TEST(KvCache, ForksShareFullBlocksAndSplitThePartialOneOnWriting) {
  KvCache kv(KvGeometry(kPage, {-1, -1}, 256), 20, true, 1);
  auto tokens = make_tokens(100);
  BlockTable a, b, c;
  ASSERT_TRUE(kv.admit(a, tokens, 99, 110, 0));
  compute(kv, a, tokens, 0, 256);
  kv.fork(a, b);
  kv.fork(a, c);
  EXPECT_EQ(kv.pool().num_used(), 4);
  EXPECT_EQ(kv.pages_to_grow(b, 100, 101), 2);
  ASSERT_TRUE(kv.grow(b, 100, 101));
  ASSERT_EQ(kv.pending_copies().size(), 2u);
  for (int g = 0; g < 2; ++g) {
    EXPECT_EQ(kv.pending_copies()[static_cast<size_t>(g)].from, entry(a, g, 1));
    EXPECT_EQ(kv.pending_copies()[static_cast<size_t>(g)].to, entry(b, g, 1));
    EXPECT_EQ(entry(a, g, 0), entry(b, g, 0));
  }
  ASSERT_TRUE(kv.grow(c, 100, 101));
  ASSERT_EQ(kv.pending_copies().size(), 4u);
  // The last one left writes in place.
  EXPECT_EQ(kv.pages_to_grow(a, 100, 101), 0);
  ASSERT_TRUE(kv.grow(a, 100, 101));
  EXPECT_EQ(kv.pending_copies().size(), 4u);
  EXPECT_EQ(kv.pool().num_used(), 2 + 6);
  kv.release(a), kv.release(b);
  EXPECT_EQ(kv.pool().num_used(), 4);
  kv.release(c);
  EXPECT_EQ(kv.pool().num_used(), 0);
  EXPECT_EQ(kv.pool().num_cached(), 2);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCache, QuarantineRemovesWhatTheSequenceComputedAndNothingElse) {
  KvCache kv(KvGeometry(kPage, {-1, 128}, 64), 100, true, 1);
  run(kv, make_tokens(128));  // somebody else's two blocks
  const auto tokens = make_tokens(500);
  BlockTable table;
  const auto cached = kv.admit(table, tokens, 499, 500, 0);
  ASSERT_TRUE(cached);
  ASSERT_EQ(*cached, 128);
  compute(kv, table, tokens, 128);
  kv.quarantine(table, tokens, 2);
  EXPECT_EQ(kv.pool().num_used(), 0);
  EXPECT_EQ(kv.pool().num_cached(), 4);
  EXPECT_EQ(kv.cached_chain("", tokens).size(), 2u);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCache, QuarantineAlsoFindsBlocksPublishedBeforeAPreemption) {
  KvCache kv(KvGeometry(kPage, {-1}, 64), 100, true, 1);
  const auto tokens = make_tokens(640);
  BlockTable table;
  ASSERT_TRUE(kv.admit(table, tokens, 639, 640, 0));
  compute(kv, table, tokens, 0);
  kv.release(table);  // preempted with ten blocks in the cache
  ASSERT_TRUE(kv.admit(table, tokens, 64, 640, 0));
  kv.quarantine(table, tokens, 0);
  EXPECT_EQ(kv.pool().num_free(), 100);
  EXPECT_EQ(kv.prefix().num_nodes(), 0u);
}

TEST(KvCache, TwoSequencesWithTheSameTextPublishItOnce) {
  KvCache kv(KvGeometry(kPage, {-1}, 256), 20, true, 1);
  const auto tokens = make_tokens(256);
  BlockTable a, b;
  ASSERT_TRUE(kv.admit(a, tokens, 255, 256, 0));
  ASSERT_TRUE(kv.admit(b, tokens, 255, 256, 0));
  compute(kv, a, tokens, 0);
  compute(kv, b, tokens, 0);
  kv.release(a), kv.release(b);
  EXPECT_EQ(kv.pool().num_cached(), 4);
  EXPECT_EQ(kv.pool().num_free(), 16);
}

TEST(KvCache, AdoptedPagesAreFoundLikeComputedOnes) {
  KvCache kv(KvGeometry(kPage, {-1, 128}, 64), 20, true, 1);
  const auto tokens = make_tokens(256);
  auto pages = kv.allocate_pages(4 + 2);
  ASSERT_TRUE(pages);
  const std::vector<int32_t> chain = kv.insert_chain("s", tokens);
  ASSERT_EQ(chain.size(), 4u);
  kv.pin_chain(chain);
  for (size_t b = 4; b-- > 0;) kv.adopt_page(chain[b], 0, (*pages)[b]);
  // Group 1 has its two newest blocks only.
  for (size_t b = 2; b < 4; ++b) kv.adopt_page(chain[b], 1, (*pages)[2 + b]);
  kv.unpin_chain(chain);
  EXPECT_EQ(kv.pool().num_cached(), 6);
  EXPECT_EQ(kv.cached_chain("s", tokens).size(), 4u);
  EXPECT_EQ(kv.cached_chain("", tokens).size(), 0u);
  EXPECT_EQ(run(kv, make_tokens(300), "s"), 256);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCache, AChainThatGotNoPagesIsForgotten) {
  KvCache kv(KvGeometry(kPage, {-1}, 64), 20, true, 1);
  const std::vector<int32_t> chain = kv.insert_chain("s", make_tokens(256));
  kv.pin_chain(chain);
  EXPECT_EQ(kv.prefix().num_nodes(), 5u) << "a root and four blocks";
  kv.unpin_chain(chain);
  EXPECT_EQ(kv.prefix().num_nodes(), 0u);
  EXPECT_EQ(kv.insert_chain("s", make_tokens(63)).size(), 0u);
  EXPECT_EQ(kv.prefix().num_nodes(), 0u);
  EXPECT_EQ(kv.check_integrity(), "");
}

// Whoever hears of all events knows what can be continued, after any history.
TEST(KvCache, EventsTellWhatIsUsable) {
  for (const bool bounded : {false, true}) {
    KvCache kv(bounded ? KvGeometry(64, {-1, 100}, 64) : KvGeometry(64, {-1, -1}, 64), 60, true, 1);
    KvEventLog log;
    kv.record_events(&log);
    std::map<uint64_t, std::optional<uint64_t>> index;  // block -> the one before it
    std::mt19937 random(7);
    std::vector<BlockTable> tables(6);
    std::vector<std::vector<int32_t>> texts(tables.size());
    std::vector<int64_t> computed(tables.size(), 0);
    int stored = 0, removed = 0;
    for (int step = 0; step < 10'000; ++step) {
      const size_t i = random() % tables.size();
      if (texts[i].empty()) {
        // Few different beginnings, so that prompts share blocks.
        texts[i] = make_tokens(64 * (1 + static_cast<int64_t>(random() % 8)) + static_cast<int64_t>(random() % 64),
                               static_cast<int32_t>(random() % 4));
        tables[i] = {};
        tables[i].salt = random() % 5 == 0 ? "other" : "";
        const int64_t size = static_cast<int64_t>(texts[i].size());
        const auto cached = kv.admit(tables[i], texts[i], size - 1, 0, 0);
        computed[i] = cached.value_or(0);
        if (!cached) texts[i].clear();
      } else if (computed[i] < static_cast<int64_t>(texts[i].size()) && random() % 4 != 0) {
        const int64_t end = std::min<int64_t>(computed[i] + 64, static_cast<int64_t>(texts[i].size()));
        if (kv.grow(tables[i], computed[i], end)) {
          kv.commit(tables[i], texts[i], end);
          computed[i] = end;
        }
      } else {
        if (random() % 10 == 0) {
          kv.quarantine(tables[i], texts[i], 0);
        } else {
          kv.release(tables[i]);
        }
        texts[i].clear();
      }
      for (const KvEvent& event : log.take()) {
        if (event.kind == KvEvent::Kind::kStored) {
          EXPECT_TRUE(index.emplace(event.hash, event.parent).second) << "stored twice";
          EXPECT_EQ(event.tokens.size(), 64u);
          ++stored;
        } else {
          EXPECT_EQ(event.kind, KvEvent::Kind::kRemoved);
          EXPECT_EQ(index.erase(event.hash), 1u) << "removed but never stored";
          ++removed;
        }
      }
      const std::vector<uint64_t> usable = kv.prefix().usable_hashes();
      ASSERT_EQ(index.size(), usable.size());
      for (const uint64_t hash : usable) ASSERT_TRUE(index.contains(hash));
    }
    EXPECT_GT(stored, 200);
    EXPECT_GT(removed, 200);
  }
}

TEST(PrefixCache, AHashCollisionIsAMissNeverAWrongHit) {
  BlockPool pool(4);
  PrefixCache cache(pool, kPage, {true}, 1);
  const auto tokens = make_tokens(kPage), other = make_tokens(kPage, 7);
  const int32_t root = cache.insert_root("");
  const Hash128 hash{1, 2};
  const int32_t node = cache.insert(root, hash, tokens);
  ASSERT_NE(node, PrefixCache::kNone);
  EXPECT_EQ(cache.find(root, hash, tokens), node);
  EXPECT_EQ(cache.find(root, hash, other), PrefixCache::kNone);
  EXPECT_EQ(cache.find(node, hash, tokens), PrefixCache::kNone) << "another parent";
  EXPECT_EQ(cache.insert(root, hash, other), PrefixCache::kNone) << "the first one stays";
}

TEST(PrefixCache, HashesDependOnEveryTokenItsPlaceAndTheParent) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto add = [&](const Hash128& h) { EXPECT_TRUE(seen.insert({h.lo, h.hi}).second); };
  auto tokens = make_tokens(kPage);
  add(hash_chain({1, 2}, tokens));
  add(hash_chain({1, 3}, tokens));
  add(hash_chain({2, 2}, tokens));
  add(hash_chain({1, 2}, std::span(tokens).first(63)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (const int32_t delta : {1, 1 << 20}) {
      auto changed = tokens;
      changed[i] += delta;
      add(hash_chain({1, 2}, changed));
    }
    if (i > 0) {
      auto swapped = tokens;
      std::swap(swapped[i], swapped[i - 1]);
      add(hash_chain({1, 2}, swapped));
    }
  }
}

}  // namespace
}  // namespace bam
