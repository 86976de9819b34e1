// Query rows against one tile of keys: scores, softmax update, values; and upper bounds on scores. Included once per
// Highway target.
#if defined(BAM_KERNELS_CPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BAM_KERNELS_CPU_ATTENTION_TILES_INL_H_
#undef BAM_KERNELS_CPU_ATTENTION_TILES_INL_H_
#else
#define BAM_KERNELS_CPU_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_blocks-inl.h"
#include "kernels/cpu/attention_int8-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
using namespace ::bam::HWY_NAMESPACE;  // NOLINT

constexpr float kRounding = 1e-5f;  // covers float32 rounding in every bound

// One item at work on one worker.
class Runner {
 public:
  Runner(const AttentionItem& item, AttentionScratch& scratch, const SoftmaxState& state)
      : item_(item),
        scratch_(scratch),
        state_(state),
        layout_(item.layout),
        pd_(item.layout.padded_dim),
        q_(item.integer ? scratch.q_rounded.data() : item.q),
        quads_(item, scratch, state) {}

  void Reset() {
    for (int r = 0; r < item_.rows; ++r) {
      state_.max[r] = kMinusInf;
      state_.sum[r] = 0;
    }
    std::fill_n(scratch_.lanes.data(), item_.rows * 16, 0.0f);
    std::fill_n(state_.out, item_.rows * pd_, 0.0f);
  }

  const std::byte* Tile(int64_t tile) const {
    const int per_page = layout_.tiles_per_page();
    const int32_t page = item_.pages[tile / per_page];
    if (page == kNoPage) return nullptr;
    return item_.base + static_cast<size_t>(page) * layout_.page_bytes() +
           static_cast<size_t>(tile % per_page) * layout_.tile_bytes;
  }

  // Rows of `need` take in the keys of a tile; `next` is the tile they will probably visit afterwards, -1 if unknown.
  void Visit(int64_t tile, uint64_t need, int64_t next = -1) {
    const std::byte* data = Tile(tile);
    if (data == nullptr) return;
    for (uint64_t left = need; left != 0; left &= left - 1) {
      if (tile * kTileKeys + kTileKeys - 1 < Row(std::countr_zero(left)).first_key) need &= ~(left & -left);
    }
    if (need == 0) return;
    for (uint64_t left = need; left != 0; left &= left - 1) ++scratch_.counters[std::countr_zero(left)].visited;
    const std::byte* following = next < 0 ? nullptr : Tile(next);
    next_ = following == nullptr ? data : following;
    if (following != nullptr && item_.rows <= kFewRows) FetchMarks(next, need);
    if (item_.integer) return quads_.Visit(tile, data, next_, need);
    // Converting pays off when several row blocks read the tile; the numbers are the same either way.
    if (layout_.dtype != DType::kF32 && std::popcount(need) > kRowBlock) {
      switch (layout_.dtype) {
        case DType::kF16: Convert<F16Source>(data); break;
        case DType::kI8: Convert<I8Source>(data); break;
        default: Convert<I4Source>(data); break;
      }
      return VisitBlocks<F32Source>(tile, data, reinterpret_cast<const std::byte*>(scratch_.k_tile.data()),
                                    reinterpret_cast<const std::byte*>(scratch_.v_tile.data()), need);
    }
    const std::byte *k = data + layout_.k_offset, *v = data + layout_.v_offset;
    switch (layout_.dtype) {
      case DType::kF32: return VisitBlocks<F32Source>(tile, data, k, v, need);
      case DType::kF16: return VisitBlocks<F16Source>(tile, data, k, v, need);
      case DType::kI8: return VisitBlocks<I8Source>(tile, data, k, v, need);
      default: return VisitBlocks<I4Source>(tile, data, k, v, need);
    }
  }

  float RunningLse(int r) const {
    const float sum = ReduceSum16(Load16(scratch_.lanes.data() + r * 16));
    // Never above the true one.
    return sum > 0 ? state_.max[r] + std::log(sum) - (item_.integer ? kCoarseExpError : 0.0f) : kMinusInf;
  }

  void Finish() {
    for (int r = 0; r < item_.rows; ++r) state_.sum[r] = ReduceSum16(Load16(scratch_.lanes.data() + r * 16));
  }

  // bound[r] >= q_r . k for every key k of the box, all rows at once.
  void ContentBounds(const KeyStats* stats) {
    const auto* lo = reinterpret_cast<const uint16_t*>(stats + 1);
    const auto* hi = lo + pd_;
    for (int d = 0; d < pd_; d += 16) {
      const F32x16 low = LoadF16(lo + d), high = LoadF16(hi + d), half = Set16(0.5f);
      Store16(Mul(half, Add(low, high)), scratch_.mid.data() + d);
      Store16(Mul(half, Sub(high, low)), scratch_.extent.data() + d);
    }
    if (item_.integer) {
      BoundRows<false>(stats);
    } else {
      BoundRows<true>(stats);
    }
  }

