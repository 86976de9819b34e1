// Rows of numbers in device memory together with their shape: what the operations of a backend take and check.
#pragma once

#include <cstdint>
#include <type_traits>

namespace bam {

// T: float for float32, void for operands, whose format is the backend's own. Rows follow each other without gaps.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t count = 0;
  int64_t width = 0;

  int64_t size() const { return count * width; }
  Rows slice(int64_t first, int64_t rows) const requires(!std::is_void_v<T>) {
    return {data + first * width, rows, width};
  }
  operator Rows<const T>() const requires(!std::is_const_v<T>) { return {data, count, width}; }
};
using FloatRows = Rows<float>;
using ConstFloatRows = Rows<const float>;
using OperandRows = Rows<void>;
using ConstOperandRows = Rows<const void>;

}  // namespace bam
