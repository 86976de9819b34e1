// How keys and values lie in memory. One page belongs to one (layer, KV head) group of one or more sequences:
//
//   page = page_size / 64 tiles, each
//     K      4 panels of 16 keys, a panel is [head_dim][16]: q.K runs along keys, no transpose when reading
//     V      [64][padded_dim], padded_dim = head_dim rounded up to 16, padding zero
//     scales one per key for K and for V (int8, fp8: scale; int4: scale and minimum), float16
//     stats  box and norms of the 64 stored keys, written once when the tile is full
//
// int4 stores 16 neighbours (keys of a panel, dims of a V row) in 8 bytes: low nibbles are the first eight.
// Scales are per key, not per page, so that what a query reads never depends on keys written later: results do not
// change with chunk boundaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

namespace bam {

inline constexpr int kTileKeys = 64;    // keys per attention tile; page sizes are multiples of it
inline constexpr int kPanelKeys = 16;   // keys per K panel
inline constexpr int kSuperTiles = 16;  // tiles summarised by one super-tile box
inline constexpr int32_t kNoPage = -1;  // block-table entry: freed (out of reach) or never allocated

// Offsets in bytes from the start of a tile.
struct KvLayout {
  DType dtype = DType::kF16;  // see Backend::supports_kv
  int head_dim = 0;           // any even number up to 256
  int padded_dim = 0;         // head_dim rounded up to a multiple of 16
  int page_size = kTileKeys;  // keys per page
  size_t k_offset = 0, v_offset = 0;
  size_t k_scale_offset = 0, v_scale_offset = 0;
  size_t stats_offset = 0, super_stats_offset = 0;
  size_t tile_bytes = 0;

  int tiles_per_page() const { return page_size / kTileKeys; }
  size_t page_bytes() const { return tile_bytes * static_cast<size_t>(tiles_per_page()); }
  size_t stats_bytes() const;
};

// Summary of a set of keys for upper bounds on q.k. Followed by lo[head_dim], hi[head_dim] as float16, rounded
// outwards.
struct KeyStats {
  float radius;           // max |k - (lo + hi)/2| over the keys
  float max_norm;         // max |k| over the keys
  float max_norm_prefix;  // max |k| over this tile and all earlier ones of the sequence
  uint32_t valid;         // 1 once the set is complete and the numbers above are final
  // uint16_t lo[head_dim], hi[head_dim]
};

// page_size must be a positive multiple of 64, head_dim even.
KvLayout make_kv_layout(DType dtype, int head_dim, int page_size);

// Zeroes what nobody wrote since the page had another owner: gaps between the parts, and the box of a super-tile where
// the tile is not its last. block: the page's place in its sequence.
void clear_unused_bytes(const KvLayout& layout, int64_t block, std::span<std::byte> page);

// All pages of the cache. Page p starts at base + p * page_bytes.
struct KvCacheView {
  std::byte* base = nullptr;
  int64_t num_pages = 0;
  KvLayout layout;

  std::span<std::byte> page(int32_t id) const {
    return {base + static_cast<size_t>(id) * layout.page_bytes(), layout.page_bytes()};
  }
};

}  // namespace bam
