#include "kernels/cpu/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam::cpu {
namespace HWY_NAMESPACE {
template <bool kFused>
void MeasureQueries(const AttentionItem& item, const float* q, AttentionScratch& scratch) {
  const int pd = item.layout.padded_dim;
  for (int r = 0; r < item.rows; ++r) {
    F32x16 squares = Zero16(), sum = Zero16();
    for (int d = 0; d < pd; d += 16) {
      const F32x16 part = Load16(q + r * pd + d);
      squares = MulAdd<kFused>(part, part, squares);
      sum = Add(sum, part);
    }
    scratch.q_norm[r] = std::sqrt(ReduceSum16(squares)) * (1.0f + kRounding);
    scratch.q_sum[r] = ReduceSum16(sum);
  }
}

void Prepare(const AttentionItem& item, AttentionScratch& scratch) {
  std::fill_n(scratch.q_norm, kMaxRows, 0.0f);
  if (item.integer) {
    for (int r = 0; r < item.rows; ++r) RoundQuery(item, scratch, r);
    MeasureQueries<false>(item, scratch.q_rounded.data(), scratch);
  } else {
    MeasureQueries<true>(item, item.q, scratch);
  }
  scratch.q_transposed = false;
}

uint64_t AllRows(int rows) { return rows == 64 ? ~uint64_t{0} : (uint64_t{1} << rows) - 1; }

// The most promising finished tile of each row whose prior does not decay: best super-tile, then best tile inside.
void FindSeeds(const AttentionItem& item, Runner& runner, AttentionScratch& scratch, AnchorInfo& info) {
  const KvLayout& layout = item.layout;
  const int64_t supers = (item.diagonal_tile - 1) / kSuperTiles;  // whole groups among tiles 0 ... D - 2
  float best[kMaxRows];
  int64_t best_super[kMaxRows];
  for (int r = 0; r < item.rows; ++r) {
    best[r] = kMinusInf;
    best_super[r] = -1;
  }
  for (int64_t s = supers - 1; s >= 0; --s) {
    const std::byte* tile = runner.Tile(s * kSuperTiles + kSuperTiles - 1);
    if (tile == nullptr) continue;
    const auto* stats = reinterpret_cast<const KeyStats*>(tile + layout.super_stats_offset);
    if (stats->valid == 0) continue;
    runner.ContentBounds(stats);
    for (int r = 0; r < item.rows; ++r) {
      if (item.row[r].head->decays) continue;
      ++scratch.counters[r].bound_tests;
      const float bound =
          scratch.bound[r] + runner.PriorBound(item.row[r], s * kSuperTiles, s * kSuperTiles + kSuperTiles - 1);
      if (bound > best[r]) {
        best[r] = bound;
        best_super[r] = s;
      }
    }
  }
  for (int r = 0; r < item.rows; ++r) best[r] = kMinusInf;
  for (int r = 0; r < item.rows; ++r) {
    const int64_t s = best_super[r];
    bool done = s < 0;
    for (int other = 0; other < r && !done; ++other) done = best_super[other] == s;  // handled with an earlier row
    for (int64_t t = s * kSuperTiles + kSuperTiles - 1; !done && t >= s * kSuperTiles; --t) {
      const std::byte* tile = runner.Tile(t);
      if (tile == nullptr) continue;
      runner.ContentBounds(reinterpret_cast<const KeyStats*>(tile + layout.stats_offset));
      for (int other = r; other < item.rows; ++other) {
        if (best_super[other] != s) continue;
        ++scratch.counters[other].bound_tests;
        const float bound = scratch.bound[other] + runner.PriorBound(item.row[other], t, t);
        if (bound > best[other]) {
          best[other] = bound;
          info.seed[other] = t;
        }
      }
    }
  }
}

// Upper bound on the share of the mass that `keys` keys have, none of whose logits is above `bound`.
float ShareOf(int64_t keys, float bound, float lse) { return static_cast<float>(keys) * std::exp(bound - lse); }

// What row r leaves out because of its head's static reach. The proof for all queries says epsilon / n per key; this
// query's own norm and the norms of those keys usually say far less.
float BeyondReach(const AttentionItem& item, const Runner& runner, const AttentionScratch& scratch, int r, float lse) {
  const RowInfo& row = item.row[r];
  if (row.beyond_reach == 0) return 0;
  const float proved = item.epsilon * static_cast<float>(row.beyond_reach) / static_cast<float>(row.position + 1);
  const std::byte* tile = runner.Tile(row.first_key / kTileKeys);
  if (tile == nullptr) return proved;
  const auto* stats = reinterpret_cast<const KeyStats*>(tile + item.layout.stats_offset);
  const int64_t near = row.position - row.first_key + 1;
  if (stats->valid == 0 || near < row.head->settled) return proved;
  const float share = ShareOf(row.beyond_reach, runner.OldBound(row, near, scratch.q_norm[r], *stats), lse);
  return share < proved ? share : proved;
}

void Anchor(const AttentionItem& item, AttentionScratch& scratch, AnchorInfo& info, const SoftmaxState& state) {
  Runner runner(item, scratch, state);
  runner.Reset();
  const uint64_t all = AllRows(item.rows);
  runner.Visit(item.diagonal_tile, all);
  if (item.diagonal_tile >= 1) runner.Visit(item.diagonal_tile - 1, all);
  for (int r = 0; r < item.rows; ++r) info.seed[r] = -1;
  if (item.certified && item.any_non_decaying && item.use_super && item.diagonal_tile > kSuperTiles) {
    FindSeeds(item, runner, scratch, info);
    uint64_t left = 0;
    for (int r = 0; r < item.rows; ++r) left |= static_cast<uint64_t>(info.seed[r] >= 0) << r;
    while (left != 0) {
      const int64_t seed = info.seed[std::countr_zero(left)];
      uint64_t same = 0;
      for (int r = 0; r < item.rows; ++r) same |= static_cast<uint64_t>(info.seed[r] == seed) << r;
      runner.Visit(seed, same);
      left &= ~same;
    }
  }
  for (int r = 0; r < item.rows; ++r) {
    info.lse[r] = runner.RunningLse(r);
    state.left_out[r] = BeyondReach(item, runner, scratch, r, info.lse[r]);
  }
  runner.Finish();
}

// Walks the tiles [oldest, ...] of one segment from new to old and decides, row by row, which to visit. Adds to
// left_out[row] what it does not visit.
class SegmentWalk {
 public:
  SegmentWalk(const AttentionItem& item, const AnchorInfo& info, AttentionScratch& scratch, Runner& runner,
              int64_t oldest, float* left_out)
      : item_(item), info_(info), scratch_(scratch), runner_(runner), oldest_(oldest), left_out_(left_out) {
    alive_ = AllRows(item.rows);
    test_tiles_ = alive_;
    std::fill_n(left_out, item.rows, 0.0f);
    for (int r = 0; r < item.rows; ++r) threshold_[r] = info.lse[r] + item.row[r].skip_margin;
  }

