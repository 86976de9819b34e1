#include "bench/support/machine.h"

#include <algorithm>
#include <chrono>
#include <fstream>

namespace bam::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Four times any cache we are likely to meet.
constexpr size_t kReadBytes = size_t{512} << 20;

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
__attribute__((target("avx512f"))) void dot_bf16() {
  typedef float Vec __attribute__((vector_size(64)));
  Vec acc[kChains] = {};
  Vec a = Vec{} + 1.0f, b = Vec{} + 1.0f;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) asm volatile("vdpbf16ps %2, %1, %0" : "+v"(acc[c]) : "v"(a), "v"(b));
  }
}
#endif

}  // namespace

MachineProbe::MachineProbe(int threads) : pool_(threads), sums_(static_cast<size_t>(threads) * 8) {}

double MachineProbe::seconds(void (*body)()) {
  const auto start = Clock::now();
  pool_.parallel_for(pool_.num_threads(), [&](int64_t, int) { body(); });
  return seconds_since(start);
}

double MachineProbe::fma_gflops() {
#if defined(__x86_64__)
  const double rounds = 1e-9 * pool_.num_threads() * kRounds;
  if (__builtin_cpu_supports("avx512f")) return rounds * kChains * 32 / seconds(fma_avx512);
  if (__builtin_cpu_supports("avx2")) return rounds * 12 * 16 / seconds(fma_avx2);
#endif
  return 0;
}

double MachineProbe::int8_gops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) {
    return 1e-9 * pool_.num_threads() * kRounds * kChains * 128 / seconds(dot_vnni);
  }
#endif
  return 0;
}

double MachineProbe::bf16_gflops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    return 1e-9 * pool_.num_threads() * kRounds * kChains * 64 / seconds(dot_bf16);
  }
#endif
  return 0;
}

double MachineProbe::read_gbs() {
  if (memory_.size() == 0) {
    memory_ = LazyMemory(kReadBytes);
    std::fill_n(memory_.as<uint64_t>(), kReadBytes / 8, uint64_t{1});
  }
  const size_t slice = kReadBytes / 8 / static_cast<size_t>(pool_.num_threads());
  const auto start = Clock::now();
  pool_.parallel_for(pool_.num_threads(), [&](int64_t t, int) {
    const uint64_t* at = memory_.as<uint64_t>() + static_cast<size_t>(t) * slice;
    uint64_t lanes[32] = {};
    for (size_t i = 0; i + 32 <= slice; i += 32) {
      for (size_t l = 0; l < 32; ++l) lanes[l] += at[i + l];
    }
    uint64_t sum = 0;
    for (uint64_t lane : lanes) sum += lane;
    sums_[static_cast<size_t>(t) * 8] = sum;
  });
  const double taken = seconds_since(start);
  volatile uint64_t keep = sums_[0];
  (void)keep;
  return 1e-9 * static_cast<double>(kReadBytes) / taken;
}

MachinePeak measure_peak(int threads) {
  MachineProbe probe(threads);
  MachinePeak peak;
  peak.threads = threads;
  for (int i = 0; i < 5; ++i) {
    peak.fma_gflops = std::max(peak.fma_gflops, probe.fma_gflops());
    peak.int8_gops = std::max(peak.int8_gops, probe.int8_gops());
    peak.bf16_gflops = std::max(peak.bf16_gflops, probe.bf16_gflops());
    peak.read_gbs = std::max(peak.read_gbs, probe.read_gbs());
  }
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