  // Largest bias_scale * B over the keys [64 * first_tile, 64 * (last_tile + 1)).
  HWY_INLINE float PriorBound(const RowInfo& row, int64_t first_tile, int64_t last_tile) const {
    const HeadInfo& head = *row.head;
    if (head.bias == nullptr) return 0;
    const int64_t near = std::max<int64_t>(row.position - (last_tile * kTileKeys + kTileKeys - 1), 0);
    const int64_t far = row.position - first_tile * kTileKeys;
    float bound = std::max(row.bias_scale * head.bias[-near], row.bias_scale * head.bias[-far]);
    if (near < head.settled && far > head.rising) {
      bound = std::max({bound, row.bias_scale * head.largest, row.bias_scale * head.smallest});
    }
    return bound + std::fabs(bound) * kRounding;
  }

  // Largest logit among keys at distance `near` and more, of a bias that never grows from there on. |q| |k| <= |q|
  // max|k| of the tile with these statistics and of all older ones.
  static HWY_INLINE float OldBound(const RowInfo& row, int64_t near, float q_norm, const KeyStats& stats) {
    const float prior = row.bias_scale * row.head->bias[-near];
    return q_norm * stats.max_norm_prefix + prior + std::fabs(prior) * kRounding;
  }

  const RowInfo& Row(int r) const { return item_.row[r]; }

 private:
  void TransposeQueries() {
    const int columns = (item_.rows + 15) / 16 * 16;
    for (int r = 0; r < columns; ++r) {
      for (int d = 0; d < layout_.head_dim; ++d)
        scratch_.q_t[static_cast<size_t>(d * kMaxRows + r)] = r < item_.rows ? q_[r * pd_ + d] : 0.0f;
    }
    scratch_.q_transposed = true;
  }

  template <bool kFused>
  HWY_INLINE void BoundRows(const KeyStats* stats) {
    // One row needs no transposed copy; its chains of operations are the same.
    const bool one_row = item_.rows == 1;
    if (!one_row && !scratch_.q_transposed) TransposeQueries();
    for (int r0 = 0; r0 < item_.rows; r0 += 16) {
      F32x16 centre = Zero16(), box = Zero16();
      for (int d = 0; d < layout_.head_dim; ++d) {
        const F32x16 q = one_row ? Set16(q_[d]) : Load16(scratch_.q_t.data() + d * kMaxRows + r0);
        centre = MulAdd<kFused>(q, Set16(scratch_.mid[static_cast<size_t>(d)]), centre);
        box = MulAdd<kFused>(Abs(q), Set16(scratch_.extent[static_cast<size_t>(d)]), box);
      }
      const F32x16 norm = Load16(scratch_.q_norm + r0);
      const F32x16 ball = Mul(norm, Set16(stats->radius));
      const F32x16 slack = Mul(norm, Set16(stats->max_norm * kRounding));
      Store16(Add(Add(centre, Min(box, ball)), slack), scratch_.bound + r0);
    }
  }

  // What stands beside the keys and values of the next tile: its statistics, its scales, its part of the bias.
  void FetchMarks(int64_t tile, uint64_t rows) const {
    FetchBytes<2 * 64>(next_ + layout_.stats_offset);
    if (IsQuantised()) {
      FetchBytes<kTileKeys * 2>(next_ + layout_.k_scale_offset);
      FetchBytes<kTileKeys * 2>(next_ + layout_.v_scale_offset);
    }
    for (; rows != 0; rows &= rows - 1) {
      const RowInfo& row = Row(std::countr_zero(rows));
      if (row.head->bias == nullptr) return;
      FetchBytes<kTileKeys * 4>(reinterpret_cast<const std::byte*>(row.head->bias - (row.position - tile * kTileKeys)));
    }
  }

  bool IsQuantised() const { return layout_.dtype == DType::kI8 || layout_.dtype == DType::kI4; }

  template <typename Source>
  void Convert(const std::byte* tile) {
    const std::byte *k = tile + layout_.k_offset, *v = tile + layout_.v_offset;
    for (int i = 0; i < kTileKeys * layout_.head_dim / 16; ++i) {
      Store16(Source::Load(k + i * Source::kBytes16), scratch_.k_tile.data() + i * 16);
    }
    for (int i = 0; i < kTileKeys * pd_ / 16; ++i) {
      Store16(Source::Load(v + i * Source::kBytes16), scratch_.v_tile.data() + i * 16);
    }
  }

