// Rotates q and k, stores k and v in their pages and completes the statistics of full tiles. What is stored, and the
// statistics of it, follow kernels/cpu/kv_store.cpp to the letter; bfloat16 and fp8 are stored by the same rules.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/numeric.h"
#include "kernels/cuda/stored.h"

namespace bam::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxDim = 256;
// The largest fp8 scale whose 448-fold is a finite float16: what is larger saturates, as in float16 pages.
constexpr float kLargestFp8Scale = 146.125f;
constexpr float kWiden = 1.0f + 1e-5f;  // norms were rounded; every bound stays an upper bound

struct Quantizer {
  float scale = 1, minimum = 0, inverse = 1;
};

// `x`: one head's vector; all lanes of a warp together.
template <typename T>
__device__ __forceinline__ Quantizer fit(DType dtype, const T* x, int head_dim, int lane) {
  Quantizer q;
  if (dtype == DType::kI8 || dtype == DType::kFp8) {
    const float limit = dtype == DType::kI8 ? 127.0f : kLargestFp8;
    float largest = 0;
    for (int d = lane; d < head_dim; d += 32) largest = fmaxf(largest, fabsf(to_float(x[d])));
    largest = warp_max(largest);
    const uint16_t bits = float_to_half_bits(largest / limit);
    q.scale = half_bits_to_float(bits);
    // A scale that was rounded down would clip the largest value: take the next one up.
    if (q.scale * limit < largest) q.scale = half_bits_to_float(static_cast<uint16_t>(bits + 1));
    if (dtype == DType::kFp8) q.scale = fminf(q.scale, kLargestFp8Scale);
    q.inverse = q.scale > 0 ? 1.0f / q.scale : 0.0f;
  } else if (dtype == DType::kI4) {
    float low = to_float(x[0]), high = low;
    for (int d = lane; d < head_dim; d += 32) {
      low = fminf(low, to_float(x[d]));
      high = fmaxf(high, to_float(x[d]));
    }
    low = -warp_max(-low);
    high = warp_max(high);
    q.minimum = half_bits_to_float(float_to_half_bits(low));
    q.scale = half_bits_to_float(float_to_half_bits(fmaxf(high - q.minimum, 0.0f) / 15.0f));
    q.inverse = q.scale > 0 ? 1.0f / q.scale : 0.0f;
  }
  return q;
}

__device__ __forceinline__ int encode(const Quantizer& q, float value, float low, float high) {
  return static_cast<int>(fminf(fmaxf(rintf((value - q.minimum) * q.inverse), low), high));
}

// Stores one head's vector at `slot` of the tile's K or V array. One warp.
template <typename T, typename Index>
__device__ __forceinline__ void store_vector(const KvLayout& layout, unsigned char* array, uint16_t* scales, int slot,
                                             const T* x, int lane, Index index) {
  const Quantizer q = fit(layout.dtype, x, layout.head_dim, lane);
  if (lane == 0 && (layout.dtype == DType::kI8 || layout.dtype == DType::kI4 || layout.dtype == DType::kFp8)) {
    scales[slot] = float_to_half_bits(q.scale);
    if (layout.dtype == DType::kI4) scales[kTileKeys + slot] = float_to_half_bits(q.minimum);
  }
  for (int d = lane; d < layout.head_dim; d += 32) {
    const float value = to_float(x[d]);
    switch (layout.dtype) {
      case DType::kF32: reinterpret_cast<float*>(array)[index(d)] = value; break;
      case DType::kF16: reinterpret_cast<__half*>(array)[index(d)] = from_float<__half>(value); break;
      case DType::kBF16: reinterpret_cast<__nv_bfloat16*>(array)[index(d)] = from_float<__nv_bfloat16>(value); break;
      case DType::kI8:
        reinterpret_cast<int8_t*>(array)[index(d)] = static_cast<int8_t>(encode(q, value, -127.0f, 127.0f));
        break;
      case DType::kFp8: array[index(d)] = float_to_fp8(value * q.inverse); break;
      case DType::kI4: {
        // Neighbours share a byte with another slot (K) or another lane (V): a whole word changes at once.
        const int at = index(d), byte = at / 16 * 8 + at % 8, shift = byte % 4 * 8 + (at % 16 < 8 ? 0 : 4);
        auto* word = reinterpret_cast<unsigned*>(array) + byte / 4;
        atomicAnd(word, ~(15u << shift));
        atomicOr(word, static_cast<unsigned>(encode(q, value, 0.0f, 15.0f)) << shift);
        break;
      }
    }
  }
}

