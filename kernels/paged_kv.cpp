#include "kernels/paged_kv.h"

#include <cstring>

#include "base/check.h"

namespace bam {
namespace {

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

size_t key_bytes(const KvLayout& layout) {
  return static_cast<size_t>(kTileKeys) * static_cast<size_t>(layout.head_dim) * dtype_bits(layout.dtype) / 8;
}
size_t value_bytes(const KvLayout& layout) {
  return static_cast<size_t>(kTileKeys) * static_cast<size_t>(layout.padded_dim) * dtype_bits(layout.dtype) / 8;
}
size_t scale_bytes(DType dtype) {
  const size_t per_key = dtype == DType::kI4 ? 2 : dtype == DType::kI8 || dtype == DType::kFp8 ? 1 : 0;
  return per_key * kTileKeys * sizeof(uint16_t);
}

}  // namespace

size_t KvLayout::stats_bytes() const {
  return sizeof(KeyStats) + 2 * static_cast<size_t>(padded_dim) * sizeof(uint16_t);
}

KvLayout make_kv_layout(DType dtype, int head_dim, int page_size) {
  BAM_CHECK(page_size > 0 && page_size % kTileKeys == 0);
  BAM_CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim <= 256);
  KvLayout layout;
  layout.dtype = dtype;
  layout.head_dim = head_dim;
  layout.padded_dim = static_cast<int>(round_up(static_cast<size_t>(head_dim), 16));
  layout.page_size = page_size;
  size_t offset = 0;
  const auto place = [&offset](size_t bytes) {
    const size_t at = offset;
    offset = round_up(offset + bytes, 64);
    return at;
  };
  layout.k_offset = place(key_bytes(layout));
  layout.v_offset = place(value_bytes(layout));
  layout.k_scale_offset = place(scale_bytes(dtype));
  layout.v_scale_offset = place(scale_bytes(dtype));
  layout.stats_offset = place(layout.stats_bytes());
  layout.super_stats_offset = place(layout.stats_bytes());
  layout.tile_bytes = offset;
  return layout;
}

void clear_unused_bytes(const KvLayout& layout, int64_t block, std::span<std::byte> page) {
  BAM_CHECK(page.size() == layout.page_bytes());
  for (int t = 0; t < layout.tiles_per_page(); ++t) {
    const auto tile = page.subspan(static_cast<size_t>(t) * layout.tile_bytes, layout.tile_bytes);
    const auto clear = [&](size_t begin, size_t end) { std::memset(tile.data() + begin, 0, end - begin); };
    clear(layout.k_offset + key_bytes(layout), layout.v_offset);
    clear(layout.v_offset + value_bytes(layout), layout.k_scale_offset);
    clear(layout.k_scale_offset + scale_bytes(layout.dtype), layout.v_scale_offset);
    clear(layout.v_scale_offset + scale_bytes(layout.dtype), layout.stats_offset);
    clear(layout.stats_offset + layout.stats_bytes(), layout.super_stats_offset);
    const bool last = (block * layout.tiles_per_page() + t) % kSuperTiles == kSuperTiles - 1;
    clear(layout.super_stats_offset + (last ? layout.stats_bytes() : 0), layout.tile_bytes);
  }
}

}  // namespace bam
