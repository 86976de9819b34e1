#include "engine/kv_cache.h"

#include <algorithm>

#include "base/check.h"

namespace bam {

namespace {

std::vector<bool> unbounded_groups(const KvGeometry& geometry) {
  std::vector<bool> unbounded;
  for (int g = 0; g < geometry.num_groups(); ++g) unbounded.push_back(geometry.unbounded(g));
  return unbounded;
}

// kNone: it is the first of its text.
int32_t block_before(const PrefixCache& prefix, int32_t node) {
  const int32_t parent = prefix.parent(node);
  return prefix.parent(parent) == PrefixCache::kNone ? PrefixCache::kNone : parent;
}

}  // namespace

KvCache::KvCache(KvGeometry geometry, int64_t num_pages, bool prefix_cache, uint64_t fingerprint)
    : geometry_(std::move(geometry)),
      pool_(num_pages),
      prefix_(pool_, geometry_.page_size(), unbounded_groups(geometry_), fingerprint),
      prefix_enabled_(prefix_cache) {}

std::span<const int32_t> KvCache::block_tokens(std::span<const int32_t> tokens, int64_t block) const {
  const size_t size = static_cast<size_t>(geometry_.page_size());
  return tokens.subspan(static_cast<size_t>(block) * size, size);
}

void KvCache::extend_hashes(BlockTable& table, std::span<const int32_t> tokens) {
  const int64_t full = static_cast<int64_t>(tokens.size()) / geometry_.page_size();
  Hash128 parent = table.hashes.empty() ? prefix_.root_hash(table.salt) : table.hashes.back();
  for (int64_t b = static_cast<int64_t>(table.hashes.size()); b < full; ++b) {
    parent = hash_chain(parent, block_tokens(tokens, b));
    table.hashes.push_back(parent);
  }
}

void KvCache::walk(BlockTable& table, std::span<const int32_t> tokens, int64_t max_blocks) {
  chain_.clear();
  if (!prefix_enabled_) return;
  int32_t node = prefix_.find_root(table.salt);
  if (node == PrefixCache::kNone) return;
  extend_hashes(table, tokens);
  max_blocks = std::min(max_blocks, static_cast<int64_t>(table.hashes.size()));
  for (int64_t b = 0; b < max_blocks; ++b) {
    node = prefix_.find(node, table.hashes[static_cast<size_t>(b)], block_tokens(tokens, b));
    if (node == PrefixCache::kNone) return;
    chain_.push_back(node);
  }
}

int64_t KvCache::usable_blocks() const {
  int64_t blocks = 0;
  while (blocks < static_cast<int64_t>(chain_.size()) &&
         prefix_.has_all_unbounded(chain_[static_cast<size_t>(blocks)])) {
    ++blocks;
  }
  // A hole at block b inside the window of some group rules out every length above b: windows only move forward.
  for (bool complete = false; !complete;) {
    complete = true;
    for (int g = 0; g < geometry_.num_groups() && complete; ++g) {
      if (geometry_.unbounded(g)) continue;
      const int64_t first = geometry_.first_needed_block(g, blocks * geometry_.page_size());
      for (int64_t b = blocks; b-- > first;) {
        if (prefix_.page(chain_[static_cast<size_t>(b)], g) != kNoPage) continue;
        blocks = b;
        complete = false;
        break;
      }
    }
  }
  return blocks;
}

int64_t KvCache::usable_tokens(BlockTable& table, std::span<const int32_t> tokens, int64_t max_cached) {
  walk(table, tokens, max_cached / geometry_.page_size());
  return usable_blocks() * geometry_.page_size();
}

std::optional<int64_t> KvCache::admit(BlockTable& table, std::span<const int32_t> tokens, int64_t max_cached,
                                      int64_t final_tokens, int64_t reserved_pages) {
  BAM_CHECK(table.num_blocks == 0 && table.num_pages == 0);
  walk(table, tokens, max_cached / geometry_.page_size());
  const int64_t blocks = usable_blocks();
  const int64_t cached = blocks * geometry_.page_size();
  int64_t hits = 0, revived = 0;
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    for (int64_t b = geometry_.first_needed_block(g, cached); b < blocks; ++b) {
      ++hits;
      revived += pool_.ref_count(prefix_.page(chain_[static_cast<size_t>(b)], g)) == 0;
    }
  }
  const int64_t missing = std::max<int64_t>(0, geometry_.pages_for(final_tokens) - hits);
  if (missing + revived + reserved_pages > pool_.num_available()) return std::nullopt;

  reserve_blocks(table, std::max(blocks, geometry_.blocks_for(static_cast<int64_t>(tokens.size()) + 1)));
  table.first_live.assign(static_cast<size_t>(geometry_.num_groups()), 0);
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    const int64_t first = geometry_.first_needed_block(g, cached);
    table.first_live[static_cast<size_t>(g)] = first;
    for (int64_t b = first; b < blocks; ++b) {
      const int32_t page = prefix_.page(chain_[static_cast<size_t>(b)], g);
      pool_.add_ref(page);
      table.entries[slot(table, g, b)] = page;
    }
  }
  table.history.start_over(geometry_.num_groups());
  table.num_blocks = table.num_full = blocks;
  table.num_pages = hits;
  table.publishing = prefix_enabled_;
  if (blocks > 0) {
    table.node = chain_[static_cast<size_t>(blocks - 1)];
    prefix_.pin(table.node);
  }
  return cached;
}

