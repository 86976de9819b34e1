#include "kernels/cpu/kv_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_store.cpp"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/attention_blocks-inl.h"

// Once for all targets.
#ifndef BAM_KERNELS_CPU_KV_STORE_ONCE
#define BAM_KERNELS_CPU_KV_STORE_ONCE
namespace bam::cpu {
namespace {

constexpr int kMaxDim = 256;

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
}  // namespace bam::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {

// `count` floats in blocks of sixteen, the last one filled up with zeros.
struct PaddedRow {
  const float* from;
  int blocks, whole;
  HWY_ALIGN float rest[16];

  HWY_INLINE PaddedRow(const float* from_, int count) : from(from_), blocks((count + 15) / 16), whole(count / 16) {
    if (blocks == whole) return;
    std::memset(rest, 0, sizeof rest);
    std::memcpy(rest, from + 16 * whole, static_cast<size_t>(count - 16 * whole) * sizeof(float));
  }
  HWY_INLINE F32x16 block(int b) const { return Load16(b < whole ? from + 16 * b : rest); }
};

HWY_INLINE void StoreF16(F32x16 v, uint16_t* to) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  BAM_EACH_PART hn::StoreU(hn::DemoteTo(dh, v.part[p]), dh, reinterpret_cast<hwy::float16_t*>(to) + p * kLanes);
#else  // what stands in for the instruction elsewhere loses subnormals
  HWY_ALIGN float lanes[16];
  Store16(v, lanes);
  for (int i = 0; i < 16; ++i) to[i] = f32_to_f16(lanes[i]);
#endif
}

// The largest of the lanes; NaN does not count.
HWY_INLINE float Largest(F32x16 v) { return MaxLane(Max(v, Set16(kMinusInf))); }
HWY_INLINE float Smallest(F32x16 v) {
  BAM_EACH_PART v.part[p] = hn::Neg(v.part[p]);
  return -Largest(v);
}

// How one row of numbers becomes codes: value = minimum + scale * code.
struct Quantizer {
  float scale = 1, minimum = 0;
  float inverse = 1;
};

HWY_INLINE Quantizer FitInt8(const PaddedRow& row) {
  F32x16 largest = Zero16();
  for (int b = 0; b < row.blocks; ++b) {
    const F32x16 v = row.block(b);
    BAM_EACH_PART largest.part[p] = hn::Max(hn::Abs(v.part[p]), largest.part[p]);
  }
  const float max_abs = MaxLane(largest);
  Quantizer q;
  q.scale = f16_to_f32(f32_to_f16(max_abs / 127.0f));
  // The stored scale was rounded; a scale rounded down would clip the largest value, so take the next one up.
  if (q.scale * 127.0f < max_abs) q.scale = f16_to_f32(static_cast<uint16_t>(f32_to_f16(q.scale) + 1));
  q.inverse = q.scale > 0 ? 1.0f / q.scale : 0.0f;
  return q;
}

