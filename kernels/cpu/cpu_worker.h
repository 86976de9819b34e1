#pragma once

#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace bam::cpu {

// Scratch memory of one thread.
struct CpuBackend::Worker {
  Worker(int padded_dim_, MemoryArena& arena)
      : padded_dim(padded_dim_),
        unpack(arena.allocate(static_cast<size_t>(gemm_unpack_floats()) * sizeof(float))),
        q(static_cast<size_t>(kMaxRows * padded_dim_)),
        rotated(static_cast<size_t>(padded_dim_)),
        state(SoftmaxState::floats(padded_dim_)),
        attention(padded_dim_) {}

  SoftmaxState main_state() { return SoftmaxState::at(state.data()); }
  SoftmaxState segment_state() { return SoftmaxState::at(attention.segment.data()); }

  int padded_dim;
  LazyMemory unpack;  // 16-bit weight panels as float32, int4 panels as int8
  Lines<float> q;     // [kMaxRows][padded_dim]
  std::vector<float> rotated;
  Lines<float> state;
  RowInfo rows[kMaxRows];
  AnchorInfo anchor;
  AttentionScratch attention;
  std::vector<AttentionCounters> counters;  // [heads]
};

}  // namespace bam::cpu
