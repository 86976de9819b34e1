// One stage of 32 keys on its way from a page to the tensor cores. See attention_mma.cu.
//
// A thread takes the same places of every stage: what they are is found once, and a copy of 16 bytes is one instruction
// with constant offsets. Codes of fp8 are widened by the thread that copied them.
#pragma once

#include "kernels/cuda/attention_mma_types.h"
#include "kernels/cuda/stored.h"

namespace bam::cuda::mma {

template <typename C>
struct StageMover {
  static constexpr int kElement = C::kQuantised ? 1 : 2;
  static constexpr int kPanelBytes = kPanelKeys * kElement;
  static constexpr int kKeyChunks = kStageKeys * kElement / 16;  // 16-byte pieces of one dim's row of K
  static constexpr int kValueChunks = C::kDims * kElement;       // of one key's row of V
  static constexpr int kValueLanes = kValueChunks <= 2 ? 2 : kValueChunks <= 4 ? 4 : kValueChunks <= 8 ? 8 : 16;
  static constexpr bool kEveryLane = C::kExact && kValueLanes == kValueChunks;  // of a warp has a piece
  // Bytes between rows where copies land: the stage itself, or the codes to be widened.
  static constexpr int kKeyPitch = C::kInt8 ? 16 : C::kQuantised ? kStageKeys : kKeyRowBytes;
  static constexpr int kKeyChunkBytes = C::kInt8 ? C::kDims * 256 : 16;  // from one piece of a row to the next
  static constexpr int kValuePitch = C::kQuantised ? C::kRawValueRow : C::kValueRowBytes;
  static constexpr int kBufferBytes = C::kQuantised ? C::kRawBytes : C::kStageBytes;
  static constexpr int kValuesAt = C::kQuantised ? C::kRawValues : C::kKeyBytes;

  unsigned char* buffers;  // shared: two of kBufferBytes
  int head_dim, value_chunks;
  int key_row, key_chunk, value_row, value_chunk;  // the first piece of this thread
  int key_from, value_from, scale_from;            // bytes from the start of a tile
  int key_half, value_pitch;                       // bytes: from one half of a tile to the other; of a row of V
  int threads;

  __device__ __forceinline__ StageMover(const KvLayout& layout, unsigned char* buffers_, int threads_)
      : buffers(buffers_),
        head_dim(layout.head_dim),
        value_chunks(layout.padded_dim * kElement / 16),
        value_pitch(layout.padded_dim * kElement),
        threads(threads_) {
    const int thread = static_cast<int>(threadIdx.x);
    key_row = thread / kKeyChunks;
    key_chunk = thread % kKeyChunks;
    value_row = thread / kValueLanes;
    value_chunk = thread % kValueLanes;
    const int panel = key_chunk * 16 / kPanelBytes, inside = key_chunk * 16 % kPanelBytes;
    key_from = static_cast<int>(layout.k_offset) + (panel * head_dim + key_row) * kPanelBytes + inside;
    key_half = kStageKeys / kPanelKeys * head_dim * kPanelBytes;
    value_from = static_cast<int>(layout.v_offset) + value_row * value_pitch + 16 * value_chunk;
    // By a whole warp 4 bytes each, so that all lanes do the same.
    constexpr int kScaleLanes = C::kFew ? 16 : 4;
    scale_from = static_cast<int>(thread < kScaleLanes ? layout.k_scale_offset : layout.v_scale_offset) +
                 thread % kScaleLanes * (kStageKeys * 2 / kScaleLanes);
  }

  __device__ __forceinline__ unsigned char* buffer(int s) const { return buffers + s % 2 * kBufferBytes; }

  // The row that a key's values get. int8: the order in which scores lie in registers, see Config::column().
  __device__ __forceinline__ static constexpr int value_slot(int key) {
    return C::kInt8 ? key / 16 * 16 + key / 4 % 4 * 2 + key % 2 + key / 2 % 2 * 8 : key;
  }

  // Starts copying half `half` of a tile into buffer(s).
  __device__ __forceinline__ void copy(const unsigned char* tile, int half, int s) const {
    if (C::kFew || threads == 32) {
      copy_by<32>(tile, half, s);
    } else {
      copy_by<kMaxThreads>(tile, half, s);
    }
  }

  template <int kThreads>
  __device__ __forceinline__ void copy_by(const unsigned char* tile, int half, int s) const {
    unsigned char* const to = buffer(s);
    constexpr int kDimsAtOnce = kThreads / kKeyChunks, kKeysAtOnce = kThreads / kValueLanes;
    const unsigned char* keys = tile + key_from + half * key_half;
    const SharedAddress key_to = shared_address(to + key_row * kKeyPitch + kKeyChunkBytes * key_chunk);
#pragma unroll
    for (int d = 0; d < C::kDims * 16; d += kDimsAtOnce) {
      if (d + kDimsAtOnce <= C::kSureDims || key_row + d < head_dim) {
        cp_async_16(key_to + d * kKeyPitch, keys + d * kPanelBytes);
      }
    }
    if ((kEveryLane || value_chunk < value_chunks) && (kKeysAtOnce <= kStageKeys || value_row < kStageKeys)) {
      const unsigned char* values = tile + value_from + half * (kStageKeys * value_pitch);
      const SharedAddress value_to =
          shared_address(to + kValuesAt + value_slot(value_row) * kValuePitch + 16 * value_chunk);
      if (C::kExact || value_chunks == kValueChunks) {
#pragma unroll
        for (int k = 0; k < kStageKeys; k += kKeysAtOnce) {
          cp_async_16(value_to + value_slot(k) * kValuePitch, values + k * (16 * kValueChunks));
        }
      } else {
#pragma unroll 1
        for (int k = 0; k < kStageKeys; k += kKeysAtOnce) {
          cp_async_16(value_to + value_slot(k) * kValuePitch, values + k * value_pitch);
        }
      }
    }
    if constexpr (C::kFew) {
      cp_async<4>(to + C::kRawScales + 4 * threadIdx.x, tile + scale_from + half * (kStageKeys * 2));
    } else if constexpr (C::kQuantised) {
      if (threadIdx.x < 8) {
        cp_async_16(shared_address(to + C::kRawScales + 16 * threadIdx.x), tile + scale_from + half * (kStageKeys * 2));
      }
    }
  }

