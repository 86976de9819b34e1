#include "app/stage_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "engine/clock.h"

namespace bam {

namespace {

constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::seconds kQuickDeath{5};  // who lives shorter waits before the next start
constexpr std::chrono::seconds kRestartDelay{1};
constexpr int kMaxQuickDeaths = 5;
constexpr std::chrono::seconds kPatience{5};

}  // namespace

struct StageProcesses::Process {
  int rank = 0;
  pid_t pid = 0;
  Clock::time_point started_at{}, start_at{};  // start_at: when to start it again
  int quick_deaths = 0;

  bool given_up() const { return quick_deaths >= kMaxQuickDeaths; }
};

StageProcesses::StageProcesses(std::vector<std::vector<std::string>> arguments)
    : arguments_(std::move(arguments)), watcher_([this](const std::stop_token& stop) { watch(stop); }) {}

StageProcesses::~StageProcesses() = default;

void StageProcesses::start(Process& process) {
  std::vector<std::string> words{"bam", "worker"};
  const auto& own = arguments_[static_cast<size_t>(process.rank - 1)];
  words.insert(words.end(), own.begin(), own.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {   // only calls that are allowed after fork() in a process with threads
    setpgid(0, 0);  // Ctrl-C is for rank 0, which drains
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close_range(STDERR_FILENO + 1, ~0U, 0);  // the port is rank 0's
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  if (pid < 0) {
    log::error("stage {} cannot be started: {}", process.rank, std::strerror(errno));
    process.start_at = Clock::now() + kRestartDelay;
    return;
  }
  process.pid = pid;
  process.started_at = Clock::now();
}

void StageProcesses::watch(const std::stop_token& stop) {
  std::vector<Process> processes(arguments_.size());
  for (size_t i = 0; i < processes.size(); ++i) processes[i].rank = static_cast<int>(i) + 1;
  while (!stop.stop_requested()) {
    for (Process& p : processes) {
      int status = 0;
      if (p.pid != 0 && waitpid(p.pid, &status, WNOHANG) == p.pid) {
        const std::string how = WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                                    : fmt::format("ended with exit code {}", WEXITSTATUS(status));
        p.pid = 0;
        const bool quick = Clock::now() - p.started_at < kQuickDeath;
        p.quick_deaths = quick ? p.quick_deaths + 1 : 0;
        p.start_at = Clock::now() + (quick ? kRestartDelay : std::chrono::seconds(0));
        if (p.given_up()) {
          log::error("stage {} {}; it is not started again after {} short lives", p.rank, how, p.quick_deaths);
        } else {
          log::warn("stage {} {}: starting it again", p.rank, how);
        }
      }
      if (p.pid == 0 && !p.given_up() && Clock::now() >= p.start_at) start(p);
    }
    std::this_thread::sleep_for(kPoll);
  }
  for (const Process& p : processes) {
    if (p.pid != 0) kill(p.pid, SIGTERM);
  }
  const auto deadline = Clock::now() + kPatience;
  for (const Process& p : processes) {
    while (p.pid != 0 && waitpid(p.pid, nullptr, WNOHANG) == 0) {
      if (Clock::now() > deadline) kill(p.pid, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

}  // namespace bam