// One warp rotates `queries` vectors at `q` and one at `k` in place.
template <typename T>
__device__ __forceinline__ void rotate(const RopeTables& rope, int position, T* q, int queries, T* k, int lane) {
  const RopeAngle* fine = rope.fine + position % RopeTables::kFine * static_cast<long long>(rope.half);
  const RopeAngle* coarse = rope.coarse + position / RopeTables::kFine * static_cast<long long>(rope.half);
  for (int t = lane; t < rope.half; t += 32) {
    const RopeAngle more = coarse[t], less = fine[t];
    const FloatPair cos = sum(product(more.cos, less.cos), negative(product(more.sin, less.sin)));
    const FloatPair sin = sum(product(more.cos, less.sin), product(more.sin, less.cos));
    const int a = rope.interleaved ? 2 * t : t, b = rope.interleaved ? 2 * t + 1 : t + rope.half;
    for (int i = 0; i <= queries; ++i) {
      T* x = i == queries ? k : q + static_cast<long long>(i) * 2 * rope.half;
      const float xa = to_float(x[a]), xb = to_float(x[b]);
      x[a] = from_float<T>(sum(product(xa, cos), negative(product(xb, sin))).high);
      x[b] = from_float<T>(sum(product(xa, sin), product(xb, cos)).high);
    }
  }
}

__device__ __forceinline__ KeyStats* stats_at(unsigned char* tile, size_t offset) {
  return reinterpret_cast<KeyStats*>(tile + offset);
}

// A recycled page: padding and unused scales must read as zero, statistics as unfinished.
__device__ __forceinline__ void clear_tile(const KvLayout& layout, unsigned char* tile) {
  const auto clear = [&](size_t begin, size_t end) {
    auto* words = reinterpret_cast<uint32_t*>(tile + begin);
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>((end - begin) / 4); i += kThreads) words[i] = 0;
  };
  clear(layout.v_offset, layout.k_scale_offset);
  clear(layout.k_scale_offset, layout.stats_offset);
  if (threadIdx.x == 0) {
    stats_at(tile, layout.stats_offset)->valid = 0;
    stats_at(tile, layout.super_stats_offset)->valid = 0;
  }
}

// The neighbours in half precision that surely enclose a value.
__device__ __forceinline__ uint16_t round_down_half(float value) {
  const uint16_t half = float_to_half_bits(value);
  if (half_bits_to_float(half) <= value) return half;
  if ((half & 0x7fff) == 0) return 0x8001;  // below zero: the smallest negative subnormal
  return static_cast<uint16_t>((half & 0x8000) != 0 ? half + 1 : half - 1);
}
__device__ __forceinline__ uint16_t round_up_half(float value) {
  return static_cast<uint16_t>(round_down_half(-value) ^ 0x8000);
}

// Largest of `count` values in shared memory; NaN makes a bound useless.
__device__ __forceinline__ float largest_or_nan(const float* values, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = max_or_nan(largest, values[i]);
  return largest;
}