int32_t KvCache::allocate_page() {
  PageOwner evicted;
  const int32_t page = pool_.allocate(&evicted);
  if (evicted.node >= 0) {
    prefix_.forget(evicted);
    ++num_evicted_;
  }
  return page;
}

void KvCache::reserve_blocks(BlockTable& table, int64_t blocks) {
  if (blocks <= table.stride) return;
  const int64_t stride = std::max(blocks + 4, table.stride + table.stride / 2);
  std::vector<int32_t> entries(static_cast<size_t>(geometry_.num_groups() * stride), kNoPage);
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    const auto from = table.entries.begin() + g * table.stride;
    std::copy(from, from + table.num_blocks, entries.begin() + g * stride);
  }
  table.entries = std::move(entries);
  table.stride = stride;
  table.history.start_over(geometry_.num_groups());
}

int64_t KvCache::shared_tail_pages(const BlockTable& table, int64_t num_computed) const {
  if (!table.tail_shared || num_computed % geometry_.page_size() == 0) return 0;
  const int64_t tail = num_computed / geometry_.page_size();
  int64_t shared = 0;
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    shared += pool_.ref_count(table.entries[slot(table, g, tail)]) > 1;
  }
  return shared;
}

int64_t KvCache::pages_to_grow(const BlockTable& table, int64_t num_computed, int64_t num_tokens) const {
  const int64_t blocks = std::max<int64_t>(0, geometry_.blocks_for(num_tokens) - table.num_blocks);
  return blocks * geometry_.num_groups() + shared_tail_pages(table, num_computed);
}

void KvCache::split_tail(BlockTable& table, int64_t num_computed) {
  const int64_t tail = num_computed / geometry_.page_size();
  copies_.reserve(copies_.size() + static_cast<size_t>(geometry_.num_groups()));
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    int32_t& entry = table.entries[slot(table, g, tail)];
    if (pool_.ref_count(entry) == 1) continue;
    const int32_t page = allocate_page();
    copies_.push_back({entry, page});
    pool_.release(entry);
    entry = page;
    table.history.note(g, tail);
  }
}

bool KvCache::grow(BlockTable& table, int64_t num_computed, int64_t num_tokens) {
  const int64_t pages = pages_to_grow(table, num_computed, num_tokens);
  if (pages > pool_.num_available()) return false;
  const int64_t blocks = geometry_.blocks_for(num_tokens);
  reserve_blocks(table, blocks);
  if (table.tail_shared) {
    if (shared_tail_pages(table, num_computed) > 0) split_tail(table, num_computed);
    table.tail_shared = false;
  }
  for (; table.num_blocks < blocks; ++table.num_blocks) {
    for (int g = 0; g < geometry_.num_groups(); ++g) {
      table.entries[slot(table, g, table.num_blocks)] = allocate_page();
    }
    table.history.note(-1, table.num_blocks);
    table.num_pages += geometry_.num_groups();
  }
  return true;
}

bool KvCache::publish_block(BlockTable& table, std::span<const int32_t> tokens, int64_t block) {
  if (table.node == PrefixCache::kNone) {
    table.node = prefix_.insert_root(table.salt);
    if (table.node == PrefixCache::kNone) return false;
    prefix_.pin(table.node);
  }
  const int32_t node =
      prefix_.insert(table.node, table.hashes[static_cast<size_t>(block)], block_tokens(tokens, block));
  if (node == PrefixCache::kNone) return false;
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    const int32_t page = table.entries[slot(table, g, block)];
    // Somebody else may have computed the same block meanwhile: the first copy stays, ours remains private.
    if (page != kNoPage && prefix_.page(node, g) == kNoPage) prefix_.set_page(node, g, page);
  }
  prefix_.pin(node);
  prefix_.unpin(table.node);
  table.node = node;
  return true;
}

int64_t KvCache::commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed) {
  const int64_t full = num_computed / geometry_.page_size();
  if (full == table.num_full) return 0;
  if (table.publishing) {
    extend_hashes(table, tokens);
    for (int64_t b = table.num_full; b < full && table.publishing; ++b) {
      table.publishing = publish_block(table, tokens, b);
    }
  }
  table.num_full = full;
  return release_out_of_reach(table, num_computed);
}

int64_t KvCache::release_out_of_reach(BlockTable& table, int64_t num_computed) {
  int64_t released = 0;
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    int64_t& live = table.first_live[static_cast<size_t>(g)];
    for (const int64_t first = geometry_.first_needed_block(g, num_computed); live < first; ++live) {
      int32_t& entry = table.entries[slot(table, g, live)];
      pool_.release(entry);
      entry = kNoPage;
      table.history.note(g, live);
      ++released;
    }
  }
  table.num_pages -= released;
  return released;
}

