// Warp and block operations of device_functions.h.
#include <fmt/format.h>

#include <cstring>

#include "tests/cuda_emu/emu/block.h"
#include "tests/cuda_emu/emu/fault.h"

namespace cuda_emu {

namespace {

struct ShuffleOperand {
  void* value;
  size_t bytes;
  int argument;
  int width;
};

// The lane that `lane` reads from; its own when the source lies outside of its segment.
int source_lane(Shuffle kind, int lane, int argument, int width) {
  const int first = lane / width * width;
  const int position = lane - first;
  switch (kind) {
    case Shuffle::kIndex: return first + (argument & (width - 1));
    case Shuffle::kUp: return position < argument ? lane : lane - argument;
    case Shuffle::kDown: return position + argument >= width ? lane : lane + argument;
    case Shuffle::kXor: {
      const int source = lane ^ argument;
      // A segment can read from lower segments, not from higher ones.
      return source < first + width ? source : lane;
    }
  }
  return lane;
}

template <Shuffle kKind>
void run_shuffle(void* const (&operands)[32], uint32_t mask) {
  alignas(16) std::byte values[32][16];
  size_t bytes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const auto& operand = *static_cast<const ShuffleOperand*>(operands[lane]);
    if (bytes != 0 && operand.bytes != bytes) throw Fault("a shuffle of values of different sizes");
    bytes = operand.bytes;
    std::memcpy(values[lane], operand.value, bytes);
  }
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const auto& operand = *static_cast<const ShuffleOperand*>(operands[lane]);
    const int source = source_lane(kKind, lane, operand.argument, operand.width);
    if (source >= 0 && source < 32 && (mask >> source & 1u)) {
      std::memcpy(operand.value, values[source], bytes);
    } else {
      std::memset(operand.value, kPoison, bytes);  // undefined on the hardware
    }
  }
}

void run_ballot(void* const (&operands)[32], uint32_t mask) {
  uint32_t ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const uint32_t predicate = *static_cast<const uint32_t*>(operands[lane]);
    if (predicate != 0) ballot |= 1u << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) *static_cast<uint32_t*>(operands[lane]) = ballot;
  }
}

uint32_t combine(Reduce kind, uint32_t a, uint32_t b) {
  const auto signed_a = static_cast<int32_t>(a), signed_b = static_cast<int32_t>(b);
  switch (kind) {
    case Reduce::kAdd: return a + b;
    case Reduce::kMin: return std::min(a, b);
    case Reduce::kMax: return std::max(a, b);
    case Reduce::kAnd: return a & b;
    case Reduce::kOr: return a | b;
    case Reduce::kXor: return a ^ b;
    case Reduce::kMinSigned: return static_cast<uint32_t>(std::min(signed_a, signed_b));
    case Reduce::kMaxSigned: return static_cast<uint32_t>(std::max(signed_a, signed_b));
    default: return 0;
  }
}

template <Reduce kKind>
void run_reduce(void* const (&operands)[32], uint32_t mask) {
  uint32_t result = 0;
  bool first = true;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const uint32_t value = *static_cast<const uint32_t*>(operands[lane]);
    result = first ? value : combine(kKind, result, value);
    first = false;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) *static_cast<uint32_t*>(operands[lane]) = result;
  }
}

struct MatchOperand {
  const void* value;
  size_t bytes;
  uint32_t result;
};

void run_match(void* const (&operands)[32], uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    auto& mine = *static_cast<MatchOperand*>(operands[lane]);
    mine.result = 0;
    for (int other = 0; other < 32; ++other) {
      if ((mask >> other & 1u) == 0) continue;
      const auto& theirs = *static_cast<const MatchOperand*>(operands[other]);
      if (theirs.bytes == mine.bytes && std::memcmp(theirs.value, mine.value, mine.bytes) == 0) {
        mine.result |= 1u << other;
      }
    }
  }
}

}  // namespace

void shuffle(Shuffle kind, uint32_t mask, void* value, size_t bytes, int argument, int width, Where where) {
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0) {
    throw Fault(fmt::format("a shuffle's width is {}, not a power of two up to 32", width));
  }
  ShuffleOperand operand{value, bytes, argument, width};
  Block& block = running_block();
  switch (kind) {
    case Shuffle::kIndex:
      return block.warp_operation("__shfl_sync", mask, &operand, &run_shuffle<Shuffle::kIndex>, where);
    case Shuffle::kUp: return block.warp_operation("__shfl_up_sync", mask, &operand, &run_shuffle<Shuffle::kUp>, where);
    case Shuffle::kDown:
      return block.warp_operation("__shfl_down_sync", mask, &operand, &run_shuffle<Shuffle::kDown>, where);
    case Shuffle::kXor:
      return block.warp_operation("__shfl_xor_sync", mask, &operand, &run_shuffle<Shuffle::kXor>, where);
  }
}

uint32_t warp_reduce(Reduce kind, uint32_t mask, uint32_t value, Where where) {
  Block& block = running_block();
  const auto run = [&](const char* name, WarpFunction function) {
    block.warp_operation(name, mask, &value, function, where);
    return value;
  };
  switch (kind) {
    case Reduce::kBallot: return run("__ballot_sync", &run_ballot);
    case Reduce::kAny: return run("__any_sync", &run_ballot) != 0;
    case Reduce::kAll: return run("__all_sync", &run_ballot) == mask;
    case Reduce::kAdd: return run("__reduce_add_sync", &run_reduce<Reduce::kAdd>);
    case Reduce::kMin: return run("__reduce_min_sync", &run_reduce<Reduce::kMin>);
    case Reduce::kMax: return run("__reduce_max_sync", &run_reduce<Reduce::kMax>);
    case Reduce::kAnd: return run("__reduce_and_sync", &run_reduce<Reduce::kAnd>);
    case Reduce::kOr: return run("__reduce_or_sync", &run_reduce<Reduce::kOr>);
    case Reduce::kXor: return run("__reduce_xor_sync", &run_reduce<Reduce::kXor>);
    case Reduce::kMinSigned: return run("__reduce_min_sync", &run_reduce<Reduce::kMinSigned>);
    case Reduce::kMaxSigned: return run("__reduce_max_sync", &run_reduce<Reduce::kMaxSigned>);
  }
  return 0;
}

uint32_t match_any(uint32_t mask, const void* value, size_t bytes, Where where) {
  MatchOperand operand{value, bytes, 0};
  running_block().warp_operation("__match_any_sync", mask, &operand, &run_match, where);
  return operand.result;
}

int block_barrier(BlockReduce kind, int predicate, Where where) {
  return running_block().barrier(kind, predicate, where);
}

void warp_barrier(uint32_t mask, Where where) {
  running_block().warp_operation("__syncwarp", mask, nullptr, nullptr, where);
}

void trap(Where where) { throw Fault(fmt::format("a kernel trapped at {}:{}", where.file_name(), where.line())); }

void* static_shared(const void* key, size_t bytes, size_t alignment) {
  return running_block().shared().array(key, bytes, alignment);
}

void* dynamic_shared() { return running_block().shared().dynamic(); }

}  // namespace cuda_emu
