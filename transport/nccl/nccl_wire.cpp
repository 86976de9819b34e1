// Every boundary has a communicator of two ranks and a stream of its own: a stage that takes nothing holds up neither what
// comes in on the other side nor the stream that computes. Communicators do not block, so that a peer that dies while it is
// awaited, or NCCL's own failure, ends in an Error instead of a hang.
#include "transport/nccl/nccl_wire.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace bam {

namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kPause{50};
constexpr int kSender = 0, kReceiver = 1;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error("CUDA: {}: {}", what, cudaGetErrorString(status));
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess && result != ncclInProgress) throw Error("NCCL: {}: {}", what, ncclGetErrorString(result));
}

// While one lives, the calling thread works on the device.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
    check(cudaSetDevice(device), "the device");
  }
  ~DeviceScope() { static_cast<void>(cudaSetDevice(before_)); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

class NcclWire final : public RowWire {
 public:
  explicit NcclWire(const RowWireOptions& options)
      : device_(options.device), peer_(options.sends ? kReceiver : kSender), timeout_(options.timeout) {
    const DeviceScope scope(device_);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    ncclUniqueId id;
    static_assert(sizeof id.internal == std::tuple_size_v<RowWireId>);
    std::memcpy(id.internal, options.id.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      check(ncclCommInitRankConfig(&comm_, 2, id, options.sends ? kSender : kReceiver, &config), "a communicator");
      std::unique_lock lock(mutex_);
      settle(lock, "a communicator", options.watch);
    } catch (...) {
      end();
      throw;
    }
  }
  ~NcclWire() override { end(); }

  void send(const void* memory, size_t bytes) override {
    transfer("rows to the next stage", [&] { return ncclSend(memory, bytes, ncclUint8, peer_, comm_, stream_); });
  }
  void receive(void* memory, size_t bytes) override {
    transfer("rows of the stage before", [&] { return ncclRecv(memory, bytes, ncclUint8, peer_, comm_, stream_); });
  }

  uint64_t done() override {
    const std::lock_guard lock(mutex_);
    throw_if_ended();
    const DeviceScope scope(device_);
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "the state of a communicator");
    check(state, "rows between stages");
    while (!under_way_.empty()) {
      const cudaError_t status = cudaEventQuery(under_way_.front());
      if (status == cudaErrorNotReady) break;
      check(status, "rows between stages");
      free_.push_back(under_way_.front());
      under_way_.pop_front();
      ++done_;
    }
    return done_;
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) static_cast<void>(ncclCommAbort(comm_));
    comm_ = nullptr;
  }

 private:
  void throw_if_ended() const {
    if (comm_ == nullptr) throw Error("NCCL: the rows between two stages were given up");
  }

  // Until NCCL has done what it was asked for. abort() may come in between.
  void settle(std::unique_lock<std::mutex>& lock, const char* what, const std::function<void()>& watch = {}) {
    const auto end = SteadyClock::now() + timeout_;
    while (true) {
      throw_if_ended();
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), what);
      if (state != ncclInProgress) return check(state, what);
      if (SteadyClock::now() > end) throw Error("NCCL: {}: the other end did not come", what);
      lock.unlock();
      if (watch) watch();
      std::this_thread::sleep_for(kPause);
      lock.lock();
    }
  }

  template <typename F>
  void transfer(const char* what, F issue) {
    std::unique_lock lock(mutex_);
    throw_if_ended();
    const DeviceScope scope(device_);
    check(issue(), what);
    settle(lock, what);
    if (free_.empty()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
      free_.push_back(event);
    }
    check(cudaEventRecord(free_.back(), stream_), what);
    under_way_.push_back(free_.back());
    free_.pop_back();
  }

  void end() noexcept {
    abort();  // first: what follows waits for the stream
    int before = 0;
    static_cast<void>(cudaGetDevice(&before));
    static_cast<void>(cudaSetDevice(device_));
    for (cudaEvent_t event : under_way_) static_cast<void>(cudaEventDestroy(event));
    for (cudaEvent_t event : free_) static_cast<void>(cudaEventDestroy(event));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaSetDevice(before));
  }

  const int device_, peer_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null: ended
  cudaStream_t stream_ = nullptr;
  std::deque<cudaEvent_t> under_way_;  // one per transfer that is not known to be done
  std::vector<cudaEvent_t> free_;
  uint64_t done_ = 0;
};

class NcclWires final : public RowWireMaker {
 public:
  NcclWires() {
    int version = 0;
    check(ncclGetVersion(&version), "its version");
    description_ = fmt::format("nccl {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  }
  std::string description() const override { return description_; }
  RowWireId make_id() const override {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "an id");
    RowWireId bytes;
    std::memcpy(bytes.data(), id.internal, bytes.size());
    return bytes;
  }
  std::unique_ptr<RowWire> make(const RowWireOptions& options) const override {
    return std::make_unique<NcclWire>(options);
  }

 private:
  std::string description_;
};

}  // namespace

std::unique_ptr<RowWireMaker> make_nccl_wires() { return std::make_unique<NcclWires>(); }

}  // namespace bam
