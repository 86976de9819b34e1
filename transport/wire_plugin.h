// What every transport plugin exports, written once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>

#include "base/plugin.h"
#include "transport/wire.h"

namespace bam {

// As MakeWireFunction.
template <typename Made>
Wire* make_wire_of(const WireOptions& options, char* error, size_t error_size) {
  try {
    return new Made(options);
  } catch (const std::exception& e) {
    const std::string why = e.what();
    const size_t n = std::min(why.size(), error_size - 1);
    std::copy_n(why.begin(), n, error);
    error[n] = '\0';
    return nullptr;
  }
}

}  // namespace bam

#define BAM_WIRE_PLUGIN(Made)                                                                                   \
  extern "C" {                                                                                                  \
  __attribute__((visibility("default"))) const char* bam_plugin_abi() { return BAM_TRANSPORT_ABI; }             \
  __attribute__((visibility("default"))) bam::Wire* bam_make_wire(const bam::WireOptions* options, char* error, \
                                                                  size_t error_size) {                          \
    return bam::make_wire_of<Made>(*options, error, error_size);                                                \
  }                                                                                                             \
  }
