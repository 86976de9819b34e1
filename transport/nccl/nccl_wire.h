// Rows between devices by NCCL.
#pragma once

#include <memory>

#include "transport/row_wire.h"

namespace bam {

// Throws Error if the library cannot be had.
std::unique_ptr<RowWireMaker> make_nccl_wires();

}  // namespace bam
