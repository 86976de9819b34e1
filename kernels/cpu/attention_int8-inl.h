// Attention over int8 and int4 pages in integers. For one query row and a tile of keys:
//
//   q    ~ q_scale * code, codes -127 ... 127, one scale per row. From here on the row's query IS q_scale * code: scores
//          and bounds speak of the same numbers, so the certificate covers what is computed
//   t_j  = k_scale_j * (code . k_j) + bias_scale / q_scale * B: the logit over q_scale; `top` is the largest visible one
//   e_j  = 2^((t_j - top) * q_scale * log2 e), by a polynomial of degree 2
//   u_j  = floor(255 * e_j * v_scale_j / largest visible v_scale + dither), a byte: as fine as the row's best key in
//          this tile allows
//   out += exp(top * q_scale - max) * largest v_scale / 255 * sum of u_j * v_j
//   sum += exp(top * q_scale - max) * sum of e_j
//
// The dither is a fixed pattern over slots, turned by the row's position: weights below half a step are not lost but
// appear as often as they should. Sums of products are exact and nothing around them is fused: every instruction set
// gives the same bits. Included once per Highway target.
#if defined(BAM_KERNELS_CPU_ATTENTION_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_ATTENTION_INT8_INL_H_
#undef BAM_KERNELS_CPU_ATTENTION_INT8_INL_H_
#else
#define BAM_KERNELS_CPU_ATTENTION_INT8_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_blocks-inl.h"
#include "kernels/cpu/quads-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

constexpr int kQuadRows = kParts == 1 ? 6 : 2;  // rows of one register tile
constexpr int kQuadPanels = kParts == 1 ? 4 : (kParts == 2 ? 2 : 1);
constexpr int kTileQuads = kTileKeys / 4;
// A quad of values is slots i, 16 + i, 32 + i, 48 + i: four vectors of weights pack without a shuffle.
constexpr int kWeightWords = kTileQuads * kQuadWords;
constexpr float kLog2e = 1.44269504f;
constexpr float kWeightSteps = 255.0f;

// 2^z for -100 <= z <= 0, exact at 0, within 2^-9 elsewhere: half a step of the bytes it becomes.
HWY_INLINE F32x16 CoarseExp2(F32x16 z) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, found in the lowest bits
  const FloatTag d;
  F32x16 result;
  BAM_EACH_PART {
    const auto v = hn::Max(z.part[p], hn::Set(d, -100.0f));
    const auto rounded = hn::Add(v, hn::Set(d, kMagic));
    const auto f = hn::Sub(v, hn::Sub(rounded, hn::Set(d, kMagic)));
    auto power = hn::Add(hn::Mul(f, hn::Set(d, 0x1.eb3dd4p-3f)), hn::Set(d, 0x1.67e7fep-1f));
    power = hn::Add(hn::Mul(power, f), hn::Set(d, 1.0f));
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(IntTag(), rounded));
    result.part[p] = hn::BitCast(d, hn::Add(hn::BitCast(IntTag(), power), exponent));
  }
  return result;
}
constexpr float kCoarseExpError = 0x1p-8f;  // of a log-sum-exp, generously

// The codes of a row's query, and the query that they stand for.
HWY_INLINE void RoundQuery(const AttentionItem& item, AttentionScratch& scratch, int r) {
  const int pd = item.layout.padded_dim;
  const float* from = item.q + r * pd;
  F32x16 largest = Zero16(), whole = Zero16();
  for (int d = 0; d < pd; d += 16) {
    const F32x16 size = Abs(Load16(from + d));
    largest = Max(largest, size);
    whole = Add(whole, size);
  }
  // Not below 2^-40, so that bias_scale / q_scale stays a number: such a query is as good as zero. A query that is none
  // has a scale that is none, and so has all that comes of it.
  float scale = std::max(ReduceMax16(largest) / 127.0f, 0x1p-40f);
  if (const float sum = ReduceSum16(whole); sum - sum != 0) scale = std::numeric_limits<float>::quiet_NaN();
  const F32x16 inverse = Set16(1.0f / scale), step = Set16(scale);
  HWY_ALIGN int32_t codes[kMaxHeadDim];
  float* rounded = scratch.q_rounded.data() + static_cast<size_t>(r * pd);
  I32x16 total = SetSums(0);
  for (int d = 0; d < pd; d += 16) {
    const I32x16 code = Nearest(Min(Max(Mul(Load16(from + d), inverse), Set16(-127.0f)), Set16(127.0f)));
    StoreSums(code, codes + d);
    Store16(Mul(ToFloat(code), step), rounded + d);
    BAM_EACH_PART total.part[p] = hn::Add(total.part[p], code.part[p]);
  }
  PutRow(codes, pd / 4, scratch.q_words.data() + static_cast<size_t>(r * pd / 4 * kMostQuadWords));
  scratch.q_scale[r] = scale;
  HWY_ALIGN int32_t lanes[16];
  StoreSums(total, lanes);
  scratch.q_code_sum[r] = std::accumulate(lanes, lanes + 16, 0);
}

