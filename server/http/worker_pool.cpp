#include "server/http/worker_pool.h"

#include "base/describe.h"
#include "base/log.h"

namespace bam {

WorkerPool::WorkerPool() {
  threads_.reserve(queues_.size());
  try {
    for (size_t i = 0; i < queues_.size(); ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

bool WorkerPool::submit(Lane lane, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[static_cast<size_t>(lane)];
    if (stopping_ || queue.size() >= kMaxQueued) return false;
    queue.push_back(std::move(task));
  }
  wake_.notify_all();
  return true;
}

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(size_t thread_index) {
  auto& own = queues_[thread_index];
  auto& small = queues_[static_cast<size_t>(Lane::kSmall)];
  const bool helps_small = thread_index == static_cast<size_t>(Lane::kLarge);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !own.empty() || (helps_small && !small.empty()); });
    if (stopping_) return;
    auto& queue = own.empty() ? small : own;
    std::function<void()> task = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    try {
      task();
    } catch (const std::exception& error) {  // tasks answer for themselves; this one could not even do that
      log::error("a worker's task failed: {}", describe(error));
    }
    task = nullptr;  // what it captured may be the last owner of a request
    lock.lock();
  }
}

}  // namespace bam
