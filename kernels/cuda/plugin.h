// The CUDA backend behind the plugin's C symbols (kernels/plugin.h).
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace bam::cuda {

// In cuda_backend.cpp. Throws bam::Error. The device was checked by check_device().
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

// Throws bam::Error that says which is missing: a driver, a new enough one, a device, a new enough one.
void check_device(int device);

}  // namespace bam::cuda
