#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention.h"

namespace bam::cpu {
namespace {

// One number on its way into the cache; `index` counts elements of the tile's K or V array.
struct Quantizer {
  float scale = 1, minimum = 0;  // value = minimum + scale * code
  float inverse = 1;
};

Quantizer fit_int8(const float* row, int count) {
  float max_abs = 0;
  for (int d = 0; d < count; ++d) max_abs = std::max(max_abs, std::fabs(row[d]));
  Quantizer q;
  q.scale = f16_to_f32(f32_to_f16(max_abs / 127.0f));
  // The stored scale was rounded; a scale rounded down would clip the largest value, so take the next one up.
  if (q.scale * 127.0f < max_abs) q.scale = f16_to_f32(static_cast<uint16_t>(f32_to_f16(q.scale) + 1));
  q.inverse = q.scale > 0 ? 1.0f / q.scale : 0.0f;
  return q;
}

Quantizer fit_int4(const float* row, int count) {
  float low = row[0], high = row[0];
  for (int d = 1; d < count; ++d) {
    low = std::min(low, row[d]);
    high = std::max(high, row[d]);
  }
  Quantizer q;
  q.minimum = f16_to_f32(f32_to_f16(low));
  q.scale = f16_to_f32(f32_to_f16(std::max(high - q.minimum, 0.0f) / 15.0f));
  q.inverse = q.scale > 0 ? 1.0f / q.scale : 0.0f;
  return q;
}

int encode(const Quantizer& q, float value, int low, int high) {
  const float code = std::nearbyintf((value - q.minimum) * q.inverse);
  return static_cast<int>(std::clamp(code, static_cast<float>(low), static_cast<float>(high)));
}

void put_nibble(uint8_t* bytes, int64_t index, int code) {
  // Groups of 16 elements take 8 bytes: element e < 8 in the low nibble of byte e, else in the high one of e - 8.
  uint8_t& byte = bytes[index / 16 * 8 + index % 8];
  byte =
      index % 16 < 8 ? static_cast<uint8_t>((byte & 0xf0) | code) : static_cast<uint8_t>((byte & 0x0f) | (code << 4));
}

int get_nibble(const uint8_t* bytes, int64_t index) {
  const uint8_t byte = bytes[index / 16 * 8 + index % 8];
  return index % 16 < 8 ? byte & 0x0f : byte >> 4;
}

int64_t k_index(const KvLayout& layout, int slot, int d) {
  return (int64_t{slot / kPanelKeys} * layout.head_dim + d) * kPanelKeys + slot % kPanelKeys;
}

struct Scales {
  uint16_t* scale;
  uint16_t* minimum;
};
Scales scales_at(std::byte* tile, size_t offset) {
  auto* scale = reinterpret_cast<uint16_t*>(tile + offset);
  return {scale, scale + kTileKeys};
}

template <typename Put>
void store_row(const KvLayout& layout, std::byte* tile, size_t scale_offset, int slot, const float* row, Put&& put) {
  Quantizer q;
  if (layout.dtype == DType::kI8) q = fit_int8(row, layout.head_dim);
  if (layout.dtype == DType::kI4) q = fit_int4(row, layout.head_dim);
  if (layout.dtype == DType::kI8 || layout.dtype == DType::kI4) {
    const Scales scales = scales_at(tile, scale_offset);
    scales.scale[slot] = f32_to_f16(q.scale);
    if (layout.dtype == DType::kI4) scales.minimum[slot] = f32_to_f16(q.minimum);
  }
  for (int d = 0; d < layout.head_dim; ++d) put(d, row[d], q);
}

template <typename Index>
void store_values(const KvLayout& layout, std::byte* tile, size_t offset, size_t scale_offset, int slot,
                  const float* row, Index&& index) {
  std::byte* base = tile + offset;
  switch (layout.dtype) {
    case DType::kF32:
      for (int d = 0; d < layout.head_dim; ++d) reinterpret_cast<float*>(base)[index(d)] = row[d];
      return;
    case DType::kF16:
      for (int d = 0; d < layout.head_dim; ++d) reinterpret_cast<uint16_t*>(base)[index(d)] = f32_to_f16(row[d]);
      return;
    case DType::kI8:
      return store_row(layout, tile, scale_offset, slot, row, [&](int d, float value, const Quantizer& q) {
        reinterpret_cast<int8_t*>(base)[index(d)] = static_cast<int8_t>(encode(q, value, -127, 127));
      });
    default:
      return store_row(layout, tile, scale_offset, slot, row, [&](int d, float value, const Quantizer& q) {
        put_nibble(reinterpret_cast<uint8_t*>(base), index(d), encode(q, value, 0, 15));
      });
  }
}

float load_key(const KvLayout& layout, const std::byte* tile, int slot, int d) {
  const std::byte* base = tile + layout.k_offset;
  const int64_t index = k_index(layout, slot, d);
  const auto* scale = reinterpret_cast<const uint16_t*>(tile + layout.k_scale_offset);
  switch (layout.dtype) {
    case DType::kF32: return reinterpret_cast<const float*>(base)[index];
    case DType::kF16: return f16_to_f32(reinterpret_cast<const uint16_t*>(base)[index]);
    case DType::kI8: return f16_to_f32(scale[slot]) * static_cast<float>(reinterpret_cast<const int8_t*>(base)[index]);
    default:
      return f16_to_f32(scale[kTileKeys + slot]) +
             f16_to_f32(scale[slot]) * static_cast<float>(get_nibble(reinterpret_cast<const uint8_t*>(base), index));
  }
}

// Half-precision neighbours that surely enclose the value.
uint16_t round_down_f16(float value) {
  const uint16_t half = f32_to_f16(value);
  if (f16_to_f32(half) <= value) return half;
  if ((half & 0x7fff) == 0) return 0x8001;  // below zero: smallest negative subnormal
  return static_cast<uint16_t>((half & 0x8000) != 0 ? half + 1 : half - 1);
}
uint16_t round_up_f16(float value) { return static_cast<uint16_t>(round_down_f16(-value) ^ 0x8000); }

struct StatsView {
  KeyStats* stats;
  uint16_t* lo;
  uint16_t* hi;
};
StatsView stats_at(const KvLayout& layout, std::byte* at) {
  auto* lo = reinterpret_cast<uint16_t*>(at + sizeof(KeyStats));
  return {reinterpret_cast<KeyStats*>(at), lo, lo + layout.padded_dim};
}

// Norms were rounded in float32; widening them keeps every bound an upper bound.
constexpr float kWiden = 1.0f + 1e-5f;

}  // namespace

void store_tile_rows(const KvLayout& layout, std::byte* tile, int slot, int count, const float* k, const float* v,
                     int64_t ld) {
  if (slot == 0) {  // a recycled page: padding and unused scales must read as zero, statistics as unfinished
    std::memset(tile + layout.k_scale_offset, 0, layout.stats_offset - layout.k_scale_offset);
    std::memset(tile + layout.v_offset, 0,
                static_cast<size_t>(kTileKeys) * static_cast<size_t>(layout.padded_dim) * dtype_bits(layout.dtype) / 8);
    reinterpret_cast<KeyStats*>(tile + layout.stats_offset)->valid = 0;
    reinterpret_cast<KeyStats*>(tile + layout.super_stats_offset)->valid = 0;
  }
  for (int i = 0; i < count; ++i) {
    const int at = slot + i;
    store_values(layout, tile, layout.k_offset, layout.k_scale_offset, at, k + i * ld,
                 [&](int d) { return k_index(layout, at, d); });
    store_values(layout, tile, layout.v_offset, layout.v_scale_offset, at, v + i * ld,
                 [&](int d) { return int64_t{at} * layout.padded_dim + d; });
  }
}

void finish_tile_stats(const KvLayout& layout, std::byte* tile) {
  float lo[256], hi[256], mid[256];
  float norm2[kTileKeys] = {}, dist2[kTileKeys] = {};
  const StatsView view = stats_at(layout, tile + layout.stats_offset);
  for (int d = 0; d < layout.head_dim; ++d) {
    lo[d] = std::numeric_limits<float>::infinity();
    hi[d] = -lo[d];
    for (int s = 0; s < kTileKeys; ++s) {
      const float value = load_key(layout, tile, s, d);
      lo[d] = std::min(lo[d], value);
      hi[d] = std::max(hi[d], value);
      norm2[s] += value * value;
    }
    view.lo[d] = round_down_f16(lo[d]);
    view.hi[d] = round_up_f16(hi[d]);
    mid[d] = 0.5f * (f16_to_f32(view.lo[d]) + f16_to_f32(view.hi[d]));
    for (int s = 0; s < kTileKeys; ++s) {
      const float offset = load_key(layout, tile, s, d) - mid[d];
      dist2[s] += offset * offset;
    }
  }
  for (int d = layout.head_dim; d < layout.padded_dim; ++d) view.lo[d] = view.hi[d] = 0;
  float max_norm2 = 0, max_dist2 = 0;
  for (int s = 0; s < kTileKeys; ++s) {
    // A NaN key compares false everywhere and would vanish from the maximum; make the bound useless instead.
    if (!(norm2[s] <= max_norm2)) max_norm2 = norm2[s];
    if (!(dist2[s] <= max_dist2)) max_dist2 = dist2[s];
  }
  view.stats->radius = std::sqrt(max_dist2) * kWiden;
  view.stats->max_norm = std::sqrt(max_norm2) * kWiden;
  view.stats->max_norm_prefix = view.stats->max_norm;
  view.stats->valid = 1;
}

void finish_super_stats(const KvLayout& layout, const std::byte* const* tiles, std::byte* last) {
  const StatsView out = stats_at(layout, last + layout.super_stats_offset);
  float mid[256];
  for (int d = 0; d < layout.padded_dim; ++d) {
    float lo = std::numeric_limits<float>::infinity(), hi = -lo;
    for (int t = 0; t < kSuperTiles; ++t) {
      const auto* box = reinterpret_cast<const uint16_t*>(tiles[t] + layout.stats_offset + sizeof(KeyStats));
      lo = std::min(lo, f16_to_f32(box[d]));
      hi = std::max(hi, f16_to_f32(box[layout.padded_dim + d]));
    }
    out.lo[d] = f32_to_f16(lo);
    out.hi[d] = f32_to_f16(hi);
    mid[d] = 0.5f * (lo + hi);
  }
  float radius = 0, max_norm = 0;
  for (int t = 0; t < kSuperTiles; ++t) {
    const auto* stats = reinterpret_cast<const KeyStats*>(tiles[t] + layout.stats_offset);
    const auto* box = reinterpret_cast<const uint16_t*>(stats + 1);
    float shift2 = 0;  // triangle inequality: |k - mid| <= |k - tile mid| + |tile mid - mid|
    for (int d = 0; d < layout.padded_dim; ++d) {
      const float offset = 0.5f * (f16_to_f32(box[d]) + f16_to_f32(box[layout.padded_dim + d])) - mid[d];
      shift2 += offset * offset;
    }
    const float tile_radius = stats->radius + std::sqrt(shift2);
    if (!(tile_radius <= radius)) radius = tile_radius;
    if (!(stats->max_norm <= max_norm)) max_norm = stats->max_norm;
  }
  out.stats->radius = radius * kWiden;
  out.stats->max_norm = max_norm;
  out.stats->max_norm_prefix = reinterpret_cast<const KeyStats*>(last + layout.stats_offset)->max_norm_prefix;
  out.stats->valid = 1;
}

}  // namespace bam::cpu