  template <typename Source>
  void VisitBlocks(int64_t tile, const std::byte* data, const std::byte* k, const std::byte* v, uint64_t need) {
    int r = 0;
    while (r < item_.rows) {
      const int left = item_.rows - r;
      const int step = left >= kRowBlock ? kRowBlock : (left >= 4 && kRowBlock > 4 ? 4 : (left >= 2 ? 2 : 1));
      if (((need >> r) & ((uint64_t{1} << step) - 1)) != 0) {
        if (step == kRowBlock) {
          VisitRows<Source, kRowBlock>(tile, data, k, v, need, r);
        } else if (step == 4) {
          VisitRows<Source, 4>(tile, data, k, v, need, r);
        } else if (step == 2) {
          VisitRows<Source, 2>(tile, data, k, v, need, r);
        } else {
          VisitRows<Source, 1>(tile, data, k, v, need, r);
        }
      }
      r += step;
    }
  }

  template <typename Source, int kRows>
  HWY_INLINE void VisitRows(int64_t tile, const std::byte* data, const std::byte* k, const std::byte* v, uint64_t need,
                            int r0) {
    float* scores = scratch_.scores.data();
    const int64_t seen = std::min<int64_t>(Row(r0 + kRows - 1).position - tile * kTileKeys, kTileKeys - 1) + 1;
    const int panels = static_cast<int>(seen + kPanelKeys - 1) / kPanelKeys;
    const bool plain = kRows > 1 && IsPlain(tile, need, r0, kRows);
    RowBias bias[kRows];
    const bool biased = plain && Row(r0).head->bias != nullptr;  // one layer's heads have one encoding
    for (int r = 0; biased && r < kRows; ++r) {
      const RowInfo& row = Row(r0 + r);
      bias[r] = {row.head->bias - (row.position - tile * kTileKeys), row.bias_scale};
    }
    ScoreRows<Source, kRows>(item_.q + r0 * pd_, pd_, layout_.head_dim, k, next_ + layout_.k_offset, panels,
                             biased ? bias : nullptr, scores);
    float scale[kRows], shift[kRows];
    int slots = 0;
    if (plain) {
      SoftmaxPlain<kRows>(r0, scores, scale);
      std::fill_n(shift, kRows, 0.0f);
      return ValueRows<Source, kRows>(scores, kTileKeys, v, next_ + layout_.v_offset, pd_, scale, shift,
                                      state_.out + r0 * pd_);
    }
    for (int r = 0; r < kRows; ++r) {
      scale[r] = 1;
      shift[r] = 0;
      if ((need >> (r0 + r) & 1) == 0) {
        std::fill_n(scores + r * kTileKeys, kTileKeys, 0.0f);
        continue;
      }
      slots = std::max(slots, SoftmaxRow(tile, data, r0 + r, scores + r * kTileKeys, scale[r], shift[r]));
    }
    ValueRows<Source, kRows>(scores, slots, v, next_ + layout_.v_offset, pd_, scale, shift, state_.out + r0 * pd_);
  }

  // Every row needs the tile and sees all of its keys, and scores are what they are.
  bool IsPlain(int64_t tile, uint64_t need, int r0, int rows) const {
    if (IsQuantised()) return false;
    const uint64_t mask = (uint64_t{1} << rows) - 1;
    if (((need >> r0) & mask) != mask) return false;
    const int64_t key0 = tile * kTileKeys;
    for (int r = r0; r < r0 + rows; ++r) {
      if (Row(r).position < key0 + kTileKeys - 1 || Row(r).first_key > key0) return false;
    }
    return true;
  }

