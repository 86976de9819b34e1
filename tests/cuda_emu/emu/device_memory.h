// Device memory: every allocation has pages of its own between guard pages and starts as 0xff bytes. Freed memory is
// unmapped and its addresses are not used again. Under ASan the rest of the last page is poisoned, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace cuda_emu {

class DeviceMemory {
 public:
  DeviceMemory();
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Null if `limit` bytes on that device would be exceeded.
  void* allocate(size_t bytes, size_t limit, int device);
  // False if `pointer` is not the begin of an allocation. Faults if the slack behind it was written to.
  bool release(void* pointer);
  bool contains(const void* address, size_t bytes) const;
  // On which device that address is; -1: on none.
  int device_of(const void* address) const;
  size_t used_bytes(int device) const;
  size_t num_allocations() const { return allocations_.size(); }
  // Whether the host (anything but kernels and copies) may touch device memory.
  void set_accessible(bool accessible);
  // Faults, once per stray write, if the slack around an allocation was written to. Memory must be accessible.
  void check();

 private:
  struct Allocation {
    size_t bytes;
    uintptr_t pages;  // begin of its pages
    size_t page_bytes;
    int device;
  };
  using Map = std::map<uintptr_t, Allocation>;
  static bool repair_slack(uintptr_t begin, const Allocation& allocation);
  Map::const_iterator find(uintptr_t address) const;

  uintptr_t arena_ = 0;
  size_t next_ = 0;             // offset of the first page that was never used
  std::map<int, size_t> used_;  // by device
  bool accessible_ = true;
  Map allocations_;                                // by first byte
  mutable uintptr_t hit_begin_ = 0, hit_end_ = 0;  // the allocation found last
};

DeviceMemory& device_memory();

}  // namespace cuda_emu
