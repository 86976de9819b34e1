#include "engine/snapshot.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/log.h"
#include "models/bam.h"

namespace bam {

namespace {

constexpr int64_t kExtraTokens = 1024;  // kept beyond a bounded window, for prompts that part a little earlier
constexpr auto kPatience = std::chrono::seconds(30);

std::vector<int64_t> all_reach(const StagedKv& kv) {
  std::vector<int64_t> reach;
  for (int stage = 0; stage < kv.num_stages(); ++stage) {
    const std::vector<int64_t>& own = kv.stage(stage).geometry().reach();
    reach.insert(reach.end(), own.begin(), own.end());
  }
  return reach;
}

// Pages were lost with a rank while they were being copied.
SnapshotError lost_pages(const std::string& name) {
  return SnapshotError(SnapshotFault::kBusy, "snapshot {}: the cache was lost meanwhile: try again", name);
}

}  // namespace

// A page of a block: where it is in the prefix cache, or where it will be.
struct SnapshotStore::PagePlace {
  int stage, group;  // counted in the stage
  int32_t node;
};

SnapshotIdentity snapshot_identity(BamModel& model, const std::vector<int64_t>& reach, uint64_t tokenizer_fingerprint) {
  const ModelOptions& options = model.options();
  uint64_t h = hash_bytes(std::as_bytes(std::span(reach)));
  h = hash_bytes(std::as_bytes(std::span(&options.attention.epsilon, 1)), h);
  const std::string arithmetic = model.backend().numerics();
  h = hash_bytes(std::as_bytes(std::span(arithmetic)), h);
  h = hash_number(static_cast<uint64_t>(options.weight_dtype), h);
  return {model.fingerprint(), tokenizer_fingerprint, hash_number(options.attention.certified, h)};
}

// Nodes of the prefix caches of all stages that stay while their pages are copied.
class SnapshotStore::Chain {
 public:
  explicit Chain(SnapshotStore& store) : store_(store) {}
  Chain(const Chain&) = delete;
  ~Chain() {
    if (nodes_.empty()) return;
    try {
      store_.between_steps_([&] {
        if (!whole()) return;
        for (size_t s = 0; s < nodes_.size(); ++s) store_.kv_.stage(static_cast<int>(s)).unpin_chain(nodes_[s]);
      });
    } catch (const std::exception&) {  // the engine has stopped, its cache goes too
    }
  }
  // Between steps. nodes: [stages][blocks]
  void pin(std::vector<std::vector<int32_t>> nodes) {
    for (size_t s = 0; s < nodes.size(); ++s) store_.kv_.stage(static_cast<int>(s)).pin_chain(nodes[s]);
    nodes_ = std::move(nodes);
    generation_ = store_.kv_.generation();
  }
  // Between steps: no rank was lost since.
  bool whole() const { return generation_ == store_.kv_.generation(); }
  size_t num_blocks() const { return nodes_.front().size(); }  // of a chain that was cached
  const std::vector<int32_t>& nodes(int stage) const { return nodes_[static_cast<size_t>(stage)]; }

