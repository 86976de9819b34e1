// KV pages of a prefix on disk, so that a long document is read once and survives a restart; see kv_file.h.
//
// Files are read and written by the thread that asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "engine/prefix_pages.h"

namespace bam {

class BamModel;

// Of pages that this model computes, as one stage or as all. reach: of all groups of all stages. The tokenizer's
// fingerprint is the caller's.
SnapshotIdentity snapshot_identity(BamModel& model, const std::vector<int64_t>& reach, uint64_t tokenizer_fingerprint);

class SnapshotStore {
 public:
  // directory may be empty: then every call is refused. Removes what dead processes left there; throws UsageError when
  // it is no folder. `pages` outlives the store.
  SnapshotStore(std::filesystem::path directory, PrefixPages& pages);

  // The longest prefix of `tokens` whose pages are cached. Any thread but the engine's; one call at a time works, others
  // wait a while for it and then give up.
  SnapshotResult save(const std::string& name, const std::vector<int32_t>& tokens, const std::string& salt);
  // Likewise. The file has been checked as a whole before the cache is touched.
  SnapshotResult restore(const std::string& name);

 private:
  std::filesystem::path path_of(const std::string& name) const;
  template <typename F>
  SnapshotResult guarded(F work);
  std::string save_now(const std::string& name, const std::vector<int32_t>& tokens, const std::string& salt);
  std::string restore_now(const std::string& name);

  const std::filesystem::path directory_;
  PrefixPages& pages_;
  std::timed_mutex in_use_;
};

}  // namespace bam
