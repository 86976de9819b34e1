#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "models/weights.h"

namespace bam {

struct NonFinite {
  int64_t index;  // of the first NaN or infinity, row-major
  bool is_nan;
};

struct NonFiniteTensor {
  size_t tensor;  // position in the list
  NonFinite value;
};

std::optional<NonFinite> find_non_finite(const WeightView& view);

// The first offender of a list, at memory speed; two threads share the work when there is enough of it.
std::optional<NonFiniteTensor> find_non_finite(const std::vector<WeightView>& views);

}  // namespace bam
