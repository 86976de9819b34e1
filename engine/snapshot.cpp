#include "engine/snapshot.h"

#include <algorithm>
#include <chrono>
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

// A page of a block: where it is in the prefix cache.
struct PagePlace {
  int32_t node;
  int group;
};

}  // namespace

SnapshotIdentity snapshot_identity(BamModel& model, uint64_t tokenizer_fingerprint) {
  const ModelOptions& options = model.options();
  uint64_t h = hash_bytes(std::as_bytes(std::span(model.group_reach())));
  h = hash_bytes(std::as_bytes(std::span(&options.attention.epsilon, 1)), h);
  const std::string arithmetic = model.backend().numerics();
  h = hash_bytes(std::as_bytes(std::span(arithmetic)), h);
  h = hash_number(static_cast<uint64_t>(options.weight_dtype), h);
  return {model.fingerprint(), tokenizer_fingerprint, hash_number(options.attention.certified, h)};
}

// Nodes of the prefix cache that stay while their pages are copied.
class SnapshotStore::Chain {
 public:
  explicit Chain(SnapshotStore& store) : store_(store) {}
  Chain(const Chain&) = delete;
  ~Chain() {
    if (nodes_.empty()) return;
    try {
      store_.between_steps_([&] { store_.kv_.unpin_chain(nodes_); });
    } catch (const std::exception&) {  // the engine has stopped, its cache goes too
    }
  }
  // Between steps.
  void pin(std::vector<int32_t> nodes) {
    store_.kv_.pin_chain(nodes);
    nodes_ = std::move(nodes);
  }
  const std::vector<int32_t>& nodes() const { return nodes_; }

 private:
  SnapshotStore& store_;
  std::vector<int32_t> nodes_;
};

SnapshotStore::SnapshotStore(std::filesystem::path directory, SnapshotIdentity identity, KvCache& kv, Backend& backend,
                             const KvCacheView& view, BetweenSteps between_steps, size_t piece_bytes)
    : directory_(std::move(directory)),
      identity_(identity),
      kv_(kv),
      backend_(backend),
      view_(view),
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

size_t SnapshotStore::pages_per_piece() const { return std::max<size_t>(1, piece_bytes_ / view_.layout.page_bytes()); }

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

std::string SnapshotStore::save_now(const std::string& name, const std::vector<int32_t>& tokens,
                                    const std::string& salt) {
  const std::filesystem::path path = path_of(name);
  const KvGeometry& geometry = kv_.geometry();
  const int groups = geometry.num_groups();
  Chain chain(*this);
  KvFileIndex index;
  std::vector<PagePlace> pages;
  between_steps_([&] {
    chain.pin(kv_.cached_chain(salt, tokens));
    const int64_t blocks = static_cast<int64_t>(chain.nodes().size()), kept = blocks * geometry.page_size();
    index.present.resize(static_cast<size_t>((blocks * groups + 7) / 8));
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t node = chain.nodes()[static_cast<size_t>(b)];
      for (int g = 0; g < groups; ++g) {
        if (kv_.prefix().page(node, g) == kNoPage) continue;
        if (b < geometry.first_needed_block(g, std::max<int64_t>(0, kept - kExtraTokens))) continue;
        index.set(static_cast<uint64_t>(b * groups + g));
        pages.push_back({node, g});
      }
    }
  });
  if (chain.nodes().empty()) {
    throw SnapshotError(SnapshotFault::kRefused,
                        "snapshot {}: none of the {} tokens is in the prefix cache (blocks have {} tokens)", name,
                        tokens.size(), geometry.page_size());
  }
  const int64_t kept_tokens = static_cast<int64_t>(chain.nodes().size()) * geometry.page_size();
  index.salt = salt;
  index.tokens.assign(tokens.begin(), tokens.begin() + kept_tokens);

  KvFileWriter file(path, format(), index);
  const size_t page_bytes = view_.layout.page_bytes(), piece = pages_per_piece();
  std::vector<std::byte> buffer(std::min(piece, pages.size()) * page_bytes);
  std::vector<int32_t> ids;
  for (size_t first = 0; first < pages.size(); first += piece) {
    const auto places = std::span(pages).subspan(first, std::min(piece, pages.size() - first));
    const auto bytes = std::span(buffer).first(places.size() * page_bytes);
    between_steps_([&] {
      ids.clear();
      for (const PagePlace& place : places) ids.push_back(kv_.prefix().page(place.node, place.group));
      if (std::ranges::find(ids, kNoPage) == ids.end()) backend_.read_pages(view_, ids, bytes);
    });
    if (std::ranges::find(ids, kNoPage) != ids.end()) {
      throw SnapshotError(SnapshotFault::kBusy, "snapshot {}: pages were evicted while they were being saved", name);
    }
    file.append(bytes);
  }
  file.commit();
  return fmt::format("saved {} tokens in {} pages ({:.1f} MiB) as {}", kept_tokens, pages.size(),
                     static_cast<double>(pages.size() * page_bytes) / (1 << 20), path.filename().string());
}

std::string SnapshotStore::restore_now(const std::string& name) {
  const std::filesystem::path path = path_of(name);
  const KvFileReader file(path, format());
  const KvFileIndex& index = file.index();
  const size_t page_bytes = view_.layout.page_bytes(), piece = pages_per_piece();
  const uint64_t num_pages = index.num_pages;
  std::vector<std::byte> buffer(std::min<size_t>(piece, num_pages) * page_bytes);
  const auto count_at = [&](uint64_t first) { return std::min<size_t>(piece, num_pages - first); };
  // All of it is checked before anything is believed.
  for (uint64_t first = 0; first < num_pages; first += piece) {
    file.read(first, std::span(buffer).first(count_at(first) * page_bytes));
  }

  const size_t groups = static_cast<size_t>(kv_.geometry().num_groups());
  std::vector<uint64_t> bits;  // of the present pages
  for (uint64_t bit = 0; bit < index.present.size() * 8; ++bit) {
    if (index.has(bit)) bits.push_back(bit);
  }
  Chain chain(*this);
  const auto no_room = [&](int64_t available) {
    return SnapshotError(SnapshotFault::kRefused,
                         "snapshot {} is refused: it needs {} pages and only {} are not in use", name, num_pages,
                         available);
  };
  between_steps_([&] {
    if (static_cast<int64_t>(num_pages) > kv_.num_available()) throw no_room(kv_.num_available());
    chain.pin(kv_.insert_chain(index.salt, index.tokens));
  });
  // The newest blocks first: as with computed pages, these are then evicted first.
  for (uint64_t end = num_pages; end > 0;) {
    const uint64_t first = (end - 1) / piece * piece;
    const size_t count = end - first;
    const auto bytes = std::span(buffer).first(count * page_bytes);
    file.read(first, bytes);
    between_steps_([&] {
      const auto pages = kv_.allocate_pages(static_cast<int64_t>(count));
      if (!pages) throw no_room(kv_.num_available());
      try {
        backend_.write_pages(view_, *pages, bytes);
      } catch (...) {
        kv_.release_pages(*pages);
        throw;
      }
      for (size_t i = count; i-- > 0;) {
        const size_t block = bits[first + i] / groups;
        const int32_t page = (*pages)[i];
        if (block < chain.nodes().size()) {
          kv_.adopt_page(chain.nodes()[block], static_cast<int>(bits[first + i] % groups), page);
        } else {
          kv_.release_pages({&page, 1});  // another block has the same hash
        }
      }
    });
    end = first;
  }
  return fmt::format("restored {} tokens in {} pages from {}", index.tokens.size(), num_pages,
                     path.filename().string());
}

}  // namespace bam
