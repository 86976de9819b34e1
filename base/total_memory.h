#pragma once

#include <cstddef>

namespace bam {

// All memory of the machine, or the cgroup's limit if that is lower.
size_t total_memory_bytes();

}  // namespace bam