  // float16 scales of a stage of codes: 32 of keys, then 32 of values.
  __device__ __forceinline__ const uint16_t* scales(int s) const {
    return reinterpret_cast<const uint16_t*>(buffer(s) + C::kRawScales);
  }

  // Codes of buffer(s) become 16-bit numbers in `stage`; values get their scale here, keys later.
  __device__ __forceinline__ void widen(int s, unsigned char* stage) const {
    if (threads == 32) {
      widen_by<32>(s, stage);
    } else {
      widen_by<kMaxThreads>(s, stage);
    }
  }

  template <int kThreads>
  __device__ __forceinline__ void widen_by(int s, unsigned char* stage) const {
    constexpr int kDimsAtOnce = kThreads / kKeyChunks, kKeysAtOnce = kThreads / kValueLanes;
    const unsigned char* const from = buffer(s);
    const unsigned char* keys = from + key_row * kKeyPitch + 16 * key_chunk;
    unsigned char* key_to = stage + key_row * kKeyRowBytes + 32 * key_chunk;
#pragma unroll
    for (int d = 0; d < C::kDims * 16; d += kDimsAtOnce) {
      if (key_row + d < head_dim) {
        const uint4 codes = *reinterpret_cast<const uint4*>(keys + d * kKeyPitch);
        auto* to = reinterpret_cast<uint4*>(key_to + d * kKeyRowBytes);
        to[0] = widen8(codes.x, codes.y);
        to[1] = widen8(codes.z, codes.w);
      }
    }
    if (value_chunk >= value_chunks || (kKeysAtOnce > kStageKeys && value_row >= kStageKeys)) return;
    const unsigned char* values = from + kValuesAt + value_row * kValuePitch + 16 * value_chunk;
    unsigned char* value_to = stage + C::kKeyBytes + value_row * C::kValueRowBytes + 32 * value_chunk;
    const uint16_t* value_scales = scales(s) + kStageKeys + value_row;
#pragma unroll
    for (int k = 0; k < kStageKeys; k += kKeysAtOnce) {
      const uint4 codes = *reinterpret_cast<const uint4*>(values + k * kValuePitch);
      const __half2 scale = __half2half2(__ushort_as_half(value_scales[k]));
      auto* to = reinterpret_cast<uint4*>(value_to + k * C::kValueRowBytes);
      to[0] = scaled(widen8(codes.x, codes.y), scale);
      to[1] = scaled(widen8(codes.z, codes.w), scale);
    }
  }

  __device__ __forceinline__ static uint4 widen8(uint32_t first, uint32_t second) {
    const uint2 low = widen4<C::kCodes == Codes::kFp8>(first), high = widen4<C::kCodes == Codes::kFp8>(second);
    return {low.x, low.y, high.x, high.y};
  }
  // Products of a code and a scale are exact in float32, so this rounds once.
  __device__ __forceinline__ static uint4 scaled(uint4 halves, __half2 scale) {
    return {bits_of(__hmul2(halves_of(halves.x), scale)), bits_of(__hmul2(halves_of(halves.y), scale)),
            bits_of(__hmul2(halves_of(halves.z), scale)), bits_of(__hmul2(halves_of(halves.w), scale))};
  }
};

// Rows of K beyond head_dim and columns of V beyond padded_dim are never copied to; they must be zero, not poison. stages: what
// the tensor cores read, two buffers of codes for int8.
template <typename C>
__device__ __forceinline__ void clear_padding(const KvLayout& layout, unsigned char* stages, int threads) {
  const int head_dim = layout.head_dim, padded = layout.padded_dim;
  [[maybe_unused]] const int words = C::kDims * 8 - padded / 2;
  if constexpr (C::kInt8) {  // a raw stage has no gaps but these
    const int rows = C::kDims * 16 - head_dim, chunks = C::kDims - padded / 16;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * (2 * rows + kStageKeys * chunks); i += threads) {
      unsigned char* codes = stages + i % 2 * C::kRawBytes;
      const int piece = i / 2, value = piece - 2 * rows;
      const int at = value < 0 ? piece / rows * (C::kDims * 256) + (head_dim + piece % rows) * 16
                               : C::kRawValues + value / chunks * C::kRawValueRow + padded + value % chunks * 16;
      *reinterpret_cast<uint4*>(codes + at) = uint4{0, 0, 0, 0};
    }
  } else {
    for (int s = 0; s < C::kStages; ++s) {
      unsigned char* stage = stages + s * C::kStageBytes;
      auto* k = reinterpret_cast<uint32_t*>(stage + head_dim * kKeyRowBytes);
      for (int i = static_cast<int>(threadIdx.x); i < (C::kDims * 16 - head_dim) * kKeyRowBytes / 4; i += threads)
        k[i] = 0;
      for (int i = static_cast<int>(threadIdx.x); i < kStageKeys * words; i += threads) {
        unsigned char* row = stage + C::kKeyBytes + i / words * C::kValueRowBytes + padded * 2;
        reinterpret_cast<uint32_t*>(row)[i % words] = 0;
      }
    }
  }
}

}  // namespace bam::cuda::mma
