// How weights are held in memory.
#pragma once

#include <cstdint>

#include "models/bam.h"

namespace bam {

// The format of the output head.
DType output_dtype(const ModelOptions& options);

// What the matrices of options.stage take in memory, told from their shapes alone: numbers, and what every row of a
// quantised one has beside them. The embedding comes on top where the first layer is.
uint64_t matrix_bytes(const ModelConfig& config, const ModelOptions& options);

}  // namespace bam
