// What this machine can do at most, measured now, so that every figure can stand beside it.
#pragma once

#include <string>

namespace bam::bench {

struct MachinePeak {
  int threads = 1;
  double fma_gflops = 0;  // float32 fused multiply-adds, 2 FLOP each
  double int8_gops = 0;   // u8 x s8 dot products; 0: no VNNI
  double read_gbs = 0;    // DRAM read
};

// Median of several short runs on `threads` threads.
MachinePeak measure_peak(int threads);
std::string cpu_name();

}  // namespace bam::bench
