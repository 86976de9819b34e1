// Bytes between the ranks of an MPI job (mpirun, Slurm). MPI itself neither tells of a stopped rank nor lets a job go on
// without one: silence is noticed here, and the job's launcher starts it again.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "base/error.h"
#include "transport/wire_plugin.h"

namespace bam {

namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

void check(int code) {
  if (code != MPI_SUCCESS) throw Error("MPI: {}", text_of(code));
}

// Polling that is quick after a message and costs little in silence.
class Patience {
 public:
  void pause() {
    if (++turns_ < 200) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(turns_ < 2000 ? 20 : 200));
  }

 private:
  int turns_ = 0;
};

class MpiWire : public Wire {
 public:
  explicit MpiWire(const WireOptions& options) : patience_(options.patience) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    // A world that lost a rank cannot be made again.
    if (initialized) throw Error("an MPI job cannot be put together again: its launcher must restart it");
    // Open MPI's own plugins look for its symbols where everybody can see them; we were loaded out of sight.
    dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    if (provided < MPI_THREAD_MULTIPLE) throw Error("this MPI does not support MPI_THREAD_MULTIPLE");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
    check(MPI_Comm_size(MPI_COMM_WORLD, &size_));
    if (options.size > 1 && options.size != size_) {
      throw Error("the MPI job has {} ranks, but {} stages were asked for", size_, options.size);
    }
    check(MPI_Barrier(MPI_COMM_WORLD));
  }

  // The job ends in order if everybody leaves it in time.
  ~MpiWire() override {
    MPI_Request request;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return;
    const auto end = SteadyClock::now() + patience_;
    Patience patience;
    for (int done = 0; !done; patience.pause()) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || SteadyClock::now() > end) return;
    }
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string description() const override { return "mpi"; }

  void send(int to, std::span<const std::byte> data) override {
    MPI_Request request;
    check(MPI_Isend(data.data(), count_of(data.size()), MPI_BYTE, to, 0, MPI_COMM_WORLD, &request));
    wait(request, "take");
  }

  void receive(int from, std::span<std::byte> data) override {
    MPI_Request request;
    check(MPI_Irecv(data.data(), count_of(data.size()), MPI_BYTE, from, 0, MPI_COMM_WORLD, &request));
    wait(request, "say");
  }

  void close() noexcept override { closed_ = true; }

 private:
  static int count_of(size_t bytes) {
    if (bytes > static_cast<size_t>(std::numeric_limits<int>::max())) throw Error("{} bytes at once", bytes);
    return static_cast<int>(bytes);
  }

  void wait(MPI_Request& request, const char* verb) {
    const auto end = SteadyClock::now() + patience_;
    Patience patience;
    while (true) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done) return;
      const bool late = SteadyClock::now() > end;
      if (late || closed_) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
        if (closed_) throw Error("the connection was closed");
        throw Error("it did not {} anything for {} ms", verb, patience_.count());
      }
      patience.pause();
    }
  }

  milliseconds patience_;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> closed_{false};
};

}  // namespace
}  // namespace bam

BAM_WIRE_PLUGIN(bam::MpiWire)