  // SoftmaxRow() of several rows without its special cases, pass by pass: a row alone would wait for itself.
  template <int kRows>
  HWY_INLINE void SoftmaxPlain(int r0, float* HWY_RESTRICT scores, float* HWY_RESTRICT scale) {
    float row_max[kRows];
    for (int r = 0; r < kRows; ++r) {
      F32x16 largest = Set16(kMinusInf);
#pragma GCC unroll 4
      for (int b = 0; b < kPanels; ++b) largest = Max(largest, Load16(scores + r * kTileKeys + 16 * b));
      row_max[r] = MaxLane(largest);
    }
    for (int r = 0; r < kRows; ++r) {
      float& running = state_.max[r0 + r];
      scale[r] = 1;
      if (row_max[r] > running) {
        HWY_ALIGN float factor[16];
        Store16(ExpNegative(Set16(running - row_max[r])), factor);
        scale[r] = factor[0];
        running = row_max[r];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const F32x16 max16 = Set16(state_.max[r0 + r]);
      F32x16 total = Zero16();
#pragma GCC unroll 4
      for (int b = 0; b < kPanels; ++b) {
        float* at = scores + r * kTileKeys + 16 * b;
        const F32x16 weight = ExpNegative(Sub(Load16(at), max16));
        total = Add(total, weight);
        Store16(weight, at);
      }
      float* lanes = scratch_.lanes.data() + (r0 + r) * 16;
      Store16(MulAdd(Load16(lanes), Set16(scale[r]), total), lanes);
    }
  }

  // Turns a row's scores into weights relative to its running maximum. Returns the number of slots in use.
  int SoftmaxRow(int64_t tile, const std::byte* data, int r, float* s, float& out_scale, float& out_shift) {
    const RowInfo& row = Row(r);
    const int64_t key0 = tile * kTileKeys;
    const int high = static_cast<int>(std::min<int64_t>(row.position - key0, kTileKeys - 1));
    const int low = static_cast<int>(std::max<int64_t>(row.first_key - key0, 0));
    const bool edge = high < kTileKeys - 1 || low > 0;
    const bool quantised = IsQuantised();
    const auto* k_scale = reinterpret_cast<const uint16_t*>(data + layout_.k_scale_offset);
    const float* bias = row.head->bias == nullptr ? nullptr : row.head->bias - (row.position - key0);
    F32x16 logit[kPanels];
    F32x16 largest = Set16(kMinusInf);
#pragma GCC unroll 4
    for (int b = 0; b < kPanels; ++b) {
      F32x16 x = Load16(s + 16 * b);
      if (quantised) {
        x = Mul(x, LoadF16(k_scale + 16 * b));
        if (layout_.dtype == DType::kI4) x = MulAdd(LoadF16(k_scale + kTileKeys + 16 * b), Set16(scratch_.q_sum[r]), x);
      }
      if (bias != nullptr) x = MulAdd(Set16(row.bias_scale), Load16(bias + 16 * b), x);
      if (edge) x = KeepRange(x, 16 * b, low, high);
      logit[b] = x;
      largest = Max(largest, x);
    }
    const float old_max = state_.max[r];
    const float new_max = std::max(old_max, MaxLane(largest));
    if (new_max > old_max) {
      state_.max[r] = new_max;
      HWY_ALIGN float factor[16];
      Store16(ExpNegative(Set16(old_max - new_max)), factor);
      out_scale = factor[0];
    }
    const F32x16 max16 = Set16(new_max);
    F32x16 total = Zero16();
#pragma GCC unroll 4
    for (int b = 0; b < kPanels; ++b) {
      logit[b] = ExpNegative(Sub(logit[b], max16));
      total = Add(total, logit[b]);
    }
    float* lanes = scratch_.lanes.data() + r * 16;
    Store16(MulAdd(Load16(lanes), Set16(out_scale), total), lanes);
    if (quantised) ApplyValueScales(data, logit, out_shift);
#pragma GCC unroll 4
    for (int b = 0; b < kPanels; ++b) Store16(logit[b], s + 16 * b);
    return high + 1;
  }

  // V = minimum + scale * code: the scale goes into the weights, the minimum adds the same number to every dim.
  void ApplyValueScales(const std::byte* data, F32x16* weight, float& shift) const {
    const auto* v_scale = reinterpret_cast<const uint16_t*>(data + layout_.v_scale_offset);
    // Far below what the sums can show; times a scale they would be subnormal, and a product of those takes 100 cycles.
    const auto tiny = hn::Set(FloatTag(), 0x1p-100f);
    for (int b = 0; b < kPanels; ++b) {
      BAM_EACH_PART weight[b].part[p] = hn::IfThenZeroElse(hn::Lt(weight[b].part[p], tiny), weight[b].part[p]);
    }
    if (layout_.dtype == DType::kI4) {
      F32x16 minimum = Zero16();
      for (int b = 0; b < kPanels; ++b) minimum = MulAdd(weight[b], LoadF16(v_scale + kTileKeys + 16 * b), minimum);
      shift = ReduceSum16(minimum);
    }
    for (int b = 0; b < kPanels; ++b) weight[b] = Mul(weight[b], LoadF16(v_scale + 16 * b));
  }

  const AttentionItem& item_;
  AttentionScratch& scratch_;
  const SoftmaxState& state_;
  const KvLayout& layout_;
  const int pd_;
  const float* const q_;  // [rows][padded_dim]
  QuadTile quads_;
  const std::byte* next_ = nullptr;  // tile to fetch meanwhile
};

}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#endif
