#include "kernels/int4.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int4.cpp"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bam {
namespace HWY_NAMESPACE {

constexpr int kLevels = 16, kMagnitudes = 8;  // the other eight factors are their negatives

// The levels of the positive factors as float32: where a number passes from one to the next, and by how much.
struct LevelSteps {
  float lowest[kMagnitudes], middle[kMagnitudes][kLevels - 1], step[kMagnitudes][kLevels - 1];
  LevelSteps() {
    for (int m = 0; m < kMagnitudes; ++m) {
      lowest[m] = static_cast<float>(int4_value(0, m));
      for (int i = 0; i + 1 < kLevels; ++i) {
        const int low = int4_value(i, m), high = int4_value(i + 1, m);
        middle[m][i] = 0.5f * static_cast<float>(low + high);
        step[m][i] = static_cast<float>(high - low);
      }
    }
  }
};

// The levels nearest to sixteen numbers. All steps are small integers: sums of them are exact.
HWY_INLINE F32x16 NearestLevels(const LevelSteps& steps, int magnitude, F32x16 y) {
  F32x16 level = Set16(steps.lowest[magnitude]);
#pragma GCC unroll 16
  for (int i = 0; i + 1 < kLevels; ++i) {
    BAM_EACH_PART {
      const auto passed = hn::Gt(y.part[p], hn::Set(FloatTag(), steps.middle[magnitude][i]));
      level.part[p] = hn::Add(level.part[p], hn::IfThenElseZero(passed, hn::Set(FloatTag(), steps.step[magnitude][i])));
    }
  }
  return level;
}

// Rows in groups of sixteen, the last one filled up with zeros.
class RowQuantizer {
 public:
  RowQuantizer(const float* values, int64_t k) : padded_(static_cast<size_t>(int4_groups(k) * kInt4Group)) {
    std::copy_n(values, k, padded_.begin());
    for (size_t at = 0; at < padded_.size(); at += kInt4Group) {
      group_max_.push_back(ReduceMax16(Abs(Load16(padded_.data() + at))));
      row_max_ = std::max(row_max_, group_max_.back());
    }
    factors_.resize(group_max_.size());
  }

  void Run(Int4Row& row) {
    if (!(row_max_ > 0)) {
      std::fill(row.codes.begin(), row.codes.end(), uint8_t{0});
      std::fill(row.factors.begin(), row.factors.end(), uint8_t{0});
      row.scale = 0;
      return;
    }
    // The factors are 2^(1/4) apart: a handful of scales inside that span is all there is to try.
    constexpr int kStarts = 4, kRefinements = 2;
    double best_error = -1;
    float best_scale = 0;
    for (int start = 0; start < kStarts; ++start) {
      float scale = row_max_ / 126.0f * (0.86f + 0.05f * static_cast<float>(start));
      for (int i = 0; i < kRefinements; ++i) {
        const Fit fit = Assign(scale);
        const double error = fit.squares_error();
        if (best_error < 0 || error < best_error) {
          best_error = error;
          best_scale = fit.scale(scale);
        }
        scale = fit.scale(scale);
      }
    }
    const Fit fit = Assign(best_scale);
    for (size_t g = 0; g < factors_.size(); ++g) Emit(g, best_scale, row);
    row.scale = fit.scale(best_scale);
  }

 private:
  // Sums over a row of x and its levels v.
  struct Fit {
    double xx = 0, xv = 0, vv = 0;
    float scale(float otherwise) const { return xv > 0 && vv > 0 ? static_cast<float>(xv / vv) : otherwise; }
    double squares_error() const { return vv > 0 ? xx - xv * xv / vv : xx; }
  };

  // Chooses every group's factor for a given scale.
  Fit Assign(float scale) {
    F32x16 xx = Zero16(), xv = Zero16(), vv = Zero16();
    const F32x16 inverse = Set16(1.0f / scale);
    for (size_t g = 0; g < factors_.size(); ++g) {
      const F32x16 x = Load16(padded_.data() + g * kInt4Group), y = Mul(x, inverse), minus = Sub(Zero16(), y);
      const float largest = group_max_[g] / scale;
      float least = -1;
      F32x16 levels = Zero16();
      for (int m = 0; m < kMagnitudes; ++m) {
        const float reach = static_cast<float>(-int4_value(0, m));
        // Far too short or far too wide for this group; one is tried in any case.
        if ((reach < 0.75f * largest && m > 0) || (reach > 1.45f * largest && m + 1 < kMagnitudes)) continue;
        for (int turned = 0; turned < 2; ++turned) {
          const F32x16 target = turned != 0 ? minus : y;
          const F32x16 level = NearestLevels(steps(), m, target);
          const F32x16 difference = Sub(target, level);
          const float error = ReduceSum16(Mul(difference, difference));
          if (least >= 0 && !(error < least)) continue;
          least = error;
          factors_[g] = static_cast<uint8_t>(m + turned * kMagnitudes);
          levels = turned != 0 ? Sub(Zero16(), level) : level;
        }
      }
      xx = Add(xx, Mul(x, x));
      xv = Add(xv, Mul(x, levels));
      vv = Add(vv, Mul(levels, levels));
    }
    return {ReduceSum16(xx), ReduceSum16(xv), ReduceSum16(vv)};
  }

  void Emit(size_t g, float scale, Int4Row& row) const {
    const float inverse = 1.0f / scale;
    const int magnitude = factors_[g] % kMagnitudes;
    row.factors[g] = factors_[g];
    for (size_t i = g * kInt4Group; i < std::min((g + 1) * kInt4Group, row.codes.size()); ++i) {
      const float y = factors_[g] < kMagnitudes ? padded_[i] * inverse : -(padded_[i] * inverse);
      int code = 0;
      while (code + 1 < kLevels && y > steps().middle[magnitude][code]) ++code;
      row.codes[i] = static_cast<uint8_t>(code);
    }
  }

  static const LevelSteps& steps() {
    static const LevelSteps once;
    return once;
  }

  std::vector<float> padded_, group_max_;
  std::vector<uint8_t> factors_;
  float row_max_ = 0;
};

void QuantizeInt4(const float* values, Int4Row& row) { RowQuantizer(values, row.size()).Run(row); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace bam
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bam {
HWY_EXPORT(QuantizeInt4);

void Int4Row::quantize(const float* values) { HWY_DYNAMIC_DISPATCH(QuantizeInt4)(values, *this); }

}  // namespace bam
#endif
