#pragma once

#include <cstdint>
#include <vector>

#include "app/model_setup.h"

namespace bam {

// How long each layer takes for a prompt on this machine.
struct LayerTimes {
  static constexpr int kParts = 16;
  int64_t tokens = 0, chunk = 0;             // of the prompt; rows of one step
  std::vector<std::vector<double>> seconds;  // [layers][parts]: later parts of a prompt have more to look at

  double of(size_t layer) const;
};

// Reads a prompt of so many tokens layer by layer, showing progress on a terminal. Throws Error.
LayerTimes measure_layers(ModelSettings settings, int64_t tokens);

}  // namespace bam
