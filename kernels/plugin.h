// What a device plugin (libbam_cuda.so) exports, as C symbols, beside the one of base/plugin.h.
#pragma once

#include <cstddef>

#include "base/plugin.h"
#include "kernels/backend.h"

namespace bam {

// A backend, or null and one line in `error` (cut to `error_size`, always terminated).
using PluginMakeFunction = Backend* (*)(const BackendOptions* options, char* error, size_t error_size);

inline constexpr const char* kPluginMakeSymbol = "bam_make_backend";

}  // namespace bam
