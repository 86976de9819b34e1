#include "tests/cuda_emu/emu/shared_memory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/cuda_emu/emu/fault.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_emu {

namespace {

constexpr size_t kArenaBytes = 512 * 1024;
constexpr size_t kAlignment = 128;
constexpr size_t kRedZone = 128;
constexpr std::byte kCanary{0xa5};
constexpr size_t kStaticLimit = 48 * 1024;

constexpr size_t round_up(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

void poison([[maybe_unused]] std::byte* begin, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(begin, bytes);
#else
  std::memset(begin, std::to_integer<int>(kCanary), bytes);
#endif
}

void unpoison([[maybe_unused]] std::byte* begin, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

}  // namespace

void SharedMemory::Free::operator()(std::byte* memory) const {
  unpoison(memory, kArenaBytes);
  std::free(memory);
}

SharedMemory::SharedMemory() : arena_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kArenaBytes))) {
  if (!arena_) throw std::bad_alloc();
}

SharedMemory::~SharedMemory() = default;

void SharedMemory::begin_launch(size_t dynamic_bytes, size_t limit_bytes) {
  regions_.clear();
  payload_ = 0;
  limit_ = limit_bytes;
  poison(arena_.get(), kRedZone);
  used_ = kRedZone;
  add_region(nullptr, dynamic_bytes);
}

void SharedMemory::begin_block() {
  for (const Region& region : regions_) fill(region);
}

void SharedMemory::end_block() const {
#ifndef __SANITIZE_ADDRESS__
  size_t at = 0;
  const auto check = [&](size_t end) {
    for (; at < end; ++at) {
      if (arena_.get()[at] != kCanary) throw Fault("a write out of the bounds of a shared array");
    }
  };
  for (const Region& region : regions_) {
    check(region.offset);
    at = region.offset + region.bytes;
  }
  check(used_);
#endif
}

void* SharedMemory::dynamic() { return arena_.get() + regions_[0].offset; }

void* SharedMemory::array(const void* key, size_t bytes, size_t alignment) {
  for (const Region& region : regions_) {
    if (region.key == key) return arena_.get() + region.offset;
  }
  if (alignment > kAlignment) throw Fault("a shared array wants more than 128 bytes of alignment");
  if (payload_ - regions_[0].bytes + bytes > kStaticLimit) throw Fault("more than 48 KiB of static shared memory");
  add_region(key, bytes);
  fill(regions_.back());
  return arena_.get() + regions_.back().offset;
}

bool SharedMemory::contains(const void* address, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(address);
  for (const Region& region : regions_) {
    const std::byte* first = arena_.get() + region.offset;
    if (begin >= first && begin + bytes <= first + region.bytes) return true;
  }
  return false;
}

void SharedMemory::add_region(const void* key, size_t bytes) {
  payload_ += bytes;
  if (payload_ > limit_) {
    throw Fault(fmt::format("{} bytes of shared memory in a block, the device has {}", payload_, limit_));
  }
  const size_t end = round_up(used_ + bytes) + kRedZone;
  if (end > kArenaBytes) throw Fault("too many shared arrays");
  regions_.push_back({key, used_, bytes});
  unpoison(arena_.get() + used_, bytes);
  poison(arena_.get() + used_ + bytes, end - used_ - bytes);
  used_ = end;
}

void SharedMemory::fill(const Region& region) { std::memset(arena_.get() + region.offset, kPoison, region.bytes); }

}  // namespace cuda_emu