// One tile against the rows that need it.
class QuadTile {
 public:
  QuadTile(const AttentionItem& item, AttentionScratch& scratch, const SoftmaxState& state)
      : item_(item), scratch_(scratch), state_(state), layout_(item.layout), pd_(item.layout.padded_dim) {}

  // `next`: the tile to fetch meanwhile if there are few rows.
  void Visit(int64_t tile, const std::byte* data, const std::byte* next, uint64_t need) {
    key0_ = tile * kTileKeys;
    count_ = 0;
    int64_t newest = 0;
    for (; need != 0; need &= need - 1) {
      row_[count_++] = std::countr_zero(need);
      newest = std::max(newest, item_.row[row_[count_ - 1]].position);
    }
    const int seen = static_cast<int>(std::min<int64_t>(newest - key0_, kTileKeys - 1)) + 1;
    layout_.dtype == DType::kI8 ? Visit<I8Rows>(data, next, seen) : Visit<I4Rows>(data, next, seen);
  }

 private:
  // Where the register tiles take their columns from: a tile put in order for many rows, or the page itself.
  struct Ordered {
    const std::byte* at;
    int blocks;  // of sixteen columns side by side
    HWY_INLINE I32x16 Load(int quad, int block) const {
      return LoadColumns(at + (quad * blocks + block) * kQuadBlockBytes);
    }
  };
#if HWY_TARGET == HWY_AVX3_DL
  template <typename Rows>
  struct PageKeys {
    const std::byte* at;
    const std::byte* next;
    int panel_bytes;
    HWY_INLINE I32x16 Load(int quad, int panel) const {
      const int offset = panel * panel_bytes + 4 * quad * Rows::kBytes;
      __builtin_prefetch(next + offset, 0, 2);
      return ColumnsAt<Rows>(at + offset, kKeyFlip<Rows>);
    }
  };
  template <typename Rows>
  struct PageValues {
    const std::byte* at;
    const std::byte* next;
    int row_bytes;
    HWY_INLINE I32x16 Load(int quad, int block) const {
      const int of_row = block * Rows::kBytes, quarter = kTileQuads * row_bytes;
      const std::byte* from = at + quad * row_bytes + of_row;
      __builtin_prefetch(next + quad * 4 * row_bytes + 4 * of_row, 0, 2);
      return Columns(Rows::Load(from), Rows::Load(from + quarter), Rows::Load(from + 2 * quarter),
                     Rows::Load(from + 3 * quarter), 0);
    }
  };
#endif
  template <typename Rows>
  static constexpr int kKeyFlip = std::is_same_v<Rows, I8Rows>&& kKeyOffset != 0 ? 0x80 : 0;

  template <typename Rows>
  HWY_INLINE void Visit(const std::byte* data, const std::byte* next, int seen) {
    LoadScales(data);
    const int blocks = pd_ / 16;
    const Ordered keys{scratch_.k_quads.data(), kPanels}, values{scratch_.v_quads.data(), blocks};
#if HWY_TARGET == HWY_AVX3_DL
    if (count_ <= kFewRows && seen == kTileKeys) {
      const PageKeys<Rows> page_keys{data + layout_.k_offset, next + layout_.k_offset, layout_.head_dim * Rows::kBytes};
      const PageValues<Rows> page_values{data + layout_.v_offset, next + layout_.v_offset, blocks * Rows::kBytes};
      return VisitRows(
          page_keys, [&]() HWY_ATTR { return page_values; }, kTileQuads);
    }
#endif
    PutKeys<Rows>(data, seen);
    VisitRows(
        keys,
        [&]() HWY_ATTR {
          PutValues<Rows>(data, seen);
          return values;
        },
        std::min(seen, kTileQuads));
  }

