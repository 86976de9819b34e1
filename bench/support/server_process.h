#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace bam::bench {

// A `bam serve` child on a free port, ended with the object.
class ServerProcess {
 public:
  // Returns when the server says that it is ready; throws Error with its last lines if it ends before.
  ServerProcess(const std::string& program, const std::vector<std::string>& arguments);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  int port() const { return port_; }
  double cpu_seconds() const;  // user and system time so far
  uint64_t resident_bytes() const;

 private:
  void wait_ready();

  pid_t pid_ = -1;
  int log_fd_ = -1;
  int port_ = 0;
  std::thread drain_;  // keeps the pipe of the log empty
};

}  // namespace bam::bench
