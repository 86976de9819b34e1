#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define BAM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BAM_ASAN 1
#endif
#endif
#ifdef BAM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace bam {
namespace {

// Mappings are not the heap: the address sanitizer is told what of them nobody may touch.
#ifdef BAM_ASAN
constexpr size_t kGuard = 4096;  // behind every mapping and every slice
void forbid(const void* at, size_t bytes) { __asan_poison_memory_region(at, bytes); }
void permit(const void* at, size_t bytes) { __asan_unpoison_memory_region(at, bytes); }
#else
constexpr size_t kGuard = 0;
void forbid(const void*, size_t) {}
void permit(const void*, size_t) {}
#endif

constexpr size_t kSmallPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kArenaBlock = size_t{32} << 20;
constexpr size_t kCacheLine = 64;

size_t mapped_bytes(size_t size) { return (size + kSmallPage - 1) / kSmallPage * kSmallPage + kGuard; }

uint64_t read_number(const char* path, uint64_t fallback) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : fallback;
}

}  // namespace

LazyMemory::LazyMemory(size_t bytes, bool huge_pages) : size_(bytes) {
  if (bytes == 0) return;
  const bool huge = huge_pages && bytes >= kHugePage;
  const size_t used = mapped_bytes(bytes), room = used + (huge ? kHugePage : 0);
  void* memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("cannot reserve {} MiB of memory", bytes >> 20);
  data_ = static_cast<std::byte*>(memory);
  if (huge) {
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(memory) % kHugePage) % kHugePage;
    if (before > 0) munmap(data_, before);
    data_ += before;
    if (before + used < room) munmap(data_ + used, room - before - used);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  forbid(data_ + bytes, used - bytes);
}

LazyMemory::~LazyMemory() {
  if (whole_ != nullptr) {
    forbid(data_, size_);
  } else if (data_ != nullptr) {
    permit(data_ + size_, mapped_bytes(size_) - size_);
    munmap(data_, mapped_bytes(size_));
  }
}

LazyMemory MemoryArena::allocate(size_t bytes) {
  if (bytes == 0 || bytes > kArenaBlock / 2) return LazyMemory(bytes);
  const std::scoped_lock lock(mutex_);
  const size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine + kGuard;
  if (block_ == nullptr || used_ + rounded > block_->size()) {
    block_ = std::shared_ptr<const LazyMemory>(new LazyMemory(kArenaBlock), [](const LazyMemory* block) {
      permit(block->data(), block->size());
      delete block;
    });
    used_ = 0;
    forbid(block_->data(), block_->size());
  }
  LazyMemory slice;
  slice.data_ = block_->data() + used_;
  slice.size_ = bytes;
  slice.whole_ = block_;
  used_ += rounded;
  permit(slice.data_, bytes);
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
