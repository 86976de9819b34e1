#pragma once

#include <cstdint>

#include "models/model_config.h"
#include "models/safetensors.h"

namespace bam {

// Identifies a model: everything in `config` that changes its numbers, all file headers, every byte of small tensors
// and evenly spread samples of large ones. Milliseconds even for gigabytes; unchanged by where the folder lies.
uint64_t fingerprint_checkpoint(const ModelConfig& config, const SafetensorsCheckpoint& checkpoint);

}  // namespace bam
