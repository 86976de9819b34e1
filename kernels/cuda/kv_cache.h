// The KV pages as kernels see them (kernels/paged_kv.h says how a tile lies in memory; it is the same on the CPU, so
// that snapshots of one device can be read by another), and the kernels that write them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numeric.h"
#include "kernels/paged_kv.h"

namespace bam::cuda {

struct KvPages {
  unsigned char* base = nullptr;
  KvLayout layout;
  long long page_bytes = 0;
  int tiles_per_page = 1;
  friend bool operator==(const KvPages& a, const KvPages& b) {
    return a.base == b.base && a.layout.dtype == b.layout.dtype && a.layout.head_dim == b.layout.head_dim &&
           a.layout.page_size == b.layout.page_size;  // the rest follows from these
  }
};

inline KvPages kv_pages(const KvCacheView& view) {
  return {reinterpret_cast<unsigned char*>(view.base), view.layout, static_cast<long long>(view.layout.page_bytes()),
          view.layout.tiles_per_page()};
}

// Null: the page was freed or never allocated.
__device__ __forceinline__ unsigned char* tile_pointer(const KvPages& kv, const int32_t* pages, int tile) {
  const int32_t page = pages[tile / kv.tiles_per_page];
  if (page == kNoPage) return nullptr;
  return kv.base + page * kv.page_bytes + tile % kv.tiles_per_page * static_cast<long long>(kv.layout.tile_bytes);
}

__device__ __forceinline__ int key_index(int head_dim, int slot, int d) {
  return (slot / kPanelKeys * head_dim + d) * kPanelKeys + slot % kPanelKeys;
}

// cos and sin of position * theta^(-2t/head_dim) as the product of a coarse and a fine table. Sums of two floats: as good as
// the CPU's doubles, which many devices compute at 1/64 of the speed.
struct RopeAngle {
  FloatPair cos, sin;
};
struct RopeTables {
  static constexpr int kFine = 1024;
  const RopeAngle* fine = nullptr;    // [kFine][half]; null: no rotation
  const RopeAngle* coarse = nullptr;  // [kMaxPositions / kFine][half]
  int half = 0;
  bool interleaved = true;
  friend bool operator==(const RopeTables&, const RopeTables&) = default;
};

// New rows inside one tile of one sequence.
struct KvWriteItem {
  const int32_t* pages;  // [kv heads][page_stride] of this layer
  int page_stride;
  int row;       // first row of qkv
  int position;  // of that row
  int count;     // rows, all in one tile
};
// The tiles of one sequence that filled up: norm maxima chain from tile to tile, super boxes need 16 finished tiles.
struct KvChainItem {
  const int32_t* pages;
  int page_stride;
  int first_tile, end_tile;
};

struct KvWriteArgs {
  KvPages kv;
  RopeTables rope;
  void* qkv = nullptr;  // [rows, (heads + 2 * kv_heads) * head_dim] operands
  int num_heads = 0, num_kv_heads = 0;
  const uint8_t* use_super = nullptr;  // [kv heads]
  friend bool operator==(const KvWriteArgs&, const KvWriteArgs&) = default;
};
// operand: kF32, kF16 or kBF16. Items on the device.
void write_kv_rows(const KvWriteArgs& args, DType operand, const KvWriteItem* items, int num_items,
                   const KvChainItem* chains, int num_chains, const Queue& queue);

}  // namespace bam::cuda
