#include "kernels/paged_kv.h"

#include "base/check.h"

namespace bam {
namespace {

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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
  const size_t bits = dtype_bits(dtype);
  const size_t k_bytes = static_cast<size_t>(kTileKeys) * static_cast<size_t>(head_dim) * bits / 8;
  const size_t v_bytes = static_cast<size_t>(kTileKeys) * static_cast<size_t>(layout.padded_dim) * bits / 8;
  const size_t scales_per_key = dtype == DType::kI4 ? 2 : dtype == DType::kI8 || dtype == DType::kFp8 ? 1 : 0;
  const size_t scale_bytes = scales_per_key * kTileKeys * sizeof(uint16_t);
  size_t offset = 0;
  const auto place = [&offset](size_t bytes) {
    const size_t at = offset;
    offset = round_up(offset + bytes, 64);
    return at;
  };
  layout.k_offset = place(k_bytes);
  layout.v_offset = place(v_bytes);
  layout.k_scale_offset = place(scale_bytes);
  layout.v_scale_offset = place(scale_bytes);
  layout.stats_offset = place(layout.stats_bytes());
  layout.super_stats_offset = place(layout.stats_bytes());
  layout.tile_bytes = offset;
  return layout;
}

}  // namespace bam
