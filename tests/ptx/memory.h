// The memory of a launch as its threads see it: every access is checked against the bounds of what it may touch, its
// alignment, copies that are under way and races. Faults leave as cuda_emu::Fault.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "tests/ptx/module.h"
#include "tests/ptx/shadow.h"

namespace ptx {

// Generic addresses of what is not global memory.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 60, kLocalWindow = uint64_t{2} << 60,
                          kParamWindow = uint64_t{3} << 60, kWindowMask = ~(uint64_t{3} << 60);

class Memory {
 public:
  // Everything ordered before is in order.
  void begin_launch(const Module& module, const Function& function, std::span<const uint8_t> params,
                    uint64_t dynamic_shared, uint32_t block_threads);
  void begin_block();
  // A block's threads have ended. Faults if a copy never arrived.
  void end_block() const;

  // Where the bytes are in the host's memory.
  const uint8_t* read(Space space, uint64_t address, uint64_t bytes, const Moment& now);
  void write(Space space, uint64_t address, const void* from, uint64_t bytes, const Moment& now);
  // For an atomic operation: the caller reads and writes through the pointer.
  uint8_t* update(Space space, uint64_t address, uint64_t bytes, const Moment& now);

  // cp.async of one thread. The bytes are poison until the thread has waited for the copy's group.
  void start_copy(uint64_t shared, Space from_space, uint64_t from, uint64_t bytes, uint64_t source_bytes,
                  const Moment& now);
  void commit(const Moment& now);
  void wait(size_t pending, const Moment& now);

  uint64_t dynamic_shared_address() const { return dynamic_begin_; }
  uint8_t* local(uint32_t thread) { return &local_[thread % block_threads_ * local_stride_]; }

 private:
  struct Region {
    uint64_t begin, end;
  };
  struct Copy {
    uint64_t to;
    const uint8_t* from;
    uint64_t bytes, source_bytes;
  };
  struct Copies {
    std::deque<Copy> copies;        // oldest first
    std::deque<size_t> group_ends;  // copies in front of the end of each group
  };
  // Checks bounds and alignment; `space` becomes the one that a generic address is in, `address` the one inside it.
  uint8_t* locate(Space& space, uint64_t& address, uint64_t bytes, uint64_t alignment, bool writing, const Moment& now);
  void note(Access access, Space space, uint64_t address, const uint8_t* at, uint64_t bytes, const Moment& now,
            const void* value);
  void check_flight(uint64_t shared, uint64_t bytes, Access access, const Moment& now) const;

  const Module* module_ = nullptr;
  const Function* function_ = nullptr;
  std::span<const uint8_t> params_;
  uint32_t block_threads_ = 32;
  uint64_t dynamic_begin_ = 0;
  std::vector<uint8_t> shared_;
  std::vector<Region> regions_;   // of shared memory
  std::vector<uint32_t> flight_;  // by word of shared memory: thread + 1 whose copy is under way
  std::vector<uint8_t> local_;
  uint64_t local_stride_ = 0;
  std::vector<Copies> copies_;  // by thread of the block
  Shadow shared_shadow_, global_shadow_;
};

}  // namespace ptx
