// Drawing tokens: one thread block per row. The rules and why the result is the host's are in kernels/draw.h. Weights
// are added up as integers, in units of 2^-34, so that atomics and reductions in any order give the same sums.
//
//   logits -> penalties, bias, bans -> maximum -> weights -> cut by top-k -> cut by top-p -> draw by id
//
// A cut is the rank of the worst token that stays. It is found digit by digit: a histogram of the tokens that agree
// with the digits known so far, and the bin in which their count or weight reaches what is asked for.
#include <cfloat>

#include "base/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/numeric.h"

namespace bam::cuda {
namespace {

using Units = unsigned long long;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kIdBits = 18, kRankBits = kIdBits + 29, kDigitBits = 11, kBins = 1 << kDigitBits,
              kBinsPerThread = kBins / kThreads;
constexpr unsigned kOneBits = 0x3f800000;
constexpr float kUnitsPerOne = 0x1p34f;
constexpr Units kNoCut = ~0ull;

static_assert(int64_t{1} << kIdBits == kMaxDrawVocab);

struct Shared {
  Units bins[kBins];
  Units sums[kWarps];
  float maxima[kWarps];
  Units rank, above;  // of a cut: digits so far, and what lies above them
  int token;
};

__device__ __forceinline__ Units units_of(float weight) { return static_cast<Units>(weight * kUnitsPerOne); }
// The bits of a number as a double; it is 0 or a normal float, and not negative.
__device__ __forceinline__ Units double_bits(double value) {
  Units bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
__device__ __forceinline__ Units double_bits(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits >> 23 == 0
             ? 0
             : static_cast<Units>((bits >> 23) + 1023 - 127) << 52 | static_cast<Units>(bits & 0x7fffff) << 29;
}
// Smaller is better, no two tokens are equal. weight > 0.
__device__ __forceinline__ Units rank_of(float weight, int token) {
  return static_cast<Units>(kOneBits - __float_as_uint(weight)) << kIdBits | static_cast<unsigned>(token);
}

__device__ __forceinline__ Units warp_total(Units value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}
__device__ __forceinline__ Units warp_prefix(Units value, int lane) {
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const Units before = __shfl_up_sync(kAllLanes, value, lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}

// One row's work; every method is called by all threads.
struct Drawer {
  const DrawRow& row;
  const DrawLists& lists;
  const float* logits;  // [vocab]
  float* work;          // [vocab] modified logits, then weights
  int vocab;
  Shared& shared;
  int thread, warp, lane;

  __device__ __forceinline__ Units block_sum(Units value) {
    value = warp_total(value);
    __syncthreads();
    if (lane == 0) shared.sums[warp] = value;
    __syncthreads();
    Units total = 0;
    for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
    return total;
  }
  __device__ __forceinline__ float block_max(float value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
    __syncthreads();
    if (lane == 0) shared.maxima[warp] = value;
    __syncthreads();
    float largest = minus_infinity();
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.maxima[w]);
    return largest;
  }

  // The largest logit, or +infinity if there is one that cannot be.
  __device__ __forceinline__ float checked_max() {
    float largest = minus_infinity();
    bool bad = false;
    for (int i = thread; i < vocab; i += kThreads) {
      const float x = logits[i];
      bad |= !(x <= FLT_MAX);
      largest = fmaxf(largest, x);
    }
    largest = block_max(largest);
    return __syncthreads_or(static_cast<int>(bad)) != 0 ? -minus_infinity() : largest;
  }

  // work = logits with penalties, bias and bans; the largest of them.
  __device__ __forceinline__ float modify(bool ban) {
    __syncthreads();
    for (int i = thread; i < vocab; i += kThreads) work[i] = logits[i];
    __syncthreads();
    for (int i = thread; i < row.seen.count; i += kThreads) {
      const SeenToken seen = lists.seen[row.seen.begin + i];
      work[seen.token] = penalized_logit(work[seen.token], seen.count, row.repetition_penalty, row.presence_penalty,
                                         row.frequency_penalty);
    }
    __syncthreads();
    for (int i = thread; i < row.biases.count; i += kThreads) {
      const TokenBias bias = lists.biases[row.biases.begin + i];
      work[bias.token] += bias.bias;
    }
    __syncthreads();
    for (int i = thread; ban && i < row.banned.count; i += kThreads) {
      work[lists.banned[row.banned.begin + i]] = minus_infinity();
    }
    __syncthreads();
    float largest = minus_infinity();
    for (int i = thread; i < vocab; i += kThreads) largest = work[i] > largest ? work[i] : largest;
    return block_max(largest);
  }

  // The lowest id whose value is `largest`.
  __device__ __forceinline__ int first_of(const float* values, float largest) {
    if (thread == 0) shared.token = vocab;
    __syncthreads();
    for (int i = thread; i < vocab; i += kThreads) {
      if (values[i] != largest) continue;
      atomicMin(&shared.token, i);
      break;
    }
    __syncthreads();
    return shared.token;
  }

  // Weights of the tokens down to a cut, in units.
  __device__ __forceinline__ Units kept_units(Units cut, float least) {
    Units sum = 0;
    for (int i = thread; i < vocab; i += kThreads) {
      const float weight = work[i];
      if (weight > 0 && weight >= least && rank_of(weight, i) <= cut) sum += units_of(weight);
    }
    return block_sum(sum);
  }

  // The rank of the last of the fewest best tokens down to `within` whose count, or weight in units, is at least
  // `wanted`; kNoCut if all of them are fewer.
  template <bool kCount>
  __device__ __forceinline__ Units find_cut(Units wanted, Units within) {
    Units rank = 0, above = 0;
    // Bits 18 to 46 are the weight, below is the id; digits of 11, 11, 7, 11 and 7 bits.
    for (int known = kRankBits, shift; known > 0; known = shift) {
      shift = max(known - kDigitBits, known > kIdBits ? kIdBits : 0);
      const Units mask = (Units{1} << (known - shift)) - 1;
      __syncthreads();
      for (int b = thread; b < kBins; b += kThreads) shared.bins[b] = 0;
      if (thread == 0) shared.rank = kNoCut;
      __syncthreads();
      for (int i = thread; i < vocab; i += kThreads) {
        const float weight = work[i];
        if (!(weight > 0)) continue;
        const Units r = rank_of(weight, i);
        if (r > within || r >> known != rank >> known) continue;
        atomicAdd(&shared.bins[r >> shift & mask], kCount ? Units{1} : units_of(weight));
      }
      __syncthreads();
      // Each thread looks at a few neighbouring bins.
      Units own = 0;
      for (int b = 0; b < kBinsPerThread; ++b) own += shared.bins[thread * kBinsPerThread + b];
      const Units prefix = warp_prefix(own, lane);
      if (lane == 31) shared.sums[warp] = prefix;
      __syncthreads();
      Units sum = above + prefix - own;
      for (int w = 0; w < warp; ++w) sum += shared.sums[w];
      for (int b = 0; b < kBinsPerThread; ++b) {
        const int bin = thread * kBinsPerThread + b;
        const Units with = sum + shared.bins[bin];
        if (sum < wanted && with >= wanted) {
          shared.rank = rank | static_cast<Units>(bin) << shift;
          shared.above = sum;
        }
        sum = with;
      }
      __syncthreads();
      rank = shared.rank;
      above = shared.above;
      if (rank == kNoCut) return kNoCut;
    }
    return rank;
  }

  // The token at which the weights of kept tokens, by id, exceed `target` units; the last kept one if none does.
  __device__ __forceinline__ int walk(Units target, Units cut, float least) {
    const int share = (vocab + kWarps * 32 - 1) / (kWarps * 32) * 32;  // ids of one warp
    const int begin = warp * share, end = begin + share < vocab ? begin + share : vocab;
    const auto units_at = [&](int i) {
      const float weight = i < end ? work[i] : 0.0f;
      return weight > 0 && weight >= least && rank_of(weight, i) <= cut ? units_of(weight) : Units{0};
    };
    Units sum = 0;
    int last = -1;
    for (int i = begin; i < end; i += 32) {
      const Units units = units_at(i + lane);
      if (units > 0) last = i + lane;
      sum += units;
    }
    sum = warp_total(sum);
    __syncthreads();
    if (lane == 0) shared.sums[warp] = sum;
    if (thread == 0) shared.token = -1;
    __syncthreads();
    Units total = 0, before = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += shared.sums[w];
      total += shared.sums[w];
    }
    if (target >= total) {
      atomicMax(&shared.token, last);
    } else if (before <= target && target < before + sum) {
      for (int i = begin; i < end; i += 32) {
        const Units units = units_at(i + lane);
        const Units prefix = before + warp_prefix(units, lane);
        const unsigned past = __ballot_sync(kAllLanes, prefix > target);
        if (past != 0) {
          if (lane == 0) shared.token = i + __ffs(static_cast<int>(past)) - 1;
          break;
        }
        before = __shfl_sync(kAllLanes, prefix, 31);
      }
    }
    __syncthreads();
    return shared.token;
  }

  __device__ __forceinline__ int draw(const float* values, float largest) {
    for (int i = thread; i < vocab; i += kThreads) {
      work[i] = draw_weight(values[i], largest, row.inverse_temperature);
    }
    __syncthreads();
    Units cut = kNoCut;
    if (row.top_k > 0) cut = find_cut<true>(static_cast<Units>(row.top_k), kNoCut);
    if (row.top_p < 1.0f) {
      const Units wanted = share_of(double_bits(row.top_p), kept_units(cut, 0.0f), true);
      const Units narrower = find_cut<false>(wanted > 0 ? wanted : 1, cut);
      if (narrower != kNoCut) cut = narrower;
    }
    return walk(share_of(double_bits(row.uniform), kept_units(cut, row.min_p), false), cut, row.min_p);
  }

  __device__ __forceinline__ int run() {
    float largest = checked_max();
    if (largest == minus_infinity() || largest == -minus_infinity()) return kDrawBadLogits;
    const float* values = logits;
    if (row.seen.count > 0 || row.biases.count > 0 || row.banned.count > 0) {
      values = work;
      largest = modify(true);
      // Only the end is left: it may come early.
      if (largest == minus_infinity() && row.banned.count > 0) largest = modify(false);
      if (largest == minus_infinity()) return kDrawNothing;
    }
    return row.greedy ? first_of(values, largest) : draw(values, largest);
  }
};

// grid: draws
__global__ void __launch_bounds__(kThreads, 1)
    draw_kernel(const DrawRow* rows, DrawLists lists, const float* logits, int vocab, float* work, int32_t* tokens) {
  BAM_SHARED(Shared, shared);
  const DrawRow& row = rows[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  Drawer drawer{.row = row,
                .lists = lists,
                .logits = logits + static_cast<long long>(row.row) * vocab,
                .work = work + static_cast<long long>(blockIdx.x) * vocab,
                .vocab = vocab,
                .shared = shared,
                .thread = thread,
                .warp = thread / 32,
                .lane = thread % 32};
  const int token = drawer.run();
  if (thread == 0) tokens[blockIdx.x] = token;
}

}  // namespace

void draw_rows(const DrawRow* rows, const DrawLists& lists, ConstFloatRows logits, FloatRows work, int32_t* tokens,
               const Queue& queue) {
  BAM_CHECK(work.width == logits.width && logits.width <= kMaxDrawVocab);
  check(launch(draw_kernel, dim3(static_cast<unsigned>(work.count)), dim3(kThreads), 0, queue, rows, lists, logits.data,
               static_cast<int>(logits.width), work.data, tokens),
        "draw_kernel");
}

}  // namespace bam::cuda
