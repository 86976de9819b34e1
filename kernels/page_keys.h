// Stored keys as numbers, on the host, whichever device wrote them: for those who look at single rows, not for attention.
#pragma once

#include <cstddef>

#include "kernels/paged_kv.h"

namespace bam {

// Keys [16 panel, 16 panel + 16) of a tile as out[head_dim][kPanelKeys].
void decode_key_panel(const KvLayout& layout, const std::byte* tile, int panel, float* out);

}  // namespace bam
