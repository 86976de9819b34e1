#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/error.h"

namespace bam {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

uint64_t read_number(const char* path, uint64_t fallback) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : fallback;
}

}  // namespace

LazyMemory::LazyMemory(size_t bytes, bool huge_pages) : size_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("cannot reserve {} MiB of memory", bytes >> 20);
  if (huge_pages && bytes >= 2 * kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
}

LazyMemory::~LazyMemory() {
  if (data_ != nullptr) munmap(data_, size_);
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
