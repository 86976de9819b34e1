#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/api/call.h"

namespace bam {

// Parsing and tokenising away from the event loops. Three lanes with a thread each: large bodies never delay small ones
// (the large lane's thread helps with small tasks, not the other way round), and calls that wait for the engine delay
// neither.
class WorkerPool : public Workers {
 public:
  static constexpr size_t kMaxQueued = 8192;  // per lane

  WorkerPool();
  ~WorkerPool() override;  // runs nothing more; tasks still queued are dropped
  WorkerPool(const WorkerPool&) = delete;

  bool submit(Lane lane, std::function<void()> task) override;
  void stop();

 private:
  void run(size_t thread_index);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::array<std::deque<std::function<void()>>, 3> queues_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace bam
