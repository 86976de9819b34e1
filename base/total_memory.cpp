#include "base/total_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace bam {

size_t total_memory_bytes() {
  const auto pages = static_cast<uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L));
  uint64_t total = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream file("/sys/fs/cgroup/memory.max");  // "max" where there is no limit
  if (uint64_t limit = 0; file >> limit) total = std::min(total, limit);
  return total;
}

}  // namespace bam
