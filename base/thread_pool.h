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
    const auto body = [&fn](int64_t item, int64_t, int worker) { fn(item, worker); };
    loop(n, false, body);
  }

  // The same with fn(item, next, worker): `next` is what this worker will be given afterwards (near the end: probably),
  // -1 if nothing, so that its data can be fetched meanwhile.
  template <typename Fn>
  void parallel_for_ahead(int64_t n, Fn&& fn) {
    loop(n, true, fn);
  }

 private:
  template <typename Fn>
  void loop(int64_t n, bool ahead, const Fn& fn) {
    if (n <= 0) return;
    if (n == 1 || threads_.empty()) {
      for (int64_t i = 0; i < n; ++i) fn(i, i + 1 < n ? i + 1 : -1, 0);
      return;
    }
    run(
        n, ahead,
        [](const void* context, int64_t item, int64_t next, int worker) {
          (*static_cast<const Fn*>(context))(item, next, worker);
        },
        &fn);
  }

  using Body = void (*)(const void* context, int64_t item, int64_t next, int worker);
  void run(int64_t n, bool ahead, Body body, const void* context);
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
  bool ahead_ = false;
  Body body_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Cores this process may run on (affinity and cgroup quota respected), at least 1.
int available_cores();

}  // namespace bam