  template <typename Keys, typename GetValues>
  HWY_INLINE void VisitRows(const Keys& keys, const GetValues& get_values, int quads) {
    InBlocks([&]<int kRows>(int first) HWY_ATTR { ScoreRows<kRows>(keys, first); });
    Rescale();
    if (count_ == 0) return;
    for (int i = 0; i < count_; ++i) WeighRow(i);
    const auto values = get_values();
    InBlocks([&]<int kRows>(int first) HWY_ATTR { AddValues<kRows>(values, first, quads); });
  }
  template <typename Fn>
  HWY_INLINE void InBlocks(const Fn& fn) {
    int i = 0;
    for (; i + kQuadRows <= count_; i += kQuadRows) fn.template operator()<kQuadRows>(i);
    if constexpr (kQuadRows > 4) {
      for (; i + 4 <= count_; i += 4) fn.template operator()<4>(i);
    }
    for (; i + 2 <= count_; i += 2) fn.template operator()<2>(i);
    for (; i < count_; ++i) fn.template operator()<1>(i);
  }

  const RowInfo& Row(int i) const { return item_.row[row_[i]]; }
  int Low(int i) const { return static_cast<int>(std::max<int64_t>(Row(i).first_key - key0_, 0)); }
  int High(int i) const { return static_cast<int>(std::min<int64_t>(Row(i).position - key0_, kTileKeys - 1)); }

  // Keys of the panels with a key that some row may see. A last quad of two dimensions takes in what comes next in the
  // page; the row's codes there are zero.
  template <typename Rows>
  HWY_NOINLINE void PutKeys(const std::byte* data, int seen) {
    const int quads = KeyQuads();
    const int panel_bytes = layout_.head_dim * Rows::kBytes;
    for (int b = 0; b * kPanelKeys < seen; ++b) {
      const std::byte* from = data + layout_.k_offset + b * panel_bytes;
      std::byte* to = scratch_.k_quads.data() + b * kQuadBlockBytes;
      for (int i = 0; i < quads; ++i) {
        StoreColumnsAt<Rows>(from + 4 * i * Rows::kBytes, kKeyFlip<Rows>, to + i * kPanels * kQuadBlockBytes);
      }
    }
  }

  template <typename Rows>
  HWY_NOINLINE void PutValues(const std::byte* data, int seen) {
    alignas(16) static constexpr std::byte kZeros[16] = {};
    const std::byte* values = data + layout_.v_offset;
    const int blocks = pd_ / 16;
    const int row_bytes = blocks * Rows::kBytes;
    std::byte* to = scratch_.v_quads.data();
    for (int i = 0; i < std::min(seen, kTileQuads); ++i) {
      for (int b = 0; b < blocks; ++b) {
        const auto at = [&](int slot) HWY_ATTR {
          return Rows::Load(slot < seen ? values + slot * row_bytes + b * Rows::kBytes : kZeros);
        };
        StoreColumns(at(i), at(16 + i), at(32 + i), at(48 + i), 0, to);
        to += kQuadBlockBytes;
      }
    }
  }

  int KeyQuads() const { return (layout_.head_dim + 3) / 4; }

  void LoadScales(const std::byte* data) {
    const auto* k = reinterpret_cast<const uint16_t*>(data + layout_.k_scale_offset);
    const auto* v = reinterpret_cast<const uint16_t*>(data + layout_.v_scale_offset);
    F32x16 largest = Zero16();
    for (int b = 0; b < kPanels; ++b) {
      Store16(LoadF16(k + 16 * b), k_scale_ + 16 * b);
      Store16(LoadF16(v + 16 * b), v_scale_ + 16 * b);
      largest = Max(largest, Load16(v_scale_ + 16 * b));
      if (layout_.dtype != DType::kI4) continue;
      Store16(LoadF16(k + kTileKeys + 16 * b), k_minimum_ + 16 * b);
      Store16(LoadF16(v + kTileKeys + 16 * b), v_minimum_ + 16 * b);
    }
    largest_value_ = MaxLane(largest);
    SetSteps(largest_value_, steps_);
  }
  // steps[j] = how many steps of a byte a weight of one is worth at slot j.
  void SetSteps(float largest, float* steps) const {
    const F32x16 per_scale = Set16(largest > 0 ? kWeightSteps / largest : 0.0f);
    for (int b = 0; b < kPanels; ++b) Store16(Mul(Load16(v_scale_ + 16 * b), per_scale), steps + 16 * b);
  }

