#include "tests/cuda_emu/emu/device_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <new>

#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/shared_memory.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_emu {

namespace {

constexpr size_t kArenaBytes = size_t{1} << 38;  // of addresses
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // what cudaMalloc promises
constexpr int kCanary = 0xa5;

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void throw_stray_write(size_t bytes) {
  throw Fault(fmt::format("a write out of the bounds of an allocation of {} bytes", bytes));
}

}  // namespace

DeviceMemory& device_memory() {
  static DeviceMemory memory;
  return memory;
}

DeviceMemory::DeviceMemory() {
  void* arena = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) throw std::bad_alloc();
  arena_ = reinterpret_cast<uintptr_t>(arena);
}

DeviceMemory::~DeviceMemory() { munmap(reinterpret_cast<void*>(arena_), kArenaBytes); }

void* DeviceMemory::allocate(size_t bytes, size_t limit, int device) {
  if (bytes > limit || used_[device] + bytes > limit) return nullptr;
  const size_t page_bytes = round_up(round_up(bytes, kAlignment), kPage);
  if (next_ + page_bytes + 2 * kPage > kArenaBytes) throw Fault("the emulator's address space is used up");
  const uintptr_t pages = arena_ + next_ + kPage;
  next_ += page_bytes + kPage;
  if (mprotect(reinterpret_cast<void*>(pages), page_bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  // At the end of its pages, as far as the alignment allows: what lies behind faults.
  const uintptr_t begin = pages + page_bytes - round_up(bytes, kAlignment);
  std::memset(reinterpret_cast<void*>(pages), kCanary, begin - pages);
  std::memset(reinterpret_cast<void*>(begin), kPoison, bytes);
  std::memset(reinterpret_cast<void*>(begin + bytes), kCanary, pages + page_bytes - begin - bytes);
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(reinterpret_cast<void*>(pages), begin - pages);
  __asan_poison_memory_region(reinterpret_cast<void*>(begin + bytes), pages + page_bytes - begin - bytes);
#endif
  allocations_[begin] = {bytes, pages, page_bytes, device};
  used_[device] += bytes;
  if (!accessible_) mprotect(reinterpret_cast<void*>(pages), page_bytes, PROT_NONE);
  return reinterpret_cast<void*>(begin);
}

bool DeviceMemory::release(void* pointer) {
  const auto it = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == allocations_.end()) return false;
  const Allocation allocation = it->second;
  auto* pages = reinterpret_cast<void*>(allocation.pages);
  mprotect(pages, allocation.page_bytes, PROT_READ | PROT_WRITE);
  const bool intact = repair_slack(it->first, allocation);
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(pages, allocation.page_bytes);
#endif
  mmap(pages, allocation.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  used_[allocation.device] -= allocation.bytes;
  allocations_.erase(it);
  hit_begin_ = hit_end_ = 0;
  if (!intact) throw_stray_write(allocation.bytes);
  return true;
}

DeviceMemory::Map::const_iterator DeviceMemory::find(uintptr_t address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return allocations_.end();
  --it;
  return address <= it->first + it->second.bytes ? it : allocations_.end();
}

bool DeviceMemory::contains(const void* address, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin < arena_ || begin >= arena_ + kArenaBytes) return false;
  if (begin >= hit_begin_ && begin + bytes <= hit_end_) return true;
  const auto it = find(begin);
  if (it == allocations_.end()) return false;
  hit_begin_ = it->first;
  hit_end_ = it->first + it->second.bytes;
  return begin + bytes <= hit_end_;
}

int DeviceMemory::device_of(const void* address) const {
  const auto it = find(reinterpret_cast<uintptr_t>(address));
  return it == allocations_.end() ? -1 : it->second.device;
}

size_t DeviceMemory::used_bytes(int device) const {
  const auto it = used_.find(device);
  return it == used_.end() ? 0 : it->second;
}

void DeviceMemory::set_accessible(bool accessible) {
  if (accessible == accessible_) return;
  accessible_ = accessible;
  for (const auto& [begin, allocation] : allocations_) {
    mprotect(reinterpret_cast<void*>(allocation.pages), allocation.page_bytes,
             accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

bool DeviceMemory::repair_slack([[maybe_unused]] uintptr_t begin, [[maybe_unused]] const Allocation& allocation) {
  bool intact = true;
#ifndef __SANITIZE_ADDRESS__
  const auto repair = [&](uintptr_t from, uintptr_t to) {
    for (uintptr_t at = from; at < to; ++at) {
      auto& byte = *reinterpret_cast<unsigned char*>(at);
      intact = intact && byte == kCanary;
      byte = kCanary;
    }
  };
  repair(allocation.pages, begin);
  repair(begin + allocation.bytes, allocation.pages + allocation.page_bytes);
#endif
  return intact;
}

void DeviceMemory::check() {
  for (const auto& [begin, allocation] : allocations_) {
    if (!repair_slack(begin, allocation)) throw_stray_write(allocation.bytes);
  }
}

}  // namespace cuda_emu
