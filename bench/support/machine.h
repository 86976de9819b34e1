// What this machine can do at most, measured now, so that every figure can stand beside it.
#pragma once

#include <string>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"

namespace bam::bench {

struct MachinePeak {
  int threads = 1;
  double fma_gflops = 0;   // float32 fused multiply-adds, 2 FLOP each
  double int8_gops = 0;    // u8 x s8 dot products; 0: no VNNI
  double bf16_gflops = 0;  // pairs of bfloat16; 0: no AVX512-BF16
  double read_gbs = 0;     // DRAM read
};

// Single short runs (5 to 30 ms) on `threads` threads: a shared machine changes from moment to moment, so a benchmark
// asks before and after each of its samples.
class MachineProbe {
 public:
  explicit MachineProbe(int threads);
  double fma_gflops();
  double int8_gops();
  double bf16_gflops();
  double read_gbs();

 private:
  double seconds(void (*body)());  // all threads

  ThreadPool pool_;
  LazyMemory memory_;
  std::vector<uint64_t> sums_;
};

// Best of five: a peak is what the machine can do, not what it did while somebody else was running.
MachinePeak measure_peak(int threads);
std::string cpu_name();

}  // namespace bam::bench
