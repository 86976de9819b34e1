// What a device plugin (libbam_cuda.so) exports, as C symbols. Both sides are built from this tree: the text that
// bam_plugin_abi returns is made by CMake from the version and the headers that cross the border, so that a plugin of
// another build is refused instead of crashing.
#pragma once

#include <cstddef>

#include "kernels/backend.h"

namespace bam {

using PluginAbiFunction = const char* (*)();
// A backend, or null and one line in `error` (cut to `error_size`, always terminated).
using PluginMakeFunction = Backend* (*)(const BackendOptions* options, char* error, size_t error_size);

inline constexpr const char* kPluginAbiSymbol = "bam_plugin_abi";
inline constexpr const char* kPluginMakeSymbol = "bam_make_backend";

}  // namespace bam
