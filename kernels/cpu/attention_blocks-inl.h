// Register tiles of attention: a few query rows times a tile of keys, a few rows of weights times its values. Included
// once per Highway target.
#if defined(BAM_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#undef BAM_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#else
#define BAM_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/kv_source-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/paged_kv.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

HWY_INLINE float MaxLane(F32x16 v) {
  auto m = v.part[0];
  for (int p = 1; p < kParts; ++p) m = hn::Max(m, v.part[p]);
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), m));
}

// Keeps lanes whose index (first + lane) lies in [low, high], the rest becomes minus infinity.
HWY_INLINE F32x16 KeepRange(F32x16 v, int first, int low, int high) {
  const FloatTag d;
  BAM_EACH_PART {
    const auto index = hn::Iota(d, static_cast<float>(first + p * kLanes));
    const auto keep = hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(low))),
                              hn::Le(index, hn::Set(d, static_cast<float>(high))));
    v.part[p] = hn::IfThenElse(keep, v.part[p], hn::Set(d, kMinusInf));
  }
  return v;
}

constexpr int kRowBlock = kParts == 1 ? 6 : 3;  // rows of one register tile
constexpr int kPanelsAtOnce = kParts == 1 ? 4 : (kParts == 2 ? 2 : 1);
constexpr int kDimBlocks = kParts == 1 ? 4 : (kParts == 2 ? 2 : 1);
constexpr int kPanels = kTileKeys / kPanelKeys;

// What is added to a tile's scores of one row: scale * at[slot]. Rows without a bias have none at all.
struct RowBias {
  const float* at;
  float scale;
};

// Few rows read a tile faster than memory delivers it, so they fetch the one that comes next. With more rows there is
// arithmetic enough to hide behind.
constexpr int kFewRows = 4;
template <int kRows>
constexpr bool kFetchesNext = kRows <= kFewRows;
template <int kBytes>
HWY_INLINE void FetchBytes(const std::byte* at) {
#pragma GCC unroll 8
  for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(at + line, 0, 2);
}

// scores[r][0..16 panels) = q[r] . K, plus bias[r] if there is one; every score is one chain over d. `panels` is a
// multiple of kAtOnce. `next` is like k.
template <typename Source, int kRows, int kAtOnce = kPanelsAtOnce>
HWY_INLINE void ScoreBlock(const float* HWY_RESTRICT q, int64_t ldq, int head_dim, const std::byte* HWY_RESTRICT k,
                           const std::byte* next, int panels, const RowBias* bias, float* HWY_RESTRICT scores) {
  for (int first = 0; first < panels; first += kAtOnce) {
    F32x16 acc[kRows][kAtOnce];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int b = 0; b < kAtOnce; ++b) acc[r][b] = Zero16();
    }
    const std::byte* base = k + static_cast<int64_t>(first) * head_dim * Source::kBytes16;
    const int64_t panel_bytes = static_cast<int64_t>(head_dim) * Source::kBytes16;
    for (int d = 0; d < head_dim; ++d) {
      F32x16 key[kAtOnce];
#pragma GCC unroll 16
      for (int b = 0; b < kAtOnce; ++b) key[b] = Source::Load(base + b * panel_bytes + d * Source::kBytes16);
      if constexpr (kFetchesNext<kRows>) {
        FetchBytes<kAtOnce * Source::kBytes16>(next + (first * head_dim + d * kAtOnce) * Source::kBytes16);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32x16 qd = Set16(q[r * ldq + d]);
#pragma GCC unroll 16
        for (int b = 0; b < kAtOnce; ++b) acc[r][b] = MulAdd(qd, key[b], acc[r][b]);
      }
    }
    if (bias != nullptr) {  // now, while they are in registers
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int b = 0; b < kAtOnce; ++b) {
          acc[r][b] = MulAdd(Set16(bias[r].scale), Load16(bias[r].at + (first + b) * kPanelKeys), acc[r][b]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int b = 0; b < kAtOnce; ++b) Store16(acc[r][b], scores + r * kTileKeys + (first + b) * kPanelKeys);
    }
  }
}

// out[r] = out[r] * scale[r] + shift[r] + sum over slots of p[r][slot] * V[slot], kBlocks blocks of sixteen dims.
template <typename Source, int kRows, int kBlocks>
HWY_INLINE void ValueBlock(const float* HWY_RESTRICT p, int slots, const std::byte* HWY_RESTRICT v,
                           const std::byte* next, int64_t v_row_bytes, const float* scale, const float* shift,
                           float* HWY_RESTRICT out, int64_t ldo) {
  F32x16 acc[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b)
      acc[r][b] = MulAdd(Load16(out + r * ldo + 16 * b), Set16(scale[r]), Set16(shift[r]));
  }
  for (int s = 0; s < slots; ++s) {
    F32x16 value[kBlocks];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) value[b] = Source::Load(v + s * v_row_bytes + b * Source::kBytes16);
    if constexpr (kFetchesNext<kRows>) FetchBytes<kBlocks * Source::kBytes16>(next + s * v_row_bytes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 weight = Set16(p[r * kTileKeys + s]);
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) acc[r][b] = MulAdd(weight, value[b], acc[r][b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) Store16(acc[r][b], out + r * ldo + 16 * b);
  }
}

// `panels`: those with a key some row may see. A single row (decode) reads no others: its own tile is half empty on
// average, and with many short streams the keys are most of the traffic.
template <typename Source, int kRows>
HWY_NOINLINE void ScoreRows(const float* q, int64_t ldq, int head_dim, const std::byte* k, const std::byte* next,
                            int panels, const RowBias* bias, float* scores) {
  if constexpr (kRows == 1) {
    std::fill(scores + panels * kPanelKeys, scores + kTileKeys, 0.0f);
    const auto score = [&]<int kAtOnce>() HWY_ATTR {
      ScoreBlock<Source, 1, kAtOnce>(q, ldq, head_dim, k, next, panels, nullptr, scores);
    };
    if (kPanelsAtOnce > 3 && panels == 3) return score.template operator()<3>();
    if (kPanelsAtOnce > 2 && panels == 2) return score.template operator()<2>();
    if (panels % kPanelsAtOnce == 0) return score.template operator()<kPanelsAtOnce>();
    return score.template operator()<1>();
  }
  ScoreBlock<Source, kRows>(q, ldq, head_dim, k, next, kPanels, bias, scores);
}

template <typename Source, int kRows>
HWY_NOINLINE void ValueRows(const float* p, int slots, const std::byte* v, const std::byte* next, int padded_dim,
                            const float* scale, const float* shift, float* out) {
  const int64_t row_bytes = padded_dim / 16 * Source::kBytes16;
  const int blocks = padded_dim / 16;
  int block = 0;
  const auto value = [&]<int kBlocks>() HWY_ATTR {
    const int64_t at = block * Source::kBytes16;
    ValueBlock<Source, kRows, kBlocks>(p, slots, v + at, next + at, row_bytes, scale, shift, out + 16 * block,
                                       padded_dim);
    block += kBlocks;
  };
  while (block + kDimBlocks <= blocks) value.template operator()<kDimBlocks>();
  if constexpr (kDimBlocks >= 4) {
    if (blocks - block == 3) return value.template operator()<3>();
    if (blocks - block == 2) return value.template operator()<2>();
  }
  while (block < blocks) value.template operator()<1>();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
