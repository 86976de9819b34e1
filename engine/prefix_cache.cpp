#include "engine/prefix_cache.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace bam {

namespace {

std::vector<int32_t> salt_content(std::string_view salt) { return std::vector<int32_t>(salt.begin(), salt.end()); }

}  // namespace

Hash128 hash_chain(const Hash128& parent, std::span<const int32_t> tokens) {
  const Hash128 links[2] = {parent, hash_bytes_128(std::as_bytes(tokens))};
  return hash_bytes_128(std::as_bytes(std::span(links)));
}

PrefixCache::PrefixCache(BlockPool& pool, int page_size, std::vector<bool> unbounded, uint64_t fingerprint)
    : pool_(pool),
      page_size_(page_size),
      num_groups_(unbounded.size()),
      unbounded_(std::move(unbounded)),
      fingerprint_(fingerprint) {
  num_unbounded_ = static_cast<int32_t>(std::count(unbounded_.begin(), unbounded_.end(), true));
}

Hash128 PrefixCache::root_hash(std::string_view salt) const {
  return hash_chain({fingerprint_, 0}, salt_content(salt));
}

int32_t PrefixCache::find_root(std::string_view salt) const {
  return lookup(kNone, root_hash(salt), salt_content(salt));
}

int32_t PrefixCache::insert_root(std::string_view salt) {
  const int32_t found = find_root(salt);
  return found != kNone ? found : create(kNone, root_hash(salt), salt_content(salt));
}

int32_t PrefixCache::lookup(int32_t parent, const Hash128& hash, std::span<const int32_t> content) const {
  const auto it = index_.find(hash);
  if (it == index_.end()) return kNone;
  const Node& node = nodes_[static_cast<size_t>(it->second)];
  const bool same = node.parent == parent && std::ranges::equal(node.content, content);
  return same ? it->second : kNone;
}

int32_t PrefixCache::find(int32_t parent, const Hash128& hash, std::span<const int32_t> tokens) const {
  return lookup(parent, hash, tokens);
}

int32_t PrefixCache::insert(int32_t parent, const Hash128& hash, std::span<const int32_t> tokens) {
  BAM_CHECK(static_cast<int>(tokens.size()) == page_size_);
  const int32_t found = lookup(parent, hash, tokens);
  return found != kNone ? found : create(parent, hash, tokens);
}

int32_t PrefixCache::create(int32_t parent, const Hash128& hash, std::span<const int32_t> content) {
  if (index_.contains(hash)) return kNone;  // a collision: the first one stays
  // All that may run out of memory comes first; collect() never allocates.
  std::vector<int32_t> own(content.begin(), content.end());
  if (free_nodes_.empty()) {
    const size_t count = nodes_.size() + 1;
    if (free_nodes_.capacity() < count) free_nodes_.reserve(2 * count);
    pages_.resize(count * num_groups_, kNoPage);
    nodes_.emplace_back();
    free_nodes_.push_back(static_cast<int32_t>(count - 1));
  }
  const int32_t id = free_nodes_.back();
  index_.emplace(hash, id);
  free_nodes_.pop_back();
  Node& node = nodes_[static_cast<size_t>(id)];
  node.hash = hash;
  node.parent = parent;
  node.live = true;
  node.content = std::move(own);
  if (parent != kNone) pin(parent);
  return id;
}

void PrefixCache::set_page(int32_t node, int group, int32_t page) {
  int32_t& entry = pages_[slot(node, group)];
  BAM_CHECK(entry == kNoPage);
  pool_.publish(page, {node, group});
  entry = page;
  Node& n = nodes_[static_cast<size_t>(node)];
  const bool was_usable = usable(n);
  ++n.num_pages;
  n.num_unbounded += unbounded_[static_cast<size_t>(group)];
  tell(n, was_usable);
}

void PrefixCache::tell(const Node& node, bool was_usable) {
  if (log_ == nullptr || usable(node) == was_usable) return;
  if (was_usable) return log_->removed(node.hash.lo);
  const Node& parent = nodes_[static_cast<size_t>(node.parent)];
  const bool first = parent.parent == kNone;  // below the root of its salt
  log_->stored(node.hash.lo, first ? std::nullopt : std::optional(parent.hash.lo), node.content);
}

std::vector<uint64_t> PrefixCache::usable_hashes() const {
  std::vector<uint64_t> hashes;
  for (const Node& node : nodes_) {
    if (node.live && usable(node)) hashes.push_back(node.hash.lo);
  }
  return hashes;
}

void PrefixCache::drop_page(int32_t node, int group) {
  pages_[slot(node, group)] = kNoPage;
  Node& n = nodes_[static_cast<size_t>(node)];
  const bool was_usable = usable(n);
  --n.num_pages;
  n.num_unbounded -= unbounded_[static_cast<size_t>(group)];
  tell(n, was_usable);
}

void PrefixCache::forget(PageOwner owner) {
  drop_page(owner.node, owner.group);
  collect(owner.node);
}

void PrefixCache::unpublish_node(int32_t node) {
  scores_.drop(node);
  for (int group = 0; group < static_cast<int>(num_groups_); ++group) {
    const int32_t page = pages_[slot(node, group)];
    if (page == kNoPage) continue;
    pool_.unpublish(page);
    drop_page(node, group);
  }
  collect(node);
}

void PrefixCache::unpin(int32_t node) {
  --nodes_[static_cast<size_t>(node)].refs;
  collect(node);
}

void PrefixCache::collect(int32_t node) {
  while (node != kNone) {
    Node& n = nodes_[static_cast<size_t>(node)];
    if (!n.live || n.refs > 0 || n.num_pages > 0) return;
    const int32_t parent = n.parent;
    index_.erase(n.hash);
    scores_.drop(node);
    n.live = false;
    free_nodes_.push_back(node);
    if (parent != kNone) --nodes_[static_cast<size_t>(parent)].refs;
    node = parent;
  }
}

std::string PrefixCache::check_integrity() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  size_t live = 0;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (!node.live) continue;
    ++live;
    if (node.parent != kNone) ++children[static_cast<size_t>(node.parent)];
    int32_t pages = 0, unbounded = 0;
    for (size_t g = 0; g < num_groups_; ++g) {
      const int32_t page = pages_[id * num_groups_ + g];
      if (page == kNoPage) continue;
      ++pages;
      unbounded += unbounded_[g];
      const PageOwner owner = pool_.owner(page);
      if (owner.node != static_cast<int32_t>(id) || owner.group != static_cast<int32_t>(g)) {
        return fmt::format("page {} of node {} group {} belongs to node {} group {}", page, id, g, owner.node,
                           owner.group);
      }
    }
    if (pages != node.num_pages || unbounded != node.num_unbounded) {
      return fmt::format("node {} counts {} pages and has {}", id, node.num_pages, pages);
    }
    if (pages == 0 && node.refs == 0) return fmt::format("node {} is dead but listed", id);
  }
  for (size_t id = 0; id < nodes_.size(); ++id) {
    if (!nodes_[id].live) continue;
    if (nodes_[id].refs < children[id]) return fmt::format("node {} lost a child", id);
    const int32_t parent = nodes_[id].parent;
    if (parent != kNone && !nodes_[static_cast<size_t>(parent)].live) {
      return fmt::format("node {} has a dead parent", id);
    }
  }
  if (live != index_.size()) return "the index and the nodes differ";
  return {};
}

}  // namespace bam