  // Nothing at or before tile t can matter to any row, judged by the anchor alone.
  bool FinishedBefore(int64_t t) {
    if (!item_.certified) return false;
    const std::byte* tile = runner_.Tile(t);
    if (tile == nullptr) return false;
    DropFinished(t, reinterpret_cast<const KeyStats*>(tile + item_.layout.stats_offset));
    if (alive_ != 0) return false;
    // Older segments will not be asked any more, so their keys count here, but for those that the anchor has counted.
    for (int r = 0; r < item_.rows && !item_.split; ++r) {
      const int64_t counted = KeysOf(r, oldest_, t);
      if (counted > 0) left_out_[r] *= static_cast<float>(KeysOf(r, 0, t)) / static_cast<float>(counted);
    }
    return true;
  }

  void Run(int64_t newest) {
    int64_t t = newest;
    while (t >= oldest_ && alive_ != 0) {
      const int64_t group_start = std::max(t / kSuperTiles * kSuperTiles, oldest_);
      RunGroup(group_start, t);
      t = group_start - 1;
    }
  }

 private:
  void UpdateThresholds() {
    for (int r = 0; r < item_.rows; ++r) {
      threshold_[r] = std::max(info_.lse[r], runner_.RunningLse(r)) + item_.row[r].skip_margin;
    }
  }