// Box, radius and largest norm of a full tile, from what is stored. All threads of the block.
__device__ __forceinline__ void finish_tile(const KvLayout& layout, unsigned char* tile, float (&mid)[kMaxDim],
                                            float (&norm2)[kTileKeys], float (&distance2)[kTileKeys]) {
  KeyStats* stats = stats_at(tile, layout.stats_offset);
  auto* lo = reinterpret_cast<uint16_t*>(stats + 1);
  uint16_t* hi = lo + layout.padded_dim;
  const unsigned char* keys = tile + layout.k_offset;
  const auto* scales = reinterpret_cast<const uint16_t*>(tile + layout.k_scale_offset);
  const auto key = [&](int slot, int d) {
    return load_stored(layout.dtype, keys, scales, slot, key_index(layout.head_dim, slot, d));
  };
  for (int d = static_cast<int>(threadIdx.x); d < layout.padded_dim; d += kThreads) {
    float low = -minus_infinity(), high = minus_infinity();
    for (int slot = 0; d < layout.head_dim && slot < kTileKeys; ++slot) {
      low = fminf(low, key(slot, d));
      high = fmaxf(high, key(slot, d));
    }
    lo[d] = d < layout.head_dim ? round_down_half(low) : 0;
    hi[d] = d < layout.head_dim ? round_up_half(high) : 0;
    mid[d] = 0.5f * (half_bits_to_float(lo[d]) + half_bits_to_float(hi[d]));
  }
  __syncthreads();
  for (int slot = static_cast<int>(threadIdx.x); slot < kTileKeys; slot += kThreads) {
    float norm = 0, distance = 0;
    for (int d = 0; d < layout.head_dim; ++d) {
      const float value = key(slot, d), offset = value - mid[d];
      norm = fmaf(value, value, norm);
      distance = fmaf(offset, offset, distance);
    }
    norm2[slot] = norm;
    distance2[slot] = distance;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    stats->radius = sqrtf(largest_or_nan(distance2, kTileKeys)) * kWiden;
    stats->max_norm = sqrtf(largest_or_nan(norm2, kTileKeys)) * kWiden;
    stats->max_norm_prefix = stats->max_norm;
    stats->valid = 1;
  }
}

// grid: (items, kv heads). Four blocks: left alone, ptxas aims at more and spills.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4) write_kv_kernel(KvWriteArgs args, const KvWriteItem* items) {
  BAM_SHARED(float, mid, [kMaxDim]);
  BAM_SHARED(float, norm2, [kTileKeys]);
  BAM_SHARED(float, distance2, [kTileKeys]);
  const KvWriteItem item = items[blockIdx.x];
  const KvLayout& layout = args.kv.layout;
  const int head = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = layout.head_dim, group = args.num_heads / args.num_kv_heads;
  const long long ld = static_cast<long long>(args.num_heads + 2 * args.num_kv_heads) * dim;
  const int first_slot = item.position % kTileKeys;
  unsigned char* tile = tile_pointer(args.kv, item.pages + head * item.page_stride, item.position / kTileKeys);
  if (first_slot == 0) clear_tile(layout, tile);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x) / 32; i < item.count; i += kThreads / 32) {
    T* row = static_cast<T*>(args.qkv) + (item.row + i) * ld;
    T* k = row + static_cast<long long>(args.num_heads + head) * dim;
    const T* v = k + static_cast<long long>(args.num_kv_heads) * dim;
    if (args.rope.fine != nullptr) {
      rotate(args.rope, item.position + i, row + static_cast<long long>(head * group) * dim, group, k, lane);
      __syncwarp();
    }
    const int slot = first_slot + i;
    store_vector(layout, tile + layout.k_offset, reinterpret_cast<uint16_t*>(tile + layout.k_scale_offset), slot, k,
                 lane, [&](int d) { return key_index(dim, slot, d); });
    store_vector(layout, tile + layout.v_offset, reinterpret_cast<uint16_t*>(tile + layout.v_scale_offset), slot, v,
                 lane, [&](int d) { return slot * layout.padded_dim + d; });
  }
  if (first_slot + item.count < kTileKeys) return;
  __syncthreads();
  finish_tile(layout, tile, mid, norm2, distance2);
}

