#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace bam {
namespace {

// About 100 microseconds: longer than the serial gaps inside a step, short enough not to burn an idle core.
constexpr int kSpinRounds = 2000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// A change of `state` that opens no loop wakes those who sleep.
void end_threads(std::vector<std::thread>& threads, std::atomic<bool>& stop, std::atomic<uint64_t>& state) {
  stop.store(true, std::memory_order_relaxed);
  state.fetch_add(uint64_t{1} << 17, std::memory_order_release);
  state.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int available_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    try {
      cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(std::stod(quota) / period))));
    } catch (const std::exception&) {
      // An unreadable quota is no quota.
    }
  }
  return std::max(cores, 1);
}

ThreadPool::ThreadPool(int num_threads) {
  const int total = num_threads > 0 ? num_threads : available_cores();
  threads_.reserve(static_cast<size_t>(total - 1));
  try {
    for (int worker = 1; worker < total; ++worker) {
      threads_.emplace_back([this, worker] { worker_loop(worker); });
    }
  } catch (...) {
    end_threads(threads_, stop_, state_);
    throw;
  }
}

ThreadPool::~ThreadPool() { end_threads(threads_, stop_, state_); }

void ThreadPool::take_items(int worker) {
  const auto claim = [this] {
    const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    return item < num_items_ ? item : -1;
  };
  const int64_t team = num_threads();
  for (int64_t item = claim(); item >= 0;) {
    int64_t next = -1, likely = -1;
    if (ahead_ && item + 2 * team < num_items_) {
      likely = next = claim();
    } else if (ahead_ && item + team < num_items_) {  // near the end everyone takes what is left
      likely = item + team;
    }
    body_(context_, item, likely, worker);
    item = next >= 0 ? next : claim();
  }
}

void ThreadPool::run(int64_t n, bool ahead, Body body, const void* context) {
  num_items_ = n;
  ahead_ = ahead;
  body_ = body;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  left_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (state_.load(std::memory_order_relaxed) >> 17) + 1;
  state_.store(epoch << 17 | kOpen, std::memory_order_release);
  state_.notify_all();
  take_items(0);
  const uint64_t joined = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & kJoinedMask;
  for (int round = 0; left_.load(std::memory_order_acquire) != joined; ++round) {
    if (round < kSpinRounds * 16) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen_epoch = 0;
  int idle_rounds = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    uint64_t state = state_.load(std::memory_order_acquire);
    if ((state & kOpen) != 0 && state >> 17 != seen_epoch) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      seen_epoch = state >> 17;
      take_items(worker);
      left_.fetch_add(1, std::memory_order_release);
      idle_rounds = 0;
    } else if (++idle_rounds < kSpinRounds) {
      relax();
    } else {
      state_.wait(state, std::memory_order_acquire);
      idle_rounds = 0;
    }
  }
}

}  // namespace bam