  // Keys of tiles [first, last] that row r could visit.
  int64_t KeysOf(int r, int64_t first, int64_t last) const {
    return std::max<int64_t>((last + 1) * kTileKeys - std::max(first * kTileKeys, item_.row[r].beyond_reach), 0);
  }
  // Row r does not visit tiles [first, last], where no logit is above `bound`.
  void LeaveOut(int r, int64_t first, int64_t last, float bound) {
    left_out_[r] += ShareOf(KeysOf(r, first, last), bound, threshold_[r] - item_.row[r].skip_margin);
  }

  // Rows whose bias never grows drop out for good once nothing older can matter. Rows of `skipped` have left out the
  // tiles from `skipped_from` on already.
  void DropFinished(int64_t t, const KeyStats* stats, uint64_t skipped = 0, int64_t skipped_from = 0) {
    for (uint64_t left = alive_; left != 0; left &= left - 1) {
      const int r = std::countr_zero(left);
      const RowInfo& row = item_.row[r];
      const int64_t last_key = t * kTileKeys + kTileKeys - 1, near = row.position - last_key;
      bool finished = last_key < row.first_key;
      if (!finished && row.head->never_grows && near >= row.head->settled && stats->valid != 0) {
        const float bound = Runner::OldBound(row, near, scratch_.q_norm[r], *stats);
        finished = bound < threshold_[r];
        if (finished) LeaveOut(r, oldest_, (skipped >> r & 1) != 0 ? skipped_from - 1 : t, bound);
      }
      if (finished) alive_ &= ~(left & -left);
    }
  }

  // Clears from `rows` those whose bound for the keys of tiles [first, last] is below their threshold.
  uint64_t Needed(uint64_t rows, const KeyStats* stats, int64_t first, int64_t last) {
    runner_.ContentBounds(stats);
    for (uint64_t left = rows; left != 0; left &= left - 1) {
      const int r = std::countr_zero(left);
      ++scratch_.counters[r].bound_tests;
      const float bound = scratch_.bound[r] + runner_.PriorBound(item_.row[r], first, last);
      if (!(bound < threshold_[r])) continue;  // also if it is no number
      LeaveOut(r, first, last, bound);
      rows &= ~(left & -left);
    }
    return rows;
  }

  void RunGroup(int64_t oldest, int64_t newest) {
    const bool whole = newest - oldest + 1 == kSuperTiles;
    uint64_t group_rows = alive_;
    if (item_.certified && item_.use_super && whole) {
      if (const std::byte* tile = runner_.Tile(newest)) {
        const auto* stats = reinterpret_cast<const KeyStats*>(tile + item_.layout.super_stats_offset);
        if (stats->valid != 0) group_rows = Needed(alive_, stats, oldest, newest);
      }
    }
    // Tile boxes are tested where they have just been of use: a row that left out nothing in its last group tests only
    // super-tiles until one of those succeeds.
    uint64_t skipped_some = alive_ & ~group_rows;
    for (int64_t t = newest; t >= oldest; --t) {
      const std::byte* tile = runner_.Tile(t);
      if (tile == nullptr) continue;
      uint64_t need = group_rows;
      if (item_.certified) {
        const auto* stats = reinterpret_cast<const KeyStats*>(tile + item_.layout.stats_offset);
        DropFinished(t, stats, ~group_rows, oldest);
        if (alive_ == 0) return;
        need &= alive_;
        const uint64_t tested = need & test_tiles_;
        if (tested != 0 && stats->valid != 0) {
          const uint64_t kept = Needed(tested, stats, t, t);
          skipped_some |= tested & ~kept;
          need = (need & ~tested) | kept;
        }
        for (int r = 0; r < item_.rows; ++r) need &= ~(static_cast<uint64_t>(info_.seed[r] == t) << r);
      }
      // Who visits two tiles in a row will probably visit a third.
      if (need != 0) runner_.Visit(t, need, last_visited_ == t + 1 ? t - 1 : -1);
      if (need != 0) last_visited_ = t;
    }
    test_tiles_ = skipped_some;
    if (item_.certified) UpdateThresholds();
  }

