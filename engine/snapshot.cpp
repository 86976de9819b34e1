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
constexpr auto kFilePatience = std::chrono::seconds(30);

}  // namespace

SnapshotIdentity snapshot_identity(BamModel& model, const std::vector<int64_t>& reach, uint64_t tokenizer_fingerprint) {
  const ModelOptions& options = model.options();
  uint64_t h = hash_bytes(std::as_bytes(std::span(reach)));
  h = hash_bytes(std::as_bytes(std::span(&options.attention.epsilon, 1)), h);
  const std::string arithmetic = model.backend().numerics();
  h = hash_bytes(std::as_bytes(std::span(arithmetic)), h);
  h = hash_number(static_cast<uint64_t>(options.weight_dtype), h);
  return {model.fingerprint(), tokenizer_fingerprint, hash_number(options.attention.certified, h)};
}

SnapshotStore::SnapshotStore(std::filesystem::path directory, PrefixPages& pages)
    : directory_(std::move(directory)), pages_(pages) {
  if (directory_.empty()) return;
  std::error_code error;
  if (!std::filesystem::is_directory(directory_, error)) {
    throw UsageError("--kv-dir: {} is not a folder that exists", directory_.string());
  }
  if (const int removed = remove_abandoned_kv_files(directory_); removed > 0) {
    log::info("--kv-dir: {} unfinished snapshots of an earlier process were removed", removed);
  }
}

std::filesystem::path SnapshotStore::path_of(const std::string& name) const {
  const auto refuse = [](const char* why) { return SnapshotError(SnapshotFault::kRefused, "{}", why); };
  if (directory_.empty()) throw refuse("snapshots are off: start with --kv-dir");
  if (!pages_.enabled()) throw refuse("snapshots need the prefix cache, which is off");
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
    const std::unique_lock lock(in_use_, kFilePatience);
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
  const KvGeometry& geometry = pages_.geometry();
  PrefixPages::Chain chain(pages_);
  std::vector<PrefixPages::Place> pages = pages_.find(salt, tokens, chain);
  const int64_t kept_tokens = chain.num_blocks() * geometry.page_size();
  if (kept_tokens == 0) {
    throw SnapshotError(SnapshotFault::kRefused,
                        "snapshot {}: none of the {} tokens is in the prefix cache (blocks have {} tokens)", name,
                        tokens.size(), geometry.page_size());
  }
  std::erase_if(pages, [&](const PrefixPages::Place& page) {
    return page.block < geometry.first_needed_block(page.group, std::max<int64_t>(0, kept_tokens - kExtraTokens));
  });
  KvFileIndex index;
  index.salt = salt;
  index.tokens.assign(tokens.begin(), tokens.begin() + kept_tokens);
  index.present.resize(static_cast<size_t>((chain.num_blocks() * geometry.num_groups() + 7) / 8));
  for (const PrefixPages::Place& page : pages) {
    index.set(static_cast<uint64_t>(page.block * geometry.num_groups() + page.group));
  }

  KvFileWriter file(path, pages_.format(), index);
  const size_t page_bytes = pages_.page_bytes(), piece = pages_.pages_per_piece();
  std::vector<std::byte> buffer(std::min(piece, pages.size()) * page_bytes);
  for (size_t first = 0; first < pages.size(); first += piece) {
    const auto places = std::span(pages).subspan(first, std::min(piece, pages.size() - first));
    const auto bytes = std::span(buffer).first(places.size() * page_bytes);
    pages_.read(chain, places, bytes);
    file.append(bytes);
  }
  file.commit();
  return fmt::format("saved {} tokens in {} pages ({:.1f} MiB) as {}", kept_tokens, pages.size(),
                     static_cast<double>(pages.size() * page_bytes) / (1 << 20), path.filename().string());
}

std::string SnapshotStore::restore_now(const std::string& name) {
  const std::filesystem::path path = path_of(name);
  const KvFileReader file(path, pages_.format());
  const KvFileIndex& index = file.index();
  const size_t page_bytes = pages_.page_bytes(), piece = pages_.pages_per_piece();
  const uint64_t num_pages = index.num_pages;
  std::vector<std::byte> buffer(std::min<size_t>(piece, num_pages) * page_bytes);
  // All of it is checked before anything is believed.
  for (uint64_t first = 0; first < num_pages; first += piece) {
    file.read(first, std::span(buffer).first(std::min<size_t>(piece, num_pages - first) * page_bytes));
  }
  std::vector<PrefixPages::Place> places;  // [present pages]
  const auto groups = static_cast<uint64_t>(pages_.geometry().num_groups());
  for (uint64_t bit = 0; bit < index.present.size() * 8; ++bit) {
    if (index.has(bit)) places.push_back({static_cast<int64_t>(bit / groups), static_cast<int>(bit % groups)});
  }
  PrefixPages::Chain chain(pages_);
  pages_.insert(index.salt, index.tokens, places, chain);
  // The newest blocks first: as with computed pages, these are then evicted first.
  for (uint64_t end = num_pages; end > 0;) {
    const uint64_t first = (end - 1) / piece * piece;
    const auto bytes = std::span(buffer).first((end - first) * page_bytes);
    file.read(first, bytes);
    pages_.write(chain, std::span(places).subspan(first, end - first), bytes);
    end = first;
  }
  return fmt::format("restored {} tokens in {} pages from {}", index.tokens.size(), num_pages,
                     path.filename().string());
}

}  // namespace bam
