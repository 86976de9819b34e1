#include "bench/support/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace bam::bench {

namespace {

// The port of "ready after 0.1 s on http://127.0.0.1:PORT", 0 if the log does not say so yet.
int ready_port(const std::string& log) {
  const size_t ready = log.find("ready after");
  const size_t scheme = ready == std::string::npos ? ready : log.find("://", ready);
  const size_t line_end = ready == std::string::npos ? ready : log.find('\n', ready);
  if (scheme == std::string::npos || line_end == std::string::npos || scheme > line_end) return 0;
  return std::atoi(log.c_str() + log.find(':', scheme + 3) + 1);
}

}  // namespace

ServerProcess::ServerProcess(const std::string& program, const std::vector<std::string>& arguments) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw Error("pipe: {}", std::strerror(errno));
  std::vector<const char*> words{program.c_str()};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  words.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(fds[1], STDERR_FILENO);
    execv(program.c_str(), const_cast<char* const*>(words.data()));
    _exit(127);
  }
  close(fds[1]);
  log_fd_ = fds[0];
  if (pid_ < 0) {
    close(log_fd_);
    throw Error("fork: {}", std::strerror(errno));
  }
  wait_ready();
  drain_ = std::thread([fd = log_fd_] {
    char block[4096];
    while (read(fd, block, sizeof(block)) > 0) {
    }
  });
}

void ServerProcess::wait_ready() {
  std::string log;
  char block[4096];
  while ((port_ = ready_port(log)) == 0) {
    const ssize_t size = read(log_fd_, block, sizeof(block));
    if (size <= 0) {
      waitpid(pid_, nullptr, 0);
      close(log_fd_);
      throw Error("the server did not start:\n{}", log);
    }
    log.append(block, static_cast<size_t>(size));
  }
}

ServerProcess::~ServerProcess() {
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
  drain_.join();
  close(log_fd_);
}

double ServerProcess::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text;
  std::getline(file, text);
  // After the name in parentheses: field 3 is the state, 14 and 15 are user and system time in ticks.
  const char* p = std::strrchr(text.c_str(), ')');
  long user = 0, system = 0;
  if (!p || std::sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system) != 2) return 0;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint64_t ServerProcess::resident_bytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace bam::bench