// Joins the boxes of the 16 tiles that end with `last` into its super box. All threads of the block.
__device__ __forceinline__ void finish_super(const KvPages& kv, const int32_t* pages, int last, float (&mid)[kMaxDim],
                                             float (&radius)[kSuperTiles]) {
  const KvLayout& layout = kv.layout;
  unsigned char* last_tile = tile_pointer(kv, pages, last);
  KeyStats* out = stats_at(last_tile, layout.super_stats_offset);
  auto* out_lo = reinterpret_cast<uint16_t*>(out + 1);
  const auto box = [&](int t) {
    unsigned char* tile = tile_pointer(kv, pages, last - kSuperTiles + 1 + t);
    return reinterpret_cast<const uint16_t*>(stats_at(tile, layout.stats_offset) + 1);
  };
  for (int d = static_cast<int>(threadIdx.x); d < layout.padded_dim; d += kThreads) {
    float lo = -minus_infinity(), hi = minus_infinity();
    for (int t = 0; t < kSuperTiles; ++t) {
      lo = fminf(lo, half_bits_to_float(box(t)[d]));
      hi = fmaxf(hi, half_bits_to_float(box(t)[layout.padded_dim + d]));
    }
    out_lo[d] = float_to_half_bits(lo);
    out_lo[layout.padded_dim + d] = float_to_half_bits(hi);
    mid[d] = 0.5f * (lo + hi);
  }
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kSuperTiles; t += kThreads) {
    float shift2 = 0;  // triangle inequality: |k - mid| <= |k - tile mid| + |tile mid - mid|
    for (int d = 0; d < layout.padded_dim; ++d) {
      const float tile_mid = 0.5f * (half_bits_to_float(box(t)[d]) + half_bits_to_float(box(t)[layout.padded_dim + d]));
      shift2 = fmaf(tile_mid - mid[d], tile_mid - mid[d], shift2);
    }
    unsigned char* tile = tile_pointer(kv, pages, last - kSuperTiles + 1 + t);
    radius[t] = stats_at(tile, layout.stats_offset)->radius + sqrtf(shift2);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float max_norm = 0;
  for (int t = 0; t < kSuperTiles; ++t) {
    const float norm = stats_at(tile_pointer(kv, pages, last - kSuperTiles + 1 + t), layout.stats_offset)->max_norm;
    max_norm = max_or_nan(max_norm, norm);
  }
  out->radius = largest_or_nan(radius, kSuperTiles) * kWiden;
  out->max_norm = max_norm;
  out->max_norm_prefix = stats_at(last_tile, layout.stats_offset)->max_norm_prefix;
  out->valid = 1;
}

// grid: (chains, kv heads). The first warp carries norm maxima from tile to tile, 32 at a time.
__global__ void __launch_bounds__(kThreads) finish_chain_kernel(KvWriteArgs args, const KvChainItem* chains) {
  BAM_SHARED(float, mid, [kMaxDim]);
  BAM_SHARED(float, radius, [kSuperTiles]);
  const KvChainItem chain = chains[blockIdx.x];
  if (chain.first_tile == chain.end_tile) return;
  const int head = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x);
  const int32_t* pages = chain.pages + head * chain.page_stride;
  const auto stats = [&](int tile) {
    return stats_at(tile_pointer(args.kv, pages, tile), args.kv.layout.stats_offset);
  };
  if (threadIdx.x < 32) {
    float before = chain.first_tile > 0 ? stats(chain.first_tile - 1)->max_norm_prefix : 0.0f;
    for (int first = chain.first_tile; first < chain.end_tile; first += 32) {
      const bool mine = first + lane < chain.end_tile;
      float most = mine ? stats(first + lane)->max_norm_prefix : 0.0f;
      if (lane == 0) most = max_or_nan(before, most);
      for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(kAllLanes, most, step);
        if (lane >= step) most = max_or_nan(other, most);
      }
      if (mine) stats(first + lane)->max_norm_prefix = most;
      before = __shfl_sync(kAllLanes, most, 31);
    }
  }
  if (args.use_super[head] == 0) return;
  __syncthreads();
  for (int t = chain.first_tile / kSuperTiles * kSuperTiles + kSuperTiles - 1; t < chain.end_tile; t += kSuperTiles) {
    finish_super(args.kv, pages, t, mid, radius);
    __syncthreads();
  }
}

}  // namespace

void write_kv_rows(const KvWriteArgs& args, DType operand, const KvWriteItem* items, int num_items,
                   const KvChainItem* chains, int num_chains, const Queue& queue) {
  BAM_CHECK(args.kv.layout.padded_dim <= kMaxDim);
  const auto heads = static_cast<unsigned>(args.num_kv_heads);
  if (num_items > 0) {
    with_float_type(operand, [&](auto type) {
      using T = typename decltype(type)::type;
      check(launch(write_kv_kernel<T>, dim3(static_cast<unsigned>(num_items), heads), dim3(kThreads), 0, queue, args,
                   items),
            "write_kv_kernel");
    });
  }
  if (num_chains > 0) {
    check(launch(finish_chain_kernel, dim3(static_cast<unsigned>(num_chains), heads), dim3(kThreads), 0, queue, args,
                 chains),
          "finish_chain_kernel");
  }
}

}  // namespace bam::cuda
