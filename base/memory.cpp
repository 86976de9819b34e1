#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/error.h"

namespace bam {
namespace {

constexpr size_t kSmallPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kArenaBlock = size_t{32} << 20;
constexpr size_t kCacheLine = 64;

uint64_t read_number(const char* path, uint64_t fallback) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : fallback;
}

}  // namespace

LazyMemory::LazyMemory(size_t bytes, bool huge_pages) : size_(bytes) {
  if (bytes == 0) return;
  const bool huge = huge_pages && bytes >= kHugePage;
  const size_t room = bytes + (huge ? kHugePage : 0);
  void* memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("cannot reserve {} MiB of memory", bytes >> 20);
  data_ = static_cast<std::byte*>(memory);
  if (!huge) return;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(memory) % kHugePage) % kHugePage;
  if (before > 0) munmap(data_, before);
  data_ += before;
  const size_t used = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (before + used < room) munmap(data_ + used, room - before - used);
  madvise(data_, bytes, MADV_HUGEPAGE);
}

LazyMemory::~LazyMemory() {
  if (data_ != nullptr && whole_ == nullptr) munmap(data_, size_);
}

LazyMemory MemoryArena::allocate(size_t bytes) {
  if (bytes == 0 || bytes > kArenaBlock / 2) return LazyMemory(bytes);
  const std::scoped_lock lock(mutex_);
  const size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (block_ == nullptr || used_ + rounded > block_->size()) {
    block_ = std::make_shared<const LazyMemory>(kArenaBlock);
    used_ = 0;
  }
  LazyMemory slice;
  slice.data_ = block_->data() + used_;
  slice.size_ = bytes;
  slice.whole_ = block_;
  used_ += rounded;
  return slice;
}

size_t available_memory_bytes() {
  uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (uint64_t value = 0; meminfo >> key >> value;) {
    if (key == "MemAvailable:") available = value << 10;
    std::getline(meminfo, unit);
  }
  const uint64_t limit = read_number("/sys/fs/cgroup/memory.max", UINT64_MAX);
  const uint64_t used = read_number("/sys/fs/cgroup/memory.current", 0);
  if (limit != UINT64_MAX) available = std::min(available, limit > used ? limit - used : 0);
  return available;
}

}  // namespace bam
