// Writing keys and values into their tiles, and what a full tile says about its keys. Every instruction set stores the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/paged_kv.h"

namespace bam::cpu {

// A NaN key compares false everywhere and would vanish from a maximum: it makes the bound useless instead.
inline float larger_or_nan(float a, float b) { return a != a || a > b ? a : b; }

// Keys and values of consecutive positions, rows of head_dim numbers.
struct KeyValueRows {
  const float* k = nullptr;
  const float* v = nullptr;
  int count = 0;
  int head_dim = 0;
  int64_t stride = 0;  // from row to row, of both
};

struct KvStoreKernels {
  // Stores the rows in slots [slot, slot + rows.count) of one tile.
  void (*store_tile_rows)(const KvLayout& layout, std::byte* tile, int slot, const KeyValueRows& rows);
  // Box, radius and largest norm of a full tile, from what is stored.
  void (*finish_tile_stats)(const KvLayout& layout, std::byte* tile);
};
KvStoreKernels kv_store_kernels();
// Joins the boxes of 16 finished tiles into the super box of the last.
void finish_super_stats(const KvLayout& layout, const std::byte* const* tiles, std::byte* last);

inline std::byte* tile_at(const KvLayout& layout, std::byte* base, const int32_t* pages, int64_t tile) {
  const int per_page = layout.tiles_per_page();
  return base + static_cast<size_t>(pages[tile / per_page]) * layout.page_bytes() +
         static_cast<size_t>(tile % per_page) * layout.tile_bytes;
}

}  // namespace bam::cpu
