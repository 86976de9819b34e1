#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace bam {

// A fixed team of threads that share loops. The thread that calls parallel_for is worker 0 and works too; idle workers
// spin briefly and then sleep. One loop at a time: parallel_for is neither re-entrant nor callable from two threads.
class ThreadPool {
 public:
  // num_threads counts the caller; 0 takes all cores this process may use.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls fn(item, worker) once for each item in [0, n), in no particular order; worker < num_threads().
  // fn must not throw. Items are handed out one at a time, so uneven ones balance.
  template <typename Fn>
  void parallel_for(int64_t n, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    if (n <= 0) return;
    if (n == 1 || threads_.empty()) {
      for (int64_t i = 0; i < n; ++i) fn(i, 0);
      return;
    }
    run(
        n, [](void* context, int64_t item, int worker) { (*static_cast<Plain*>(context))(item, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Body = void (*)(void* context, int64_t item, int worker);
  void run(int64_t n, Body body, void* context);
  void worker_loop(int worker);
  void take_items(int worker);

  // One word decides who takes part: epoch << 17 | open << 16 | workers joined. A worker joins by a compare-and-swap,
  // so one that wakes up late finds the loop closed and the caller never waits for it.
  static constexpr uint64_t kOpen = uint64_t{1} << 16;
  static constexpr uint64_t kJoinedMask = kOpen - 1;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> left_{0};
  int64_t num_items_ = 0;
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Cores this process may run on (affinity and cgroup quota respected), at least 1.
int available_cores();

}  // namespace bam
