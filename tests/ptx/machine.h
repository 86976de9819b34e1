// Executes launches of PTX kernels: block after block, warp after warp up to the next barrier.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/ptx/memory.h"
#include "tests/ptx/warp.h"

namespace ptx {

// What a launch asks for beside its kernel.
struct Launch {
  GridShape shape;
  uint64_t dynamic_shared = 0;
  std::span<const uint8_t> params;
  uint64_t seed = 0;                   // order of blocks and of warps; 0: ascending
  uint64_t shared_limit = 163 * 1024;  // bytes of shared memory that a block may have
};

class Machine {
 public:
  // Runs all of it; what a device would punish or silently accept leaves as cuda_emu::Fault, which names the place.
  void run(const Module& module, const Function& function, const Launch& launch);

 private:
  void run_block(std::array<uint32_t, 3> block, uint32_t index);
  // All warps that have not ended are at a barrier: lets them pass.
  void release_barrier();
  [[noreturn]] void explain(const std::string& what, std::array<uint32_t, 3> block) const;

  const Module* module_ = nullptr;
  const Function* function_ = nullptr;
  const Launch* launch_ = nullptr;
  uint32_t threads_ = 0, padded_threads_ = 0;
  Memory memory_;
  std::vector<Warp> warps_;
  std::vector<uint32_t> order_;
  const Warp* running_ = nullptr;
};

}  // namespace ptx