 private:
  SnapshotStore& store_;
  std::vector<std::vector<int32_t>> nodes_;
  uint64_t generation_ = 0;
};

SnapshotStore::SnapshotStore(std::filesystem::path directory, SnapshotIdentity identity, StagedKv& kv,
                             StepRunner& runner, const KvLayout& layout, BetweenSteps between_steps, size_t piece_bytes)
    : directory_(std::move(directory)),
      identity_(identity),
      kv_(kv),
      runner_(runner),
      layout_(layout),
      geometry_(kv.page_size(), all_reach(kv), kv.page_size()),
      between_steps_(std::move(between_steps)),
      piece_bytes_(piece_bytes) {
  if (directory_.empty()) return;
  std::error_code error;
  if (!std::filesystem::is_directory(directory_, error)) {
    throw UsageError("--kv-dir: {} is not a folder that exists", directory_.string());
  }
  if (const int removed = remove_abandoned_kv_files(directory_); removed > 0) {
    log::info("--kv-dir: {} unfinished snapshots of an earlier process were removed", removed);
  }
}

size_t SnapshotStore::pages_per_piece() const { return std::max<size_t>(1, piece_bytes_ / layout_.page_bytes()); }

std::filesystem::path SnapshotStore::path_of(const std::string& name) const {
  const auto refuse = [](const char* why) { return SnapshotError(SnapshotFault::kRefused, "{}", why); };
  if (directory_.empty()) throw refuse("snapshots are off: start with --kv-dir");
  if (!kv_.prefix_enabled()) throw refuse("snapshots need the prefix cache, which is off");
  const bool legal = !name.empty() && name.size() <= 128 && std::ranges::all_of(name, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
  if (!legal) throw refuse("a snapshot name has 1 to 128 of the characters A-Z a-z 0-9 . _ -");
  return directory_ / (name + ".bamkv");
}

template <typename F>
SnapshotResult SnapshotStore::guarded(F work) {
  try {
    const std::unique_lock lock(in_use_, kPatience);
    if (!lock) return SnapshotError(SnapshotFault::kBusy, "another snapshot is being written or read: try again later");
    return work();
  } catch (const SnapshotError& error) {
    return error;
  } catch (const std::exception& error) {
    return SnapshotError(SnapshotFault::kFailed, "the snapshot failed: {}", error.what());
  }
}

SnapshotResult SnapshotStore::save(const std::string& name, const std::vector<int32_t>& tokens,
                                   const std::string& salt) {
  return guarded([&] { return save_now(name, tokens, salt); });
}

SnapshotResult SnapshotStore::restore(const std::string& name) {
  return guarded([&] { return restore_now(name); });
}

bool SnapshotStore::read_pages(std::span<const PagePlace> places, std::span<std::byte> out) {
  const size_t bytes = layout_.page_bytes();
  std::vector<int32_t> ids;
  std::vector<size_t> at;
  std::vector<std::byte> own;
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    ids.clear();
    at.clear();
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].stage != stage) continue;
      ids.push_back(kv_.stage(stage).prefix().page(places[i].node, places[i].group));
      at.push_back(i);
      if (ids.back() == kNoPage) return false;
    }
    if (ids.empty()) continue;
    if (ids.size() == places.size()) {
      runner_.read_pages(stage, ids, out);
      continue;
    }
    own.resize(ids.size() * bytes);
    runner_.read_pages(stage, ids, own);
    for (size_t i = 0; i < at.size(); ++i) std::memcpy(out.data() + at[i] * bytes, own.data() + i * bytes, bytes);
  }
  return true;
}

std::string SnapshotStore::save_now(const std::string& name, const std::vector<int32_t>& tokens,
                                    const std::string& salt) {
  const std::filesystem::path path = path_of(name);
  const int groups = geometry_.num_groups();
  Chain chain(*this);
  KvFileIndex index;
  std::vector<PagePlace> pages;
  std::vector<int64_t> blocks_of;  // [pages]
  between_steps_([&] {
    chain.pin(kv_.cached_chains(salt, tokens));
    const int64_t blocks = static_cast<int64_t>(chain.num_blocks()), kept = blocks * geometry_.page_size();
    index.present.resize(static_cast<size_t>((blocks * groups + 7) / 8));
    for (int64_t b = 0; b < blocks; ++b) {
      for (int stage = 0, g = 0; stage < kv_.num_stages(); ++stage) {
        const int32_t node = chain.nodes(stage)[static_cast<size_t>(b)];
        for (int own = 0; own < kv_.stage(stage).geometry().num_groups(); ++own, ++g) {
          if (kv_.stage(stage).prefix().page(node, own) == kNoPage) continue;
          if (b < geometry_.first_needed_block(g, std::max<int64_t>(0, kept - kExtraTokens))) continue;
          index.set(static_cast<uint64_t>(b * groups + g));
          pages.push_back({stage, own, node});
          blocks_of.push_back(b);
        }
      }
    }
  });
  if (chain.num_blocks() == 0) {
    throw SnapshotError(SnapshotFault::kRefused,
                        "snapshot {}: none of the {} tokens is in the prefix cache (blocks have {} tokens)", name,
                        tokens.size(), geometry_.page_size());
  }
  const int64_t kept_tokens = static_cast<int64_t>(chain.num_blocks()) * geometry_.page_size();
  index.salt = salt;
  index.tokens.assign(tokens.begin(), tokens.begin() + kept_tokens);

  KvFileWriter file(path, format(), index);
  const size_t page_bytes = layout_.page_bytes(), piece = pages_per_piece();
  std::vector<std::byte> buffer(std::min(piece, pages.size()) * page_bytes);
  for (size_t first = 0; first < pages.size(); first += piece) {
    const auto places = std::span(pages).subspan(first, std::min(piece, pages.size() - first));
    const auto bytes = std::span(buffer).first(places.size() * page_bytes);
    bool whole = false, there = false;
    between_steps_([&] {
      whole = chain.whole();
      there = whole && read_pages(places, bytes);
    });
    if (!whole) throw lost_pages(name);
    if (!there) {
      throw SnapshotError(SnapshotFault::kBusy, "snapshot {}: pages were evicted while they were being saved", name);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      clear_unused_bytes(layout_, blocks_of[first + i], bytes.subspan(i * page_bytes, page_bytes));
    }
    file.append(bytes);
  }
  file.commit();
  return fmt::format("saved {} tokens in {} pages ({:.1f} MiB) as {}", kept_tokens, pages.size(),
                     static_cast<double>(pages.size() * page_bytes) / (1 << 20), path.filename().string());
}

