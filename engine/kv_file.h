// The file of a KV snapshot: its format, and reading and writing it. Blocks for as long as the disk does; never used by
// the engine thread.
//
//   <kv_dir>/<name>.bamkv, little-endian:
//     header   fixed size: magic, version, identity of model and layout, counts, checksums of the header and the index
//     index    salt bytes, tokens [num_tokens] int32, one presence bit per (block, group)
//     pages    the present ones, block by block: 64-bit checksum, then the raw page
//
// Written to a temporary file, flushed and renamed: a reader sees the whole snapshot or none. Anything that differs
// from the running engine, is truncated or altered is refused with a message that says what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_geometry.h"
#include "engine/snapshot_error.h"
#include "kernels/paged_kv.h"

namespace bam {

// Everything that must be equal for stored pages to mean the same.
struct SnapshotIdentity {
  uint64_t model = 0;
  uint64_t tokenizer = 0;
  uint64_t numerics = 0;  // weight dtype, attention options, reach of every group
};

struct KvFileIndex {
  std::string salt;
  std::vector<int32_t> tokens;   // of whole blocks
  std::vector<uint8_t> present;  // bit [block * groups + group]
  uint64_t num_pages = 0;        // bits that are set

  bool has(uint64_t bit) const { return (present[bit / 8] >> (bit % 8)) & 1; }
  void set(uint64_t bit) {
    present[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
    ++num_pages;
  }
};

// What a file must agree with.
struct KvFileFormat {
  SnapshotIdentity identity;
  const KvGeometry& geometry;
  const KvLayout& layout;
};

// A file descriptor that is closed with its owner.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept;
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  bool close();  // the result is part of the result of writing

 private:
  int fd_;
};

// Both throw SnapshotError.
class KvFileWriter {
 public:
  // Begins `path` with header and index.
  KvFileWriter(std::filesystem::path path, const KvFileFormat& format, const KvFileIndex& index);
  ~KvFileWriter();  // without commit(): no file is left
  void append(std::span<const std::byte> pages);
  void commit();

 private:
  void write(const void* data, size_t size);

  std::filesystem::path path_, temporary_;
  size_t page_bytes_;
  uint64_t num_written_ = 0;
  UniqueFd file_;
};

class KvFileReader {
 public:
  // Checks header and index.
  KvFileReader(const std::filesystem::path& path, const KvFileFormat& format);
  const KvFileIndex& index() const { return index_; }
  // Pages [first, first + n) of the present ones, checked.
  void read(uint64_t first, std::span<std::byte> pages) const;

 private:
  void read_at(void* data, size_t size, uint64_t offset) const;

  std::string name_;
  size_t page_bytes_;
  uint64_t pages_offset_ = 0;
  UniqueFd file_;
  KvFileIndex index_;
};

// Removes what writers that died left in a folder; files that a living process writes stay. Returns how many went.
int remove_abandoned_kv_files(const std::filesystem::path& directory);

}  // namespace bam
