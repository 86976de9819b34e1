#include "kernels/page_keys.h"

#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

namespace bam {
namespace {

template <typename T>
T load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

void decode_key_panel(const KvLayout& layout, const std::byte* tile, int panel, float* out) {
  const size_t numbers = static_cast<size_t>(layout.head_dim) * kPanelKeys;
  const std::byte* from = tile + layout.k_offset + static_cast<size_t>(panel) * numbers * dtype_bits(layout.dtype) / 8;
  float scale[kPanelKeys], minimum[kPanelKeys];
  for (size_t k = 0; k < kPanelKeys; ++k) {
    const std::byte* scales = tile + layout.k_scale_offset;
    const size_t slot = static_cast<size_t>(panel) * kPanelKeys + k;
    const bool coded = dtype_bits(layout.dtype) <= 8;
    scale[k] = coded ? f16_to_f32(load<uint16_t>(scales, slot)) : 1.0f;
    minimum[k] = layout.dtype == DType::kI4 ? f16_to_f32(load<uint16_t>(scales, kTileKeys + slot)) : 0.0f;
  }
  for (size_t i = 0; i < numbers; ++i) {
    const size_t k = i % kPanelKeys;
    switch (layout.dtype) {
      case DType::kF32: out[i] = load<float>(from, i); break;
      case DType::kF16: out[i] = f16_to_f32(load<uint16_t>(from, i)); break;
      case DType::kBF16: out[i] = bf16_to_f32(load<uint16_t>(from, i)); break;
      case DType::kI8: out[i] = scale[k] * static_cast<float>(load<int8_t>(from, i)); break;
      case DType::kFp8: out[i] = scale[k] * fp8_to_f32(load<uint8_t>(from, i)); break;
      case DType::kI4: {
        const auto byte = load<uint8_t>(from, i / kPanelKeys * 8 + k % 8);
        out[i] = minimum[k] + scale[k] * static_cast<float>(k < 8 ? byte & 0x0f : byte >> 4);
        break;
      }
    }
  }
}

}  // namespace bam