// Publishes the pages of places whose node is there; those of blocks whose hash another block has are given up.
void SnapshotStore::write_pages(std::span<const PagePlace> places, std::span<const std::byte> in) {
  const size_t bytes = layout_.page_bytes();
  std::vector<size_t> at;
  std::vector<std::byte> own;
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    at.clear();
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].stage == stage) at.push_back(i);
    }
    if (at.empty()) continue;
    std::span<const std::byte> from = in;
    if (at.size() < places.size()) {
      own.resize(at.size() * bytes);
      for (size_t i = 0; i < at.size(); ++i) std::memcpy(own.data() + i * bytes, in.data() + at[i] * bytes, bytes);
      from = own;
    }
    KvCache& kv = kv_.stage(stage);
    const auto pages = kv.allocate_pages(static_cast<int64_t>(at.size()));
    if (!pages) throw Error("{} pages are not available", at.size());
    try {
      runner_.write_pages(stage, *pages, from);
    } catch (...) {
      kv.release_pages(*pages);
      throw;
    }
    for (size_t i = at.size(); i-- > 0;) {
      const PagePlace& place = places[at[i]];
      const int32_t page = (*pages)[i];
      if (place.node != PrefixCache::kNone) {
        kv.adopt_page(place.node, place.group, page);
      } else {
        kv.release_pages({&page, 1});
      }
    }
  }
}

std::string SnapshotStore::restore_now(const std::string& name) {
  const std::filesystem::path path = path_of(name);
  const KvFileReader file(path, format());
  const KvFileIndex& index = file.index();
  const size_t page_bytes = layout_.page_bytes(), piece = pages_per_piece();
  const uint64_t num_pages = index.num_pages;
  std::vector<std::byte> buffer(std::min<size_t>(piece, num_pages) * page_bytes);
  const auto count_at = [&](uint64_t first) { return std::min<size_t>(piece, num_pages - first); };
  // All of it is checked before anything is believed.
  for (uint64_t first = 0; first < num_pages; first += piece) {
    file.read(first, std::span(buffer).first(count_at(first) * page_bytes));
  }

  std::vector<PagePlace> places;  // [present pages] first with blocks for nodes
  std::vector<int64_t> needed(static_cast<size_t>(kv_.num_stages()));
  const size_t groups = static_cast<size_t>(geometry_.num_groups());
  for (uint64_t bit = 0; bit < index.present.size() * 8; ++bit) {
    if (!index.has(bit)) continue;
    int stage = 0, group = static_cast<int>(bit % groups);
    for (; group >= kv_.stage(stage).geometry().num_groups(); ++stage)
      group -= kv_.stage(stage).geometry().num_groups();
    places.push_back({stage, group, static_cast<int32_t>(bit / groups)});
    ++needed[static_cast<size_t>(stage)];
  }
  Chain chain(*this);
  const auto check_room = [&](int stage, int64_t pages) {
    const int64_t available = kv_.stage(stage).num_available();
    if (pages <= available) return;
    throw SnapshotError(SnapshotFault::kRefused, "snapshot {} is refused: it needs {} pages and only {} are not in use",
                        name, pages, available);
  };
  between_steps_([&] {
    std::vector<std::vector<int32_t>> nodes;
    for (int stage = 0; stage < kv_.num_stages(); ++stage) check_room(stage, needed[static_cast<size_t>(stage)]);
    for (int stage = 0; stage < kv_.num_stages(); ++stage) {
      nodes.push_back(kv_.stage(stage).insert_chain(index.salt, index.tokens));
    }
    for (PagePlace& place : places) {
      const std::vector<int32_t>& chain_nodes = nodes[static_cast<size_t>(place.stage)];
      const auto block = static_cast<size_t>(place.node);
      place.node = block < chain_nodes.size() ? chain_nodes[block] : PrefixCache::kNone;
    }
    chain.pin(std::move(nodes));
  });
  // The newest blocks first: as with computed pages, these are then evicted first.
  for (uint64_t end = num_pages; end > 0;) {
    const uint64_t first = (end - 1) / piece * piece;
    const size_t count = end - first;
    const auto bytes = std::span(buffer).first(count * page_bytes);
    const auto part = std::span(places).subspan(first, count);
    file.read(first, bytes);
    between_steps_([&] {
      if (!chain.whole()) throw lost_pages(name);
      std::ranges::fill(needed, 0);
      for (const PagePlace& place : part) ++needed[static_cast<size_t>(place.stage)];
      for (int stage = 0; stage < kv_.num_stages(); ++stage) check_room(stage, needed[static_cast<size_t>(stage)]);
      write_pages(part, bytes);
    });
    end = first;
  }
  return fmt::format("restored {} tokens in {} pages from {}", index.tokens.size(), num_pages,
                     path.filename().string());
}

}  // namespace bam
