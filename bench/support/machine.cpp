#include "bench/support/machine.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"

namespace bam::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Best of five: a peak is what the machine can do, not what it did while somebody else was running.
double best_rate(double work, const std::function<void()>& run) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    run();
    best = std::max(best, work / seconds_since(start));
  }
  return best;
}

#if defined(__x86_64__)
constexpr int kChains = 24;
constexpr int64_t kRounds = 1'000'000;

__attribute__((target("avx512f"))) void fma_avx512() {
  typedef float Vec __attribute__((vector_size(64)));
  Vec acc[kChains] = {};
  Vec a = Vec{} + 1.0001f, b = Vec{} + 0.9999f;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(acc[c]) : "v"(a), "v"(b));
  }
}
__attribute__((target("avx2,fma"))) void fma_avx2() {
  typedef float Vec __attribute__((vector_size(32)));
  constexpr int kFew = 12;
  Vec acc[kFew] = {};
  Vec a = Vec{} + 1.0001f, b = Vec{} + 0.9999f;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kFew; ++c) asm volatile("vfmadd231ps %2, %1, %0" : "+x"(acc[c]) : "x"(a), "x"(b));
  }
}
__attribute__((target("avx512f"))) void dot_vnni() {
  typedef int Vec __attribute__((vector_size(64)));
  Vec acc[kChains] = {};
  Vec a = Vec{} + 1, b = Vec{} + 1;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) asm volatile("vpdpbusd %2, %1, %0" : "+v"(acc[c]) : "v"(a), "v"(b));
  }
}
#endif

}  // namespace

MachinePeak measure_peak(int threads) {
  MachinePeak peak;
  peak.threads = threads;
  ThreadPool pool(threads);
  const auto all = [&](auto&& body) {
    return [&pool, body] { pool.parallel_for(pool.num_threads(), [&](int64_t, int) { body(); }); };
  };
#if defined(__x86_64__)
  const double n = threads;
  if (__builtin_cpu_supports("avx512f")) {
    peak.fma_gflops = best_rate(n * kRounds * kChains * 32, all(fma_avx512)) / 1e9;
  } else if (__builtin_cpu_supports("avx2")) {
    peak.fma_gflops = best_rate(n * kRounds * 12 * 16, all(fma_avx2)) / 1e9;
  }
  if (__builtin_cpu_supports("avx512vnni")) {
    peak.int8_gops = best_rate(n * kRounds * kChains * 128, all(dot_vnni)) / 1e9;
  }
#endif
  // Four times any cache we are likely to meet.
  const size_t bytes = size_t{512} << 20;
  const LazyMemory memory(bytes);
  std::fill_n(memory.as<uint64_t>(), bytes / 8, uint64_t{1});
  const size_t slice = bytes / 8 / static_cast<size_t>(threads);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  peak.read_gbs = best_rate(static_cast<double>(bytes),
                            [&] {
                              pool.parallel_for(threads, [&](int64_t t, int) {
                                const uint64_t* at = memory.as<uint64_t>() + static_cast<size_t>(t) * slice;
                                uint64_t lanes[32] = {};
                                for (size_t i = 0; i + 32 <= slice; i += 32) {
                                  for (size_t l = 0; l < 32; ++l) lanes[l] += at[i + l];
                                }
                                uint64_t sum = 0;
                                for (uint64_t lane : lanes) sum += lane;
                                sums[static_cast<size_t>(t) * 8] = sum;
                              });
                            }) /
                  1e9;
  volatile uint64_t keep = sums[0];
  (void)keep;
  return peak;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

}  // namespace bam::bench
