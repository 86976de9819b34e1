// KV pages of a prefix on disk, so that a long document is read once and survives a restart; see kv_file.h.
//
// Files are read and written by the thread that asks. The engine thread only copies pages, a bounded piece between two
// steps, and holds none of them meanwhile: a disk that hangs holds up its caller and nobody else. Pages are stored by group,
// so that it does not matter how layers are spread over stages, then and now.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/kv_file.h"
#include "engine/staged_kv.h"
#include "engine/step_runner.h"

namespace bam {

class BamModel;

// Of pages that this model computes, as one stage or as all. reach: of all groups of all stages. The tokenizer's
// fingerprint is the caller's.
SnapshotIdentity snapshot_identity(BamModel& model, const std::vector<int64_t>& reach, uint64_t tokenizer_fingerprint);

class SnapshotStore {
 public:
  // Runs a function on the engine thread between two steps. Throws what it throws, and SnapshotError when the engine
  // has stopped.
  using BetweenSteps = std::function<void(const std::function<void()>&)>;
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  // directory may be empty: then every call is refused. Removes what dead processes left there; throws UsageError when
  // it is no folder. The others outlive the store.
  SnapshotStore(std::filesystem::path directory, SnapshotIdentity identity, StagedKv& kv, StepRunner& runner,
                const KvLayout& layout, BetweenSteps between_steps, size_t piece_bytes = kPieceBytes);

  // The longest prefix of `tokens` whose pages are cached. Any thread but the engine's; one call at a time works, others
  // wait a while for it and then give up.
  SnapshotResult save(const std::string& name, const std::vector<int32_t>& tokens, const std::string& salt);
  // Likewise. The file has been checked as a whole before the cache is touched.
  SnapshotResult restore(const std::string& name);

 private:
  class Chain;
  struct PagePlace;
  std::filesystem::path path_of(const std::string& name) const;
  template <typename F>
  SnapshotResult guarded(F work);
  std::string save_now(const std::string& name, const std::vector<int32_t>& tokens, const std::string& salt);
  std::string restore_now(const std::string& name);
  KvFileFormat format() const { return {identity_, geometry_, layout_}; }
  size_t pages_per_piece() const;
  // Between steps. False: one of them was evicted.
  bool read_pages(std::span<const PagePlace> places, std::span<std::byte> out);
  void write_pages(std::span<const PagePlace> places, std::span<const std::byte> in);

  const std::filesystem::path directory_;
  const SnapshotIdentity identity_;
  StagedKv& kv_;  // pages and nodes: between steps only
  StepRunner& runner_;
  const KvLayout layout_;
  const KvGeometry geometry_;  // of all stages: groups are counted through them
  const BetweenSteps between_steps_;
  const size_t piece_bytes_;
  std::timed_mutex in_use_;
};

}  // namespace bam
