#include "base/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace bam {
namespace {

bool is_zero(const LazyMemory& memory) {
  return std::all_of(memory.data(), memory.data() + memory.size(), [](std::byte b) { return b == std::byte{0}; });
}

// Whether the address lies in a mapping of this process.
bool is_mapped(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    const size_t dash = line.find('-');
    const uintptr_t begin = std::stoull(line.substr(0, dash), nullptr, 16);
    const uintptr_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return true;
  }
  return false;
}

#ifdef __SANITIZE_ADDRESS__
constexpr std::ptrdiff_t kGuard = 4096;

// What the heap would notice is noticed in mappings and slices, too.
TEST(LazyMemory, TheAddressSanitizerKnowsItsEnd) {
  MemoryArena arena;
  for (const size_t bytes : {size_t{1000}, size_t{4096}, size_t{3} << 20, size_t{40} << 20}) {
    for (const bool from_arena : {false, true}) {
      const LazyMemory memory = from_arena ? arena.allocate(bytes) : LazyMemory(bytes);
      volatile std::byte* at = memory.data();
      at[bytes - 1] = at[0];
      EXPECT_DEATH(at[bytes] = std::byte{1}, "use-after-poison") << bytes;
    }
  }
  volatile std::byte* gone = arena.allocate(100).data();
  const LazyMemory stays = arena.allocate(100);
  EXPECT_DEATH(gone[0] = std::byte{1}, "use-after-poison");
}
#else
constexpr std::ptrdiff_t kGuard = 0;
#endif

TEST(LazyMemory, LargeOnesAreZeroAndAlignedForHugePages) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, (size_t{2} << 20), (size_t{5} << 20) + 17}) {
    const LazyMemory memory(bytes);
    EXPECT_TRUE(is_zero(memory)) << bytes;
    std::memset(memory.data(), 7, bytes);  // every byte is ours
    if (bytes >= size_t{2} << 20) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % (size_t{2} << 20), 0u) << bytes;
    }
  }
}

TEST(LazyMemory, MovesAndReturns) {
  LazyMemory first(size_t{3} << 20);
  std::byte* at = first.data();
  LazyMemory second(std::move(first));
  EXPECT_EQ(second.data(), at);
  second = LazyMemory();
  first = LazyMemory();
  EXPECT_FALSE(is_mapped(at));
}

TEST(MemoryArena, SlicesAreZeroAlignedAndApart) {
  MemoryArena arena;
  std::vector<LazyMemory> slices;
  for (int i = 0; i < 300; ++i) {  // 75 MiB: several blocks
    slices.push_back(arena.allocate(static_cast<size_t>(i) * 1741 + 1));
    ASSERT_TRUE(is_zero(slices.back())) << i;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(slices.back().data()) % 64, 0u);
    std::memset(slices.back().data(), i % 250 + 1, slices.back().size());
  }
  for (int i = 0; i < 300; ++i) {
    const LazyMemory& slice = slices[static_cast<size_t>(i)];
    EXPECT_TRUE(std::all_of(slice.data(), slice.data() + slice.size(), [&](std::byte b) {
      return b == static_cast<std::byte>(i % 250 + 1);
    })) << i;
  }
}

TEST(MemoryArena, SlicesOutliveItAndTheLastReturnsTheBlock) {
  LazyMemory first, second;
  {
    MemoryArena arena;
    first = arena.allocate(1000);
    second = arena.allocate(1000);
  }
  std::byte* at = first.data();
  EXPECT_EQ(second.data() - at, 1024 + kGuard);
  first = LazyMemory();
  EXPECT_TRUE(is_mapped(at));
  std::memset(second.data(), 1, second.size());
  second = LazyMemory();
  EXPECT_FALSE(is_mapped(at));
}

}  // namespace
}  // namespace bam
