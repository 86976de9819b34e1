// Where a model runs. One `bam` binary serves all machines: GPU code lives in a plugin that is loaded when it is asked
// for.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace bam {

// device: cpu, cuda, cuda:N or auto; cuda is cuda:0. `cuda` throws Error that says what is missing: the plugin, a
// driver, a device, or one that is new enough. `auto` takes the GPU if there is one; if not, one log line says why it
// takes the CPU.
std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options);

// Whether `device` is a word that make_backend() knows; `index` becomes the N of cuda:N.
bool parse_device(const std::string& device, int& index);

}  // namespace bam
