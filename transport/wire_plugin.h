// What every transport plugin exports, written once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>

#include "base/plugin.h"
#include "transport/wire.h"

namespace bam {

// What `make` makes, or null and one line in `error`.
template <typename F>
auto made_or_reason(F make, char* error, size_t error_size) -> decltype(make()) {
  try {
    return make();
  } catch (const std::exception& e) {
    const std::string why = e.what();
    const size_t n = std::min(why.size(), error_size - 1);
    std::copy_n(why.begin(), n, error);
    error[n] = '\0';
    return nullptr;
  }
}

}  // namespace bam

#define BAM_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

#define BAM_WIRE_PLUGIN(Made)                                                                                   \
  BAM_PLUGIN_EXPORT const char* bam_plugin_abi() { return BAM_TRANSPORT_ABI; }                                  \
  BAM_PLUGIN_EXPORT bam::Wire* bam_make_wire(const bam::WireOptions* options, char* error, size_t error_size) { \
    return bam::made_or_reason([&]() -> bam::Wire* { return new Made(*options); }, error, error_size);          \
  }
