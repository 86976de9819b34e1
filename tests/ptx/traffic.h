// What an access of a warp costs: wavefronts of shared memory (32 banks of 4 bytes) and 32-byte sectors of global memory.
#pragma once

#include <cstdint>

#include "tests/ptx/warp.h"

namespace ptx {

struct Cost {
  uint32_t units = 0, least = 0;
};
// `lanes` access `bytes` each. Lanes go in groups that ask for up to 128 bytes; words of one bank take turns.
Cost shared_wavefronts(const Lanes<uint64_t>& addresses, uint32_t lanes, uint32_t bytes);
// The least: as if what is asked for lay side by side.
Cost global_sectors(const Lanes<uint64_t>& addresses, uint32_t lanes, uint32_t bytes);

// Adds the cost of an access of the running lanes to the instruction's traffic.
void count_access(const Warp& warp, const Instruction& instruction, Space space, const Lanes<uint64_t>& addresses,
                  uint32_t lanes, uint32_t bytes);

}  // namespace ptx