  // t of rows [first, first + kRows) and the largest of each.
  template <int kRows, typename Keys>
  HWY_NOINLINE void ScoreRows(const Keys& keys, int first) {
    const int quads = KeyQuads(), row_quads = pd_ / 4;
    const int32_t* query[kRows];
    const float* bias[kRows];
    int32_t start[kRows];
    float bias_scale[kRows];
    F32x16 largest[kRows];
    bool edge = false;
    for (int r = 0; r < kRows; ++r) {
      const int at = row_[first + r];
      const RowInfo& row = item_.row[at];
      query[r] = scratch_.q_words.data() + static_cast<size_t>(at * row_quads * kMostQuadWords);
      start[r] = layout_.dtype == DType::kI8 ? -kKeyOffset * scratch_.q_code_sum[at] : 0;
      bias[r] = row.head->bias == nullptr ? nullptr : row.head->bias - (row.position - key0_);
      bias_scale[r] = row.bias_scale / scratch_.q_scale[at];
      largest[r] = Set16(kMinusInf);
      edge = edge || row.position < key0_ + kTileKeys - 1 || row.first_key > key0_;
    }
    float* scores = scratch_.scores.data() + first * kTileKeys;
    for (int panel = 0; panel < kPanels; panel += kQuadPanels) {
      I32x16 sum[kRows][kQuadPanels];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int b = 0; b < kQuadPanels; ++b) sum[r][b] = SetSums(start[r]);
      }
      for (int i = 0; i < quads; ++i) {
        I32x16 column[kQuadPanels];
#pragma GCC unroll 16
        for (int b = 0; b < kQuadPanels; ++b) column[b] = keys.Load(i, panel + b);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const RowQuad q = LoadQuad(query[r], row_quads, i);
#pragma GCC unroll 16
          for (int b = 0; b < kQuadPanels; ++b) sum[r][b] = DotKeys(q, column[b], sum[r][b]);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int b = 0; b < kQuadPanels; ++b) {
          const int slot = (panel + b) * kPanelKeys;
          F32x16 t = Mul(ToFloat(sum[r][b]), Load16(k_scale_ + slot));
          if (layout_.dtype == DType::kI4) {
            const auto code_sum = static_cast<float>(scratch_.q_code_sum[row_[first + r]]);
            t = Add(t, Mul(Load16(k_minimum_ + slot), Set16(code_sum)));
          }
          if (bias[r] != nullptr) t = Add(t, Mul(Set16(bias_scale[r]), Load16(bias[r] + slot)));
          if (edge) t = KeepRange(t, slot, Low(first + r), High(first + r));
          largest[r] = Max(largest[r], t);
          Store16(t, scores + r * kTileKeys + slot);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) top_[first + r] = MaxLane(largest[r]);
  }

  // Brings the rows' states to the maximum that this tile may have raised. Rows that it cannot change any more drop
  // out.
  void Rescale() {
    HWY_ALIGN float old_max[kMaxRows], scale[kMaxRows], keep[kMaxRows], add[kMaxRows];
    for (int i = 0; i < count_; ++i) {
      old_max[i] = state_.max[row_[i]];
      scale[i] = scratch_.q_scale[row_[i]];
    }
    for (int i = count_; i < (count_ + 15) / 16 * 16; ++i) old_max[i] = scale[i] = top_[i] = 0;
    for (int i = 0; i < count_; i += 16) {
      const F32x16 tile_max = Mul(Load16(top_ + i), Load16(scale + i)), before = Load16(old_max + i);
      const F32x16 after = Max(before, tile_max);
      Store16(ExpNegative<false>(Sub(before, after)), keep + i);
      // What is no number stays none.
      Store16(Add(ExpNegative<false>(Sub(tile_max, after)), Sub(tile_max, tile_max)), add + i);
      Store16(after, old_max + i);
    }
    int kept = 0;
    for (int i = 0; i < count_; ++i) {
      if (add[i] == 0) continue;
      const int r = row_[i];
      score_row_[kept] = i;
      row_[kept] = r;
      top_[kept] = top_[i];
      keep_[kept] = keep[i];
      add_[kept] = add[i];
      state_.max[r] = old_max[i];
      ++kept;
    }
    count_ = kept;
  }

  // Scores become bytes.
  HWY_INLINE void WeighRow(int i) {
    const int r = row_[i], low = Low(i), high = High(i);
    // Keys out of reach have no weight, but a say in how fine the bytes are: dense attention, which sees them, rounds
    // those that matter in the same way.
    const int first = Row(i).beyond_reach > 0 ? 0 : low;
    const float *steps = steps_, *minima = v_minimum_;
    float largest_value = largest_value_;
    HWY_ALIGN float own_steps[kTileKeys], own_minima[kTileKeys];
    if (first > 0 || high < kTileKeys - 1) {  // other keys that the row does not see must not matter
      largest_value = *std::max_element(v_scale_ + first, v_scale_ + high + 1);
      SetSteps(largest_value, own_steps);
      steps = own_steps;
    }
    if (low > 0 || high < kTileKeys - 1) {
      std::fill_n(own_minima, kTileKeys, 0.0f);
      if (layout_.dtype == DType::kI4) std::copy(v_minimum_ + low, v_minimum_ + high + 1, own_minima + low);
      minima = own_minima;
    }
    const float* scores = scratch_.scores.data() + score_row_[i] * kTileKeys;
    const float* dither = scratch_.dither + Row(i).position % kTileKeys;
    const F32x16 top = Set16(top_[i]), slope = Set16(scratch_.q_scale[r] * kLog2e);
    F32x16 total = Zero16(), minimum = Zero16();
    I32x16 code[kPanels];
#pragma GCC unroll 4
    for (int b = 0; b < kPanels; ++b) {
      const F32x16 e = CoarseExp2(Mul(Sub(Load16(scores + 16 * b), top), slope));
      total = Add(total, e);
      if (layout_.dtype == DType::kI4) minimum = Add(minimum, Mul(e, Load16(minima + 16 * b)));
      const F32x16 exact = Add(Mul(e, Load16(steps + 16 * b)), Load16(dither + 16 * b));
      code[b] = Truncated(exact);
    }
    PutCodes(code, scratch_.weights.data() + i * kWeightWords);
    float* lanes = scratch_.lanes.data() + r * 16;
    Store16(Add(Mul(Load16(lanes), Set16(keep_[i])), Mul(total, Set16(add_[i]))), lanes);
    factor_[i] = add_[i] * (largest_value * (1.0f / kWeightSteps));
    shift_[i] = layout_.dtype == DType::kI4 ? add_[i] * ReduceSum16(minimum) : 0.0f;
  }

  template <int kRows, typename Values>
  HWY_NOINLINE void AddValues(const Values& values, int first, int quads) {
    const int blocks = pd_ / 16;
    int block = 0;
    while (block + kDimBlocks <= blocks) {
      AddBlocks<kRows, kDimBlocks>(values, first, quads, block);
      block += kDimBlocks;
    }
    if constexpr (kDimBlocks >= 4) {
      if (blocks - block == 3) return AddBlocks<kRows, 3>(values, first, quads, block);
      if (blocks - block == 2) return AddBlocks<kRows, 2>(values, first, quads, block);
    }
    for (; block < blocks; ++block) AddBlocks<kRows, 1>(values, first, quads, block);
  }

  template <int kRows, int kBlocks, typename Values>
  HWY_INLINE void AddBlocks(const Values& values, int first, int quads, int block) {
    I32x16 sum[kRows][kBlocks];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) sum[r][b] = SetSums(0);
    }
    const int32_t* weights = scratch_.weights.data() + first * kWeightWords;
    for (int i = 0; i < quads; ++i) {
      I32x16 column[kBlocks];
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) column[b] = values.Load(i, block + b);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const RowQuad w = LoadQuad(weights + r * kWeightWords, kTileQuads, i);
#pragma GCC unroll 16
        for (int b = 0; b < kBlocks; ++b) sum[r][b] = DotValues(w, column[b], sum[r][b]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* out = state_.out + row_[first + r] * pd_ + 16 * block;
      const F32x16 keep = Set16(keep_[first + r]), factor = Set16(factor_[first + r]);
      const F32x16 shift = Set16(shift_[first + r]);
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) {
        F32x16 added = Mul(ToFloat(sum[r][b]), factor);
        if (layout_.dtype == DType::kI4) added = Add(added, shift);
        Store16(Add(Mul(Load16(out + 16 * b), keep), added), out + 16 * b);
      }
    }
  }

  const AttentionItem& item_;
  AttentionScratch& scratch_;
  const SoftmaxState& state_;
  const KvLayout& layout_;
  const int pd_;
  int64_t key0_ = 0;
  int count_ = 0;            // rows at work
  int row_[kMaxRows];        // which of the item's
  int score_row_[kMaxRows];  // where their scores are
  float top_[kMaxRows + 16], keep_[kMaxRows], add_[kMaxRows], factor_[kMaxRows], shift_[kMaxRows];
  HWY_ALIGN float k_scale_[kTileKeys], v_scale_[kTileKeys], k_minimum_[kTileKeys], v_minimum_[kTileKeys];
  HWY_ALIGN float steps_[kTileKeys];
  float largest_value_ = 0;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
