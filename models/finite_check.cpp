#include "models/finite_check.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

namespace bam {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kThreadedBytes = size_t{64} << 20;

// Bit patterns for the lanes of a 64-bit word. A value is NaN or infinite when all exponent bits are set, and exactly
// then adding the lowest exponent bit to them carries into the sign bit, never beyond its lane.
struct LaneMasks {
  uint64_t exponent, lowest, sign;
};

LaneMasks lane_masks(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {0x7c007c007c007c00u, 0x0400040004000400u, 0x8000800080008000u};
    case DType::kBF16: return {0x7f807f807f807f80u, 0x0080008000800080u, 0x8000800080008000u};
    default: return {0x7f8000007f800000u, 0x0080000000800000u, 0x8000000080000000u};
  }
}

uint64_t load_word(const std::byte* data, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, data, bytes);
  return word;
}

bool has_non_finite(const std::byte* data, size_t bytes, const LaneMasks& masks) {
  uint64_t found = 0, found2 = 0, found3 = 0, found4 = 0;
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    found |= (load_word(data + i, 8) & masks.exponent) + masks.lowest;
    found2 |= (load_word(data + i + 8, 8) & masks.exponent) + masks.lowest;
    found3 |= (load_word(data + i + 16, 8) & masks.exponent) + masks.lowest;
    found4 |= (load_word(data + i + 24, 8) & masks.exponent) + masks.lowest;
  }
  for (; i < bytes; i += 8) {
    found |= (load_word(data + i, std::min<size_t>(8, bytes - i)) & masks.exponent) + masks.lowest;
  }
  return ((found | found2 | found3 | found4) & masks.sign) != 0;
}

size_t element_bytes(DType dtype) { return dtype_bits(dtype) / 8; }

NonFinite locate(const WeightView& view, size_t begin, size_t end) {
  const LaneMasks masks = lane_masks(view.dtype);
  const size_t width = element_bytes(view.dtype);
  size_t i = begin;
  while (i + width < end && !has_non_finite(view.data + i, width, masks)) i += width;
  const uint64_t mantissa = ~(masks.exponent | masks.sign) & (width == 2 ? 0xffffu : 0xffffffffu);
  return {static_cast<int64_t>(i / width), (load_word(view.data + i, width) & mantissa) != 0};
}

struct Block {
  size_t tensor, begin, end;  // bytes
};

}  // namespace

std::optional<NonFinite> find_non_finite(const WeightView& view) {
  const std::optional<NonFiniteTensor> bad = find_non_finite(std::vector<WeightView>{view});
  return bad ? std::optional(bad->value) : std::nullopt;
}

std::optional<NonFiniteTensor> find_non_finite(const std::vector<WeightView>& views) {
  std::vector<Block> blocks;
  size_t total_bytes = 0;
  for (size_t tensor = 0; tensor < views.size(); ++tensor) {
    const size_t bytes = views[tensor].bytes().size();
    for (size_t begin = 0; begin < bytes; begin += kBlockBytes) {
      blocks.push_back({tensor, begin, std::min(bytes, begin + kBlockBytes)});
    }
    total_bytes += bytes;
  }

  std::atomic<size_t> next{0};
  std::atomic<size_t> first_bad{blocks.size()};
  // Blocks are claimed in order and a claimed block is always finished, so the lowest bad block is the first offender.
  const auto scan = [&] {
    while (true) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= first_bad.load(std::memory_order_relaxed)) return;
      const WeightView& view = views[blocks[i].tensor];
      if (!has_non_finite(view.data + blocks[i].begin, blocks[i].end - blocks[i].begin, lane_masks(view.dtype))) {
        continue;
      }
      size_t lowest = first_bad.load(std::memory_order_relaxed);
      while (i < lowest && !first_bad.compare_exchange_weak(lowest, i, std::memory_order_relaxed)) {
      }
    }
  };
  if (total_bytes > kThreadedBytes) {
    std::jthread helper;
    try {
      helper = std::jthread(scan);
    } catch (const std::system_error&) {
      // Without help it takes longer.
    }
    scan();
  } else {
    scan();
  }
  if (first_bad == blocks.size()) return std::nullopt;
  const Block& block = blocks[first_bad];
  return NonFiniteTensor{block.tensor, locate(views[block.tensor], block.begin, block.end)};
}

}  // namespace bam
