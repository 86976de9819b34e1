// The shared memory of the running block: one arena with a red zone around every array. Under ASan red zones are
// poisoned, otherwise they hold a pattern that is looked at when the block ends. Contents start as 0xff bytes: NaN in
// every format.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace cuda_emu {

inline constexpr int kPoison = 0xff;

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  // A launch begins: no arrays but the dynamic one.
  void begin_launch(size_t dynamic_bytes, size_t limit_bytes);
  void begin_block();
  // Faults if a red zone was written to.
  void end_block() const;
  void* dynamic();
  // The array that belongs to `key`, made at the first call of the launch.
  void* array(const void* key, size_t bytes, size_t alignment);
  bool contains(const void* address, size_t bytes) const;

 private:
  struct Region {
    const void* key;
    size_t offset;
    size_t bytes;
  };
  void add_region(const void* key, size_t bytes);
  void fill(const Region& region);

  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> arena_;
  std::vector<Region> regions_;  // [0] is the dynamic one
  size_t used_ = 0;              // of the arena, red zones included
  size_t payload_ = 0;
  size_t limit_ = 0;
};

}  // namespace cuda_emu