void KvCache::fork(BlockTable& from, BlockTable& to) {
  BAM_CHECK(to.num_blocks == 0);
  from.tail_shared = true;
  BlockTable copy = from;
  to = std::move(copy);  // all of it or nothing
  for (int g = 0; g < geometry_.num_groups(); ++g) {
    for (int64_t b = to.first_live[static_cast<size_t>(g)]; b < to.num_blocks; ++b) {
      pool_.add_ref(to.entries[slot(to, g, b)]);
    }
  }
  if (to.node != PrefixCache::kNone) prefix_.pin(to.node);
}

void KvCache::release(BlockTable& table) {
  for (int64_t b = table.num_blocks; b-- > 0;) {
    for (int g = 0; g < geometry_.num_groups(); ++g) {
      int32_t& entry = table.entries[slot(table, g, b)];
      if (entry == kNoPage) continue;
      pool_.release(entry);
      entry = kNoPage;
    }
  }
  table.history.start_over(geometry_.num_groups());
  if (table.node != PrefixCache::kNone) prefix_.unpin(table.node);
  table.node = PrefixCache::kNone;
  table.num_blocks = table.num_pages = table.num_full = 0;
  table.tail_shared = false;
}

void KvCache::quarantine(BlockTable& table, std::span<const int32_t> tokens, int64_t from_block) {
  walk(table, tokens, static_cast<int64_t>(tokens.size()) / geometry_.page_size());
  for (int64_t b = static_cast<int64_t>(chain_.size()); b-- > from_block;) {
    prefix_.unpublish_node(chain_[static_cast<size_t>(b)]);
  }
  release(table);
}

PromptScores::Found KvCache::find_scores(BlockTable& table, std::span<const int32_t> tokens, int32_t num_top) {
  PromptScores::Found found;
  if (!prefix_.scores().enabled()) return found;
  walk(table, tokens, static_cast<int64_t>(tokens.size()) / geometry_.page_size());
  for (const int32_t node : chain_) {
    auto scores = prefix_.scores().find(block_before(prefix_, node), node, num_top);
    if (!scores) break;
    found.push_back(std::move(scores));
  }
  return found;
}

void KvCache::keep_scores(const BlockTable& table, const PromptScores::Block& block) {
  if (!table.publishing || block.index >= table.num_full) return;
  int32_t node = table.node;
  for (int64_t b = table.num_full - 1; b > block.index; --b) node = prefix_.parent(node);
  prefix_.scores().put(block_before(prefix_, node), node, block.scores);
}

std::vector<int32_t> KvCache::cached_chain(const std::string& salt, std::span<const int32_t> tokens) {
  BlockTable table;
  table.salt = salt;
  walk(table, tokens, static_cast<int64_t>(tokens.size()) / geometry_.page_size());
  chain_.resize(static_cast<size_t>(usable_blocks()));
  return chain_;
}

std::optional<std::vector<int32_t>> KvCache::allocate_pages(int64_t count) {
  if (count > pool_.num_available()) return std::nullopt;
  std::vector<int32_t> pages(static_cast<size_t>(count));
  for (int32_t& page : pages) page = allocate_page();  // never throws
  return pages;
}

void KvCache::release_pages(std::span<const int32_t> pages) {
  for (const int32_t page : pages) pool_.release(page);
}

std::vector<int32_t> KvCache::insert_chain(const std::string& salt, std::span<const int32_t> tokens) {
  BAM_CHECK(prefix_enabled_);
  std::vector<int32_t> chain;
  chain.reserve(tokens.size() / static_cast<size_t>(geometry_.page_size()));
  Hash128 hash = prefix_.root_hash(salt);
  const int32_t root = prefix_.insert_root(salt);
  if (root == PrefixCache::kNone) return chain;
  prefix_.pin(root);
  int32_t node = root;
  const int64_t blocks = static_cast<int64_t>(tokens.size()) / geometry_.page_size();
  for (int64_t b = 0; b < blocks && node != PrefixCache::kNone; ++b) {
    hash = hash_chain(hash, block_tokens(tokens, b));
    node = prefix_.insert(node, hash, block_tokens(tokens, b));
    if (node != PrefixCache::kNone) chain.push_back(node);
  }
  prefix_.unpin(root);  // a child keeps it, if there is one
  return chain;
}

void KvCache::pin_chain(std::span<const int32_t> chain) {
  if (!chain.empty()) prefix_.pin(chain.back());  // and with it all before: they have a child
}

void KvCache::unpin_chain(std::span<const int32_t> chain) {
  if (!chain.empty()) prefix_.unpin(chain.back());
}

void KvCache::adopt_page(int32_t node, int group, int32_t page) {
  if (prefix_.page(node, group) == kNoPage) prefix_.set_page(node, group, page);
  pool_.release(page);
}

std::string KvCache::check_integrity() const {
  std::string problem = pool_.check_integrity();
  return problem.empty() ? prefix_.check_integrity() : problem;
}

}  // namespace bam
