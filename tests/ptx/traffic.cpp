#include "tests/ptx/traffic.h"

#include <algorithm>

namespace ptx {

namespace {
constexpr uint32_t kBanks = 32, kBankBytes = 4, kSectorBytes = 32;
}  // namespace

Cost shared_wavefronts(const Lanes<uint64_t>& addresses, uint32_t lanes, uint32_t bytes) {
  const uint32_t words = std::max(bytes / kBankBytes, 1u), group = 32 / words;
  Cost cost;
  for (uint32_t first = 0; first < 32; first += group) {
    if ((lanes >> first & (group == 32 ? ~0u : (1u << group) - 1)) == 0) continue;
    // Distinct words of every bank.
    uint64_t seen[kBanks][32];
    uint32_t count[kBanks] = {}, most = 1;
    for (uint32_t lane = first; lane < first + group; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      for (uint32_t w = 0; w < words; ++w) {
        const uint64_t word = addresses[lane] / kBankBytes + w;
        const uint32_t bank = static_cast<uint32_t>(word % kBanks);
        if (std::find(seen[bank], seen[bank] + count[bank], word) != seen[bank] + count[bank]) continue;
        seen[bank][count[bank]++] = word;
        most = std::max(most, count[bank]);
      }
    }
    cost.units += most;
    ++cost.least;
  }
  return cost;
}

Cost global_sectors(const Lanes<uint64_t>& addresses, uint32_t lanes, uint32_t bytes) {
  uint64_t sectors[32], starts[32];
  uint32_t num_sectors = 0, num_starts = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint64_t sector = addresses[lane] / kSectorBytes;  // an aligned access of up to 16 bytes lies in one
    if (std::find(sectors, sectors + num_sectors, sector) == sectors + num_sectors) sectors[num_sectors++] = sector;
    if (std::find(starts, starts + num_starts, addresses[lane]) == starts + num_starts) {
      starts[num_starts++] = addresses[lane];
    }
  }
  return {num_sectors, (num_starts * bytes + kSectorBytes - 1) / kSectorBytes};
}

void count_access(const Warp& warp, const Instruction& instruction, Space space, const Lanes<uint64_t>& addresses,
                  uint32_t lanes, uint32_t bytes) {
  if (lanes == 0 || (space != Space::kShared && space != Space::kGlobal)) return;
  Traffic& traffic = warp.function().traffic[static_cast<size_t>(&instruction - warp.function().code.data())];
  if (space == Space::kShared) {
    const Cost cost = shared_wavefronts(addresses, lanes, bytes);
    traffic.wavefronts += cost.units;
    traffic.least_wavefronts += cost.least;
  } else {
    const Cost cost = global_sectors(addresses, lanes, bytes);
    traffic.sectors += cost.units;
    traffic.least_sectors += cost.least;
  }
}

}  // namespace ptx
