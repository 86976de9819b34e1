// A file of KV pages is refused with a reason, or its index and pages are whole. Every input is read twice: as it is, and
// with the checksums that fit it, as somebody who may write into the folder would make them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/kv_file.h"

using namespace bam;

namespace {

constexpr int kPageSize = 64;
const SnapshotIdentity kIdentity{1, 2, 3};
// Where engine/kv_file.cpp keeps what it checks; its seeds for the hashes of header and index.
constexpr size_t kHeaderBytes = 104, kBlocksAt = 64, kSaltBytesAt = 80, kIndexChecksumAt = 88, kHeaderChecksumAt = 96;
constexpr uint64_t kHeaderSeed = 0x62616d6b76, kIndexSeed = 0x696e646578;

uint64_t number_at(const std::vector<std::byte>& file, size_t at) {
  uint64_t value = 0;
  std::memcpy(&value, file.data() + at, sizeof(value));
  return value;
}

// Leaves the file alone where it is too short for what it claims.
void fit_checksums(std::vector<std::byte>& file, const KvGeometry& geometry, size_t page_bytes) {
  if (file.size() < kHeaderBytes) return;
  const uint64_t blocks = number_at(file, kBlocksAt), salt = number_at(file, kSaltBytesAt);
  if (blocks < 1000 && salt < file.size()) {
    const size_t tokens = blocks * kPageSize * sizeof(int32_t);
    const size_t present = (blocks * static_cast<size_t>(geometry.num_groups()) + 7) / 8;
    const size_t index_end = kHeaderBytes + salt + tokens + present;
    if (index_end <= file.size()) {
      const std::span<const std::byte> all(file);
      uint64_t h = hash_bytes(all.subspan(kHeaderBytes, salt), kIndexSeed);
      h = hash_bytes(all.subspan(kHeaderBytes + salt, tokens), h);
      h = hash_bytes(all.subspan(kHeaderBytes + salt + tokens, present), h);
      std::memcpy(file.data() + kIndexChecksumAt, &h, sizeof(h));
      const size_t stride = page_bytes + sizeof(uint64_t);
      for (size_t at = index_end, i = 0; at + stride <= file.size(); at += stride, ++i) {
        h = hash_bytes(all.subspan(at + sizeof(h), page_bytes), i + 1);
        std::memcpy(file.data() + at, &h, sizeof(h));
      }
    }
  }
  const uint64_t h = hash_bytes(std::span<const std::byte>(file).first(kHeaderChecksumAt), kHeaderSeed);
  std::memcpy(file.data() + kHeaderChecksumAt, &h, sizeof(h));
}

void require(bool condition) {
  if (!condition) std::abort();
}

void read(const std::vector<std::byte>& bytes, const KvFileFormat& format) {
  static const int fd = memfd_create("snapshot", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  require(ftruncate(fd, 0) == 0);
  require(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  try {
    const KvFileReader file(path, format);
    const KvFileIndex& index = file.index();
    require(!index.tokens.empty() && index.tokens.size() % kPageSize == 0);
    const uint64_t bits = index.tokens.size() / kPageSize * static_cast<uint64_t>(format.geometry.num_groups());
    uint64_t pages = 0;
    for (uint64_t bit = 0; bit < bits; ++bit) pages += index.has(bit) ? 1 : 0;
    require(pages == index.num_pages);  // a bit beyond the last block would stand for a page of none
    std::vector<std::byte> all(pages * format.layout.page_bytes());
    file.read(0, all);
    // A page past the end is refused, not made up.
    std::vector<std::byte> more(format.layout.page_bytes());
    try {
      file.read(pages, more);
      std::abort();
    } catch (const SnapshotError&) {
    }
  } catch (const SnapshotError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const KvGeometry geometry(kPageSize, {-1, 100, 300}, kPageSize);
  static const KvLayout layout = make_kv_layout(DType::kI4, 16, kPageSize);
  const KvFileFormat format{kIdentity, geometry, layout};
  std::vector<std::byte> file(size);
  if (size > 0) std::memcpy(file.data(), data, size);
  read(file, format);
  fit_checksums(file, geometry, layout.page_bytes());
  read(file, format);
  return 0;
}
