// KV pages of a prefix on disk, so that a long document is read once and survives a restart.
//
//   <kv_dir>/<name>.bamkv, little-endian:
//     header    fixed size: magic, version, identity of model and layout, counts, checksums of header and index
//     index     salt bytes, tokens [num_tokens] int32, one presence bit per (block, group)
//     pages     present ones, block by block: 64-bit checksum, then the raw page
//
// Written to a temporary file, flushed and renamed: a reader sees the whole snapshot or none. Anything that differs
// from the running engine, is truncated or altered is refused with a message that says what.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/kv_cache.h"
#include "kernels/backend.h"

namespace bam {

// Everything that must be equal for stored pages to mean the same.
struct SnapshotIdentity {
  uint64_t model = 0;
  uint64_t tokenizer = 0;
  uint64_t numerics = 0;  // weight dtype, attention options, reach of every group
};

class SnapshotStore {
 public:
  // directory may be empty: then every call is refused. The others outlive the store.
  SnapshotStore(std::filesystem::path directory, SnapshotIdentity identity, KvCache& kv, Backend& backend,
                const KvCacheView& view);

  // The longest prefix of `tokens` whose pages are cached.
  Result<std::string> save(const std::string& name, const std::vector<int32_t>& tokens, const std::string& salt);
  Result<std::string> restore(const std::string& name);

 private:
  Result<std::filesystem::path> path_of(const std::string& name) const;

  std::filesystem::path directory_;
  SnapshotIdentity identity_;
  KvCache& kv_;
  Backend& backend_;
  const KvCacheView& view_;
};

}  // namespace bam