  const AttentionItem& item_;
  const AnchorInfo& info_;
  AttentionScratch& scratch_;
  Runner& runner_;
  const int64_t oldest_;
  float* const left_out_;
  uint64_t alive_ = 0, test_tiles_ = 0;
  int64_t last_visited_ = -1;
  float threshold_[kMaxRows];
};

bool Segment(const AttentionItem& item, int64_t segment, const AnchorInfo& info, AttentionScratch& scratch,
             const SoftmaxState& state) {
  Runner runner(item, scratch, state);
  const int64_t oldest = std::max(segment * kSegmentTiles, item.window_first_tile);
  const int64_t newest = std::min((segment + 1) * kSegmentTiles - 1, item.diagonal_tile - 2);
  SegmentWalk walk(item, info, scratch, runner, oldest, state.left_out);
  if (oldest > newest || walk.FinishedBefore(newest)) {
    std::fill_n(state.sum, item.rows, 0.0f);
    return oldest > newest;
  }
  runner.Reset();
  walk.Run(newest);
  runner.Finish();
  return true;
}

template <bool kFused>
void MergeStates(int rows, int padded_dim, const SoftmaxState& into, const SoftmaxState& from) {
  for (int r = 0; r < rows; ++r) {
    into.left_out[r] += from.left_out[r];
    if (!(from.sum[r] != 0)) continue;  // saw nothing
    const float new_max = std::max(into.max[r], from.max[r]);
    HWY_ALIGN float factor[16];
    Store16(ExpNegative<kFused>(Set16(into.max[r] - new_max)), factor);
    const float keep = factor[0];
    Store16(ExpNegative<kFused>(Set16(from.max[r] - new_max)), factor);
    const float add = factor[0];
    for (int d = 0; d < padded_dim; d += 16) {
      float* out = into.out + r * padded_dim + d;
      const F32x16 added = Mul(Load16(from.out + r * padded_dim + d), Set16(add));
      Store16(MulAdd<kFused>(Load16(out), Set16(keep), added), out);
    }
    into.sum[r] = into.sum[r] * keep + from.sum[r] * add;
    into.max[r] = new_max;
  }
}

void Merge(int rows, int padded_dim, bool integer, const SoftmaxState& into, const SoftmaxState& from) {
  integer ? MergeStates<false>(rows, padded_dim, into, from) : MergeStates<true>(rows, padded_dim, into, from);
}

AttentionKernels AttentionTable() { return {Prepare, Anchor, Segment, Merge}; }

}  // namespace HWY_NAMESPACE
}  // namespace bam::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bam::cpu {

AttentionScratch::AttentionScratch(int padded_dim)
    : k_tile(static_cast<size_t>(kTileKeys * padded_dim)),
      v_tile(static_cast<size_t>(kTileKeys * padded_dim)),
      scores(static_cast<size_t>(kMaxRows * kTileKeys)),
      q_t(static_cast<size_t>(padded_dim * kMaxRows)),
      mid(static_cast<size_t>(padded_dim)),
      extent(static_cast<size_t>(padded_dim)),
      lanes(static_cast<size_t>(kMaxRows * 16)),
      segment(SoftmaxState::floats(padded_dim)),
      q_rounded(static_cast<size_t>(kMaxRows * padded_dim)),
      q_words(static_cast<size_t>(kMaxRows * padded_dim / 4 * kMostQuadWords)),
      k_quads(static_cast<size_t>(kTileKeys * padded_dim)),
      v_quads(static_cast<size_t>(kTileKeys * padded_dim)),
      weights(static_cast<size_t>(kMaxRows * kTileKeys / 4 * kMostQuadWords)) {
  // Bit-reversed slots: any few neighbours are spread over the whole step.
  for (unsigned slot = 0; slot < kTileKeys; ++slot) {
    unsigned reversed = 0;
    for (unsigned bit = 0; bit < 6; ++bit) reversed |= (slot >> bit & 1) << (5 - bit);
    dither[slot] = dither[slot + kTileKeys] = (static_cast<float>(reversed) + 0.5f) / kTileKeys;
  }
}

HWY_EXPORT(AttentionTable);
AttentionKernels attention_kernels() { return HWY_DYNAMIC_DISPATCH(AttentionTable)(); }

}  // namespace bam::cpu
#endif
