#pragma once

#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace bam {

// The workers that `bam serve --stages N` starts itself, on this machine: one process per rank > 0. One that ends is
// started again, so that the group can form again. They end with this object, and with this process however it ends.
class StageProcesses {
 public:
  // arguments[r - 1]: of `bam worker` for rank r.
  explicit StageProcesses(std::vector<std::vector<std::string>> arguments);
  ~StageProcesses();
  StageProcesses(const StageProcesses&) = delete;
  StageProcesses& operator=(const StageProcesses&) = delete;

 private:
  struct Process;
  void watch(const std::stop_token& stop);
  void start(Process& process);

  std::vector<std::vector<std::string>> arguments_;
  std::jthread watcher_;  // starts and reaps them: they are told when the thread that started them is gone
};

}  // namespace bam