HWY_INLINE Quantizer FitInt4(const float* row, int count) {
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

// codes[0 ... 16 blocks) = the row's numbers, clamped to [low, high].
HWY_INLINE void Encode(const Quantizer& q, const PaddedRow& row, float low, float high, int8_t* codes) {
  const FloatTag d;
  const hn::Rebind<int8_t, FloatTag> db;
  for (int b = 0; b < row.blocks; ++b) {
    const F32x16 v = row.block(b);
    BAM_EACH_PART {
      const auto code = hn::Mul(hn::Sub(v.part[p], hn::Set(d, q.minimum)), hn::Set(d, q.inverse));
      const auto clamped = hn::Min(hn::Max(code, hn::Set(d, low)), hn::Set(d, high));
      hn::StoreU(hn::DemoteTo(db, hn::NearestInt(clamped)), db, codes + 16 * b + p * kLanes);
    }
  }
}

// Groups of 16 elements take 8 bytes: element e < 8 in the low nibble of byte e, else in the high one of e - 8.
HWY_INLINE void PutNibble(uint8_t* bytes, int64_t index, int code) {
  uint8_t& byte = bytes[index / 16 * 8 + index % 8];
  byte =
      index % 16 < 8 ? static_cast<uint8_t>((byte & 0xf0) | code) : static_cast<uint8_t>((byte & 0x0f) | (code << 4));
}

// Element d of the row goes to index first + d * stride of the tile's K or V.
struct Target {
  std::byte* base;
  int64_t first, stride;
  uint16_t* scales;  // [2][64] of the tile: scale, minimum
  int slot;
};

template <typename T>
HWY_INLINE void Scatter(const Target& to, const T* from, int count) {
  T* at = reinterpret_cast<T*>(to.base) + to.first;
  if (to.stride == 1) {
    std::memcpy(at, from, static_cast<size_t>(count) * sizeof(T));
    return;
  }
  for (int d = 0; d < count; ++d) at[d * to.stride] = from[d];
}

HWY_INLINE void StoreRow(DType dtype, const Target& to, const float* row, int count) {
  if (dtype == DType::kF32) return Scatter(to, row, count);
  const PaddedRow padded(row, count);
  if (dtype == DType::kF16) {
    uint16_t halves[kMaxDim];
    for (int b = 0; b < padded.blocks; ++b) StoreF16(padded.block(b), halves + 16 * b);
    return Scatter(to, halves, count);
  }
  int8_t codes[kMaxDim];
  const Quantizer q = dtype == DType::kI8 ? FitInt8(padded) : FitInt4(row, count);
  to.scales[to.slot] = f32_to_f16(q.scale);
  if (dtype == DType::kI8) {
    Encode(q, padded, -127, 127, codes);
    return Scatter(to, codes, count);
  }
  to.scales[kTileKeys + to.slot] = f32_to_f16(q.minimum);
  Encode(q, padded, 0, 15, codes);
  for (int d = 0; d < count; ++d) PutNibble(reinterpret_cast<uint8_t*>(to.base), to.first + d * to.stride, codes[d]);
}

// Four half-precision keys at neighbouring slots of a panel: one store of eight bytes per dimension instead of four of
// two.
HWY_INLINE void StoreFourKeys(uint16_t* at, const float* k, int64_t ld, int count) {
  HWY_ALIGN uint16_t halves[4][kMaxDim];
  for (int i = 0; i < 4; ++i) {
    const PaddedRow row(k + i * ld, count);
    for (int b = 0; b < row.blocks; ++b) StoreF16(row.block(b), halves[i] + 16 * b);
  }
  int d = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<uint16_t> d16;
  const hn::Full128<uint32_t> d32;
  const hn::Full64<uint32_t> half;
  const auto put = [&](hn::Vec<decltype(d32)> two_dims, int d) {
    hn::StoreU(hn::LowerHalf(half, two_dims), half, reinterpret_cast<uint32_t*>(at + d * kPanelKeys));
    hn::StoreU(hn::UpperHalf(half, two_dims), half, reinterpret_cast<uint32_t*>(at + (d + 1) * kPanelKeys));
  };
  for (; d + 8 <= count; d += 8) {
    const auto k0 = hn::LoadU(d16, halves[0] + d), k1 = hn::LoadU(d16, halves[1] + d);
    const auto k2 = hn::LoadU(d16, halves[2] + d), k3 = hn::LoadU(d16, halves[3] + d);
    const auto low01 = hn::BitCast(d32, hn::InterleaveLower(d16, k0, k1));
    const auto low23 = hn::BitCast(d32, hn::InterleaveLower(d16, k2, k3));
    const auto high01 = hn::BitCast(d32, hn::InterleaveUpper(d16, k0, k1));
    const auto high23 = hn::BitCast(d32, hn::InterleaveUpper(d16, k2, k3));
    put(hn::InterleaveLower(d32, low01, low23), d);
    put(hn::InterleaveUpper(d32, low01, low23), d + 2);
    put(hn::InterleaveLower(d32, high01, high23), d + 4);
    put(hn::InterleaveUpper(d32, high01, high23), d + 6);
  }
#endif
  for (; d < count; ++d) {
    for (int i = 0; i < 4; ++i) at[d * kPanelKeys + i] = halves[i][d];
  }
}

void StoreTileRows(const KvLayout& layout, std::byte* tile, int slot, const KeyValueRows& rows) {
  BAM_CHECK(rows.head_dim == layout.head_dim && rows.stride >= rows.head_dim);
  BAM_CHECK(slot >= 0 && rows.count >= 0 && slot + rows.count <= kTileKeys);
  const auto [k, v, count, head_dim, ld] = rows;
  // A recycled page: padding and unused scales must read as zero, statistics as unfinished, and no byte of the tile,
  // not even in a gap, may tell what was there before.
  if (slot == 0) std::memset(tile, 0, layout.tile_bytes);
  auto* k_scales = reinterpret_cast<uint16_t*>(tile + layout.k_scale_offset);
  auto* v_scales = reinterpret_cast<uint16_t*>(tile + layout.v_scale_offset);
  int four_until = 0;  // rows whose keys are stored already
  for (int i = 0; i < count; ++i) {
    const int at = slot + i;
    const int64_t in_panel = int64_t{at / kPanelKeys} * layout.head_dim * kPanelKeys + at % kPanelKeys;
    if (layout.dtype == DType::kF16 && at % 4 == 0 && i + 4 <= count) {
      StoreFourKeys(reinterpret_cast<uint16_t*>(tile + layout.k_offset) + in_panel, k + i * ld, ld, layout.head_dim);
      four_until = i + 4;
    }
    if (i >= four_until) {
      StoreRow(layout.dtype, {tile + layout.k_offset, in_panel, kPanelKeys, k_scales, at}, k + i * ld, layout.head_dim);
    }
    StoreRow(layout.dtype, {tile + layout.v_offset, int64_t{at} * layout.padded_dim, 1, v_scales, at}, v + i * ld,
             layout.head_dim);
  }
}

// A tile's keys as they are stored: Load(d, panel) gives dimension d of sixteen keys.
template <typename Source>
struct StoredKeys {
  const KvLayout& layout;
  const std::byte* tile;

  HWY_INLINE F32x16 Load(int d, int panel) const {
    const int64_t index = int64_t{panel} * layout.head_dim + d;
    const F32x16 raw = Source::Load(tile + layout.k_offset + index * Source::kBytes16);
    const auto* scales = reinterpret_cast<const uint16_t*>(tile + layout.k_scale_offset) + panel * kPanelKeys;
    if constexpr (std::is_same_v<Source, I8Source>) return Mul(LoadF16(scales), raw);
    if constexpr (std::is_same_v<Source, I4Source>) return Add(LoadF16(scales + kTileKeys), Mul(LoadF16(scales), raw));
    return raw;
  }
};

template <typename Source>
void FinishStats(const KvLayout& layout, std::byte* tile) {
  const StoredKeys<Source> keys{layout, tile};
  const StatsView view = stats_at(layout, tile + layout.stats_offset);
  F32x16 norm2[kPanels], dist2[kPanels];
  for (int b = 0; b < kPanels; ++b) norm2[b] = dist2[b] = Zero16();
  for (int d = 0; d < layout.head_dim; ++d) {
    F32x16 value[kPanels];
    for (int b = 0; b < kPanels; ++b) value[b] = keys.Load(d, b);
    F32x16 lo = value[0], hi = value[0];
    for (int b = 1; b < kPanels; ++b) {
      lo = Min(lo, value[b]);
      hi = Max(hi, value[b]);
    }
    view.lo[d] = round_down_f16(Smallest(lo));
    view.hi[d] = round_up_f16(Largest(hi));
    const F32x16 mid = Set16(0.5f * (f16_to_f32(view.lo[d]) + f16_to_f32(view.hi[d])));
    for (int b = 0; b < kPanels; ++b) {
      const F32x16 offset = Sub(value[b], mid);
      norm2[b] = Add(norm2[b], Mul(value[b], value[b]));
      dist2[b] = Add(dist2[b], Mul(offset, offset));
    }
  }
  for (int d = layout.head_dim; d < layout.padded_dim; ++d) view.lo[d] = view.hi[d] = 0;
  const auto largest = [](const F32x16(&of)[kPanels]) {
    HWY_ALIGN float lanes[kTileKeys];
    for (int b = 0; b < kPanels; ++b) Store16(of[b], lanes + 16 * b);
    float most = 0;
    for (const float value : lanes) most = larger_or_nan(most, value);
    return most;
  };
  view.stats->radius = std::sqrt(largest(dist2)) * kWiden;
  view.stats->max_norm = std::sqrt(largest(norm2)) * kWiden;
  view.stats->max_norm_prefix = view.stats->max_norm;
  view.stats->valid = 1;
}

void FinishTileStats(const KvLayout& layout, std::byte* tile) {
  switch (layout.dtype) {
    case DType::kF32: return FinishStats<F32Source>(layout, tile);
    case DType::kF16: return FinishStats<F16Source>(layout, tile);
    case DType::kI8: return FinishStats<I8Source>(layout, tile);
    default: return FinishStats<I4Source>(layout, tile);
  }
}

KvStoreKernels KvStoreTable() { return {StoreTileRows, FinishTileStats}; }

}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bam::cpu {

HWY_EXPORT(KvStoreTable);
KvStoreKernels kv_store_kernels() { return HWY_DYNAMIC_DISPATCH(KvStoreTable)(); }

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
    radius = larger_or_nan(radius, tile_radius);
    max_norm = larger_or_nan(max_norm, stats->max_norm);
  }
  out.stats->radius = radius * kWiden;
  out.stats->max_norm = max_norm;
  out.stats->max_norm_prefix = reinterpret_cast<const KeyStats*>(last + layout.stats_offset)->max_norm_prefix;
  out.stats->valid = 1;
}

}  // namespace bam::cpu
#endif
