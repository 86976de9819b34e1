// One prompt from the prefix cache to a store, or the other way round.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_pages.h"
#include "engine/stats.h"
#include "server/store/kv_object.h"
#include "server/store/object_store.h"

namespace bam {

// The way to an engine for threads that may still hang in a system call when it is gone.
class PrefixDoor {
 public:
  explicit PrefixDoor(PrefixPages& pages) : pages_(&pages) {}
  // False: it is shut.
  bool use(const std::function<void(PrefixPages&)>& work);
  // Waits for those who are inside.
  void shut();

 private:
  std::shared_mutex mutex_;
  PrefixPages* pages_;
};

// Objects that a store should have and has not, or had damaged: they are written again when their pages are there.
class StoreHoles {
 public:
  void add(const ObjectName& name);
  bool take(const ObjectName& name);

 private:
  std::mutex mutex_;
  std::set<ObjectName> names_;
};

class PrefixTransfer {
 public:
  // Where prefixes are cut, from which all replicas with the same settings come to the same objects.
  struct Cut {
    int64_t stretch_tokens;
    uint64_t part_bytes;
  };
  PrefixTransfer(PrefixDoor& door, PrefixPages& pages, Cut cut, StoreHoles& holes, PrefixStoreStats& stats);

  // Both throw StoreError when the place fails, SnapshotError when the engine cannot go on. The deadline is also looked
  // at between objects.
  //
  // Restores the longest prefix of `tokens` that the store has. Returns how many tokens more are cached now.
  int64_t restore(ObjectStore& store, std::span<const int32_t> tokens, const std::string& salt,
                  ObjectStore::Deadline deadline);
  // Writes what the store does not have of a prompt whose pages are cached.
  void save(ObjectStore& store, std::span<const int32_t> tokens, const std::string& salt,
            std::chrono::milliseconds patience);

 private:
  using Place = PrefixPages::Place;
  class PinnedChain;
  struct Part {
    ObjectName name;
    std::vector<Place> pages;
  };
  int64_t stretches_of(std::span<const int32_t> tokens) const;
  std::vector<Part> parts(const PrefixNames& names, ObjectKind kind, int64_t index) const;
  // Leading stretches that are stored, of the first `count`.
  int64_t stored_stretches(ObjectStore& store, const PrefixNames& names, int64_t count,
                           const std::function<ObjectStore::Deadline()>& deadline) const;
  bool tail_stored(ObjectStore& store, const PrefixNames& names, int64_t end, ObjectStore::Deadline deadline) const;
  // Whether a part of it was missed.
  bool take_hole(const std::vector<Part>& parts);
  bool fetch(ObjectStore& store, const Part& part, PinnedChain& chain, ObjectStore::Deadline deadline);
  void write(ObjectStore& store, const Part& part, PinnedChain& chain, ObjectStore::Deadline deadline);
  // Throws if the engine is gone.
  void engine(const std::function<void(PrefixPages&)>& work);

  PrefixDoor& door_;
  const KvGeometry geometry_;
  const KvLayout layout_;
  const SnapshotIdentity identity_;
  const Cut cut_;
  const int64_t stretch_blocks_;
  const size_t pages_per_part_;
  StoreHoles& holes_;
  PrefixStoreStats& stats_;
  std::vector<std::byte> buffer_;  // one object
};

}  // namespace bam
