#include "tests/cuda_emu/emu/async_copy.h"

#include <cstring>

#include "tests/cuda_emu/emu/shared_memory.h"

namespace cuda_emu {

void AsyncCopies::issue(void* shared, const void* global, int bytes, int source_bytes) {
  std::memset(shared, kPoison, static_cast<size_t>(bytes));
  copies_.push_back({shared, global, bytes, source_bytes});
}

void AsyncCopies::commit() { group_ends_.push_back(copies_.size()); }

void AsyncCopies::wait(int pending) {
  if (group_ends_.size() <= static_cast<size_t>(pending)) return;
  const size_t groups = group_ends_.size() - static_cast<size_t>(pending);
  const size_t landed = group_ends_[groups - 1];
  for (size_t i = 0; i < landed; ++i) {
    const Copy& copy = copies_[i];
    if (copy.source_bytes > 0) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.source_bytes));
    std::memset(static_cast<std::byte*>(copy.to) + copy.source_bytes, 0,
                static_cast<size_t>(copy.bytes - copy.source_bytes));
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(landed));
  group_ends_.erase(group_ends_.begin(), group_ends_.begin() + static_cast<std::ptrdiff_t>(groups));
  for (size_t& end : group_ends_) end -= landed;
}

void AsyncCopies::clear() {
  copies_.clear();
  group_ends_.clear();
}

}  // namespace cuda_emu
