#pragma once

#include <string_view>

namespace bam {

// Why a sentencepiece model's compiled normalisation map (NormalizerSpec.precompiled_charsmap) cannot be used; empty:
// it can. sentencepiece walks the map without looking at bounds, so whatever a text could make it read is checked here:
//
//   | bytes of the trie: u32 little-endian | double-array trie: u32 units | replacements, each ending in NUL |
std::string_view normalization_map_fault(std::string_view map);

}  // namespace bam
