// Stands in front of the toolkit's header of the same name: CUDA on the CPU, without a toolkit.
#pragma once

#include <cuda_runtime_api.h>
#include <device_functions.h>
