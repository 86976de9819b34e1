// Streams as queues of work that is done when something waits for it, events, and graphs as recorded queues.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace cuda_emu {

enum class WorkKind { kKernel, kCopy, kSet, kHost, kFree, kRecord, kWait, kExchange };

// One point in a stream's time.
struct Mark {
  CUstream_st* stream = nullptr;
  bool done = false;
  std::chrono::steady_clock::time_point time;
};

struct Work {
  WorkKind kind;
  std::function<void()> run;
  std::shared_ptr<Mark> mark;        // kRecord, kWait
  std::function<bool()> ready = {};  // kExchange: whether the other end lets the stream go on
};

// Everything that streams recorded between begin and end of a capture.
struct Capture {
  CUstream_st* origin;
  cudaStreamCaptureMode mode;
  std::vector<Work> nodes;
  std::set<CUstream_st*> unjoined;
  std::set<CUstream_st*> members;
  bool active = true;
};

}  // namespace cuda_emu

struct CUstream_st {
  int device = 0;
  std::deque<cuda_emu::Work> queue;
  bool non_blocking = false;
  std::shared_ptr<cuda_emu::Capture> capture;
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<cuda_emu::Mark> mark;
  // Set while the event was recorded in a capture: where.
  std::shared_ptr<cuda_emu::Capture> capture;
  CUstream_st* captured_in = nullptr;
};

struct CUgraph_st {
  std::vector<cuda_emu::Work> nodes;
};

struct CUgraphExec_st {
  std::vector<cuda_emu::Work> nodes;
};

namespace cuda_emu {

// While one lives, the emulator works on device memory, which may be closed to the host otherwise.
class DeviceSection {
 public:
  DeviceSection();
  ~DeviceSection();
  DeviceSection(const DeviceSection&) = delete;
  DeviceSection& operator=(const DeviceSection&) = delete;
};

// Every call of the API holds it; the queues are shared state.
std::recursive_mutex& api_mutex();

// The stream itself, or the legacy default stream for null; null if there is no such stream.
CUstream_st* resolve(cudaStream_t stream);
CUstream_st* create_stream(bool non_blocking);
void destroy_stream(CUstream_st* stream);
// Captures or queues. In eager and random mode work may be done at once.
void enqueue(CUstream_st* stream, Work work);
void finish(CUstream_st* stream);
void finish_until(Mark& mark);
// One item; false if there is none, or it waits for another device.
bool advance(CUstream_st* stream);
// Streams that synchronise with the legacy default stream, and that one; or all of them.
void finish_blocking_streams();
void finish_all_streams();
void finish_device(int device);  // all of its streams, whatever the caller's device is
// A capture that forbids calls which might synchronise.
bool strict_capture_active();
void begin_capture(CUstream_st* stream, cudaStreamCaptureMode mode);

}  // namespace cuda_emu
