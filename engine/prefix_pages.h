// Pages of the prefix cache as files and stores see them: by block and by group, counted through all stages, so that it does
// not matter how layers are spread over ranks, then and now.
//
// The engine thread copies them, a bounded piece between two steps, and nothing is held meanwhile but the nodes of a
// chain: a disk or a network that hangs holds up its caller and nobody else. Any thread but the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_file.h"
#include "engine/kv_geometry.h"
#include "kernels/paged_kv.h"

namespace bam {

class StagedKv;
class StepRunner;

class PrefixPages {
 public:
  // Runs a function on the engine thread between two steps. Throws what it throws, and SnapshotError when the engine
  // has stopped.
  using BetweenSteps = std::function<void(const std::function<void()>&)>;
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  struct Place {
    int64_t block = 0;
    int group = 0;
  };

  // Blocks of a prefix: their nodes stay as long as it lives, their pages may be evicted.
  class Chain {
   public:
    explicit Chain(PrefixPages& pages) : pages_(pages) {}
    Chain(const Chain&) = delete;
    ~Chain();
    int64_t num_blocks() const { return nodes_.empty() ? 0 : static_cast<int64_t>(nodes_.front().size()); }
    // The engine is gone, and its cache with it.
    void abandon() { nodes_.clear(); }

   private:
    friend class PrefixPages;
    void pin(std::vector<std::vector<int32_t>> nodes);
    bool whole() const;  // no rank was lost since
    void check_whole() const;

    PrefixPages& pages_;
    std::vector<std::vector<int32_t>> nodes_;  // [stages][blocks]
    uint64_t generation_ = 0;
  };

  // The others outlive it.
  PrefixPages(SnapshotIdentity identity, StagedKv& kv, StepRunner& runner, const KvLayout& layout,
              BetweenSteps between_steps, size_t piece_bytes = kPieceBytes);

  bool enabled() const;
  const KvGeometry& geometry() const { return geometry_; }
  const KvLayout& layout() const { return layout_; }
  size_t page_bytes() const { return layout_.page_bytes(); }
  KvFileFormat format() const { return {identity_, geometry_, layout_}; }
  // What read() and write() should be asked for at once, at most.
  size_t pages_per_piece() const;

  // All of these throw SnapshotError.

  // Of `tokens`, those that can be continued from.
  int64_t num_cached(const std::string& salt, std::span<const int32_t> tokens);

  // Fills a new chain with the longest prefix of `tokens` that can be continued from. Returns the pages that it has.
  std::vector<Place> find(const std::string& salt, std::span<const int32_t> tokens, Chain& chain);
  // Fills a new chain with all whole blocks of `tokens`, if there is room for these pages of it.
  void insert(const std::string& salt, std::span<const int32_t> tokens, std::span<const Place> pages, Chain& chain);
  // Nobody's old bytes are in what is read.
  void read(const Chain& chain, std::span<const Place> places, std::span<std::byte> out);
  // Publishes pages; those that the cache has meanwhile are given up.
  void write(const Chain& chain, std::span<const Place> places, std::span<const std::byte> in);

 private:
  // A page in the caches of the stages.
  struct Slot {
    int stage, group;  // counted in the stage
    int32_t node;
  };
  Slot slot(const Chain& chain, const Place& place) const;
  void check_room(std::span<const Place> places) const;
  bool read_slots(std::span<const Slot> slots, std::span<std::byte> out);
  void write_slots(std::span<const Slot> slots, std::span<const std::byte> in);

  const SnapshotIdentity identity_;
  StagedKv& kv_;  // pages and nodes: between steps only
  StepRunner& runner_;
  const KvLayout layout_;
  const KvGeometry geometry_;  // of all stages
  const BetweenSteps between_steps_;
  const size_t piece_bytes_;
};

}  // namespace bam
