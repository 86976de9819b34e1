// What a caller may ask of attention, and what attention tells about itself.
#pragma once

#include <cstdint>

namespace bam {

// How much of the cache attention really read; added up over calls. Units: (query row, tile of 64 keys) pairs.
struct AttentionCounters {
  uint64_t visited = 0;
  uint64_t skipped = 0;      // left out by a certified bound or by static reach
  uint64_t bound_tests = 0;  // bounds evaluated, tiles and super-tiles
  // The largest share of a row's softmax mass that what it left out could have had, by the bounds that were used: at
  // most AttentionOptions::epsilon. 0 from a device that does not tell.
  float left_out = 0;

  AttentionCounters& operator+=(const AttentionCounters& other) {
    visited += other.visited;
    skipped += other.skipped;
    bound_tests += other.bound_tests;
    left_out = other.left_out > left_out ? other.left_out : left_out;
    return *this;
  }
};

struct AttentionOptions {
  bool certified = true;     // false: dense
  float epsilon = 0x1p-20f;  // left-out softmax mass per row
};

}  // namespace bam
