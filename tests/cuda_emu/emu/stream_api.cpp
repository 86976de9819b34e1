// Streams, events, graphs and launches.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "tests/cuda_emu/emu/block.h"
#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/runtime.h"

namespace cuda_emu {

namespace {

constexpr int kDefaultDynamicShared = 48 * 1024;

// Dynamic shared memory that kernels asked for, by device.
std::map<std::pair<const void*, int>, int>& announced_shared() {
  static std::map<std::pair<const void*, int>, int> limits;
  return limits;
}

int shared_limit(const void* kernel) {
  const auto it = announced_shared().find({kernel, current_device()});
  return it == announced_shared().end() ? kDefaultDynamicShared : it->second;
}

void check_shape(const void* kernel, const LaunchShape& shape) {
  const uint64_t threads = uint64_t{shape.block.x} * shape.block.y * shape.block.z;
  if (threads == 0 || threads > 1024 || shape.block.z > 64) {
    throw Fault(fmt::format("a block of {} x {} x {} threads", shape.block.x, shape.block.y, shape.block.z));
  }
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0 || shape.grid.x > 0x7fffffffu ||
      shape.grid.y > 65535 || shape.grid.z > 65535) {
    throw Fault(fmt::format("a grid of {} x {} x {} blocks", shape.grid.x, shape.grid.y, shape.grid.z));
  }
  if (shape.shared_bytes > static_cast<size_t>(shared_limit(kernel))) {
    throw Fault(
        fmt::format("a launch with {} bytes of dynamic shared memory, the kernel may use {}: announce it with "
                    "allow_shared()",
                    shape.shared_bytes, shared_limit(kernel)));
  }
  const size_t shared = shape.shared_bytes + static_shared_bytes(kernel);
  if (shared > config().shared_per_block_optin()) {
    throw Fault(fmt::format("{} bytes of shared memory in a block, the device has {}", shared,
                            config().shared_per_block_optin()));
  }
}

// For calls on a stream handle.
template <typename Body>
cudaError_t stream_call(cudaStream_t handle, Body&& body) {
  return api_call([&] {
    CUstream_st* stream = resolve(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(stream);
  });
}

template <typename Body>
cudaError_t waiting_call(cudaStream_t handle, Body&& body) {
  return stream_call(handle, [&](CUstream_st* stream) {
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    return body(stream);
  });
}

}  // namespace

Executor& executor() {
  static Executor current;
  return current;
}

cudaError_t enqueue_launch(const void* kernel, const LaunchShape& shape, cudaStream_t handle,
                           std::vector<uint8_t> parameters, std::function<void()> body) {
  return stream_call(handle, [&](CUstream_st* stream) {
    if (stream->device != current_device()) return cudaErrorInvalidResourceHandle;
    check_shape(kernel, shape);
    enqueue(stream,
            {WorkKind::kKernel,
             [kernel, shape, parameters = std::move(parameters), body = std::move(body), device = stream->device] {
               if (++statistics().launches == config().break_at_launch) {
                 break_device(device, cudaErrorIllegalAddress);
                 throw DeviceBroken();
               }
               if (executor()) {
                 executor()(kernel_name(kernel), shape, parameters);
               } else {
                 run_grid(shape, body);
               }
             },
             nullptr});
    return cudaSuccess;
  });
}

void check_argument(const void*, int index, const void* pointer) {
  const std::lock_guard lock(api_mutex());
  if (pointer != nullptr && !is_device_reachable(pointer, 0, current_device())) {
    throw Fault(fmt::format("argument {} of a kernel points to memory of the host or of another device", index));
  }
}

}  // namespace cuda_emu

using cuda_emu::api_call;
using cuda_emu::stream_call;
using cuda_emu::waiting_call;
using cuda_emu::Work;
using cuda_emu::WorkKind;

cudaError_t cudaDeviceSynchronize() {
  return api_call([&] {
    if (cuda_emu::strict_capture_active()) return cudaErrorStreamCaptureUnsupported;
    ++cuda_emu::statistics().host_waits;
    cuda_emu::finish_all_streams();
    const cuda_emu::DeviceSection section;
    cuda_emu::device_memory().check();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api_call([&] {
    *stream = cuda_emu::create_stream((flags & cudaStreamNonBlocking) != 0);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return waiting_call(handle, [&](CUstream_st* stream) {
    if (handle == nullptr) return cudaErrorInvalidResourceHandle;
    cuda_emu::destroy_stream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return waiting_call(handle, [&](CUstream_st* stream) {
    ++cuda_emu::statistics().host_waits;
    if (handle == nullptr) {
      cuda_emu::finish_blocking_streams();
    } else {
      cuda_emu::finish(stream);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return waiting_call(handle, [&](CUstream_st* stream) {
    if (stream->queue.empty()) return cudaSuccess;
    cuda_emu::advance(stream);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return stream_call(handle, [&](CUstream_st* stream) {
    cuda_emu::enqueue(stream, {WorkKind::kHost, [=] { function(data); }, nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return api_call([&] {
    *event = new CUevent_st{.device = cuda_emu::current_device()};
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api_call([&] {
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return stream_call(handle, [&](CUstream_st* stream) {
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    event->capture = stream->capture;
    event->captured_in = stream->capture ? stream : nullptr;
    event->mark = nullptr;
    if (!stream->capture) {
      event->mark = std::make_shared<cuda_emu::Mark>();
      event->mark->stream = stream;
      cuda_emu::enqueue(stream, {WorkKind::kRecord, nullptr, event->mark});
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return stream_call(handle, [&](CUstream_st* stream) {
    if (event->capture && event->capture->active) {
      if (stream->capture && stream->capture != event->capture) return cudaErrorStreamCaptureUnsupported;
      stream->capture = event->capture;
      stream->capture->members.insert(stream);
      stream->capture->unjoined.erase(event->captured_in);
      return cudaSuccess;
    }
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    if (event->mark) cuda_emu::enqueue(stream, {WorkKind::kWait, nullptr, event->mark});
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api_call([&] {
    if (event->capture && event->capture->active) return cudaErrorStreamCaptureUnsupported;
    ++cuda_emu::statistics().host_waits;
    if (event->mark && !event->mark->done) cuda_emu::finish_until(*event->mark);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api_call([&] {
    if (!event->mark || event->mark->done) return cudaSuccess;
    cuda_emu::advance(event->mark->stream);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api_call([&] {
    if (!start->mark || !end->mark) return cudaErrorInvalidResourceHandle;
    if (!start->mark->done || !end->mark->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->mark->time - start->mark->time).count();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return stream_call(handle, [&](CUstream_st* stream) {
    if (handle == nullptr || stream->capture) return cudaErrorStreamCaptureUnsupported;
    ++cuda_emu::statistics().captures;
    cuda_emu::begin_capture(stream, mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return stream_call(handle, [&](CUstream_st* stream) {
    *graph = nullptr;
    const auto capture = stream->capture;
    if (!capture || capture->origin != stream) return cudaErrorStreamCaptureUnsupported;
    capture->active = false;
    for (CUstream_st* member : capture->members) member->capture = nullptr;
    if (!capture->unjoined.empty()) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::move(capture->nodes)};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return stream_call(handle, [&](CUstream_st* stream) {
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  return api_call([&] {
    std::swap(current, *mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return api_call([&] {
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return api_call([&] {
    if (nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return api_call([&] {
    ++cuda_emu::statistics().graph_instantiations;
    *exec = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  return api_call([&] {
    *info = {cudaGraphExecUpdateSuccess, nullptr, nullptr};
    if (exec->nodes.size() != graph->nodes.size()) {
      info->result = cudaGraphExecUpdateErrorTopologyChanged;
      return cudaErrorGraphExecUpdateFailure;
    }
    for (size_t i = 0; i < exec->nodes.size(); ++i) {
      if (exec->nodes[i].kind != graph->nodes[i].kind) {
        info->result = cudaGraphExecUpdateErrorNodeTypeChanged;
        return cudaErrorGraphExecUpdateFailure;
      }
    }
    ++cuda_emu::statistics().graph_updates;
    exec->nodes = graph->nodes;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return stream_call(handle, [&](CUstream_st* stream) {
    ++cuda_emu::statistics().graph_launches;
    for (const Work& node : exec->nodes) cuda_emu::enqueue(stream, node);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return api_call([&] {
    delete exec;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return api_call([&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value + cuda_emu::static_shared_bytes(kernel) > cuda_emu::config().shared_per_block_optin()) {
      return cudaErrorInvalidValue;
    }
    cuda_emu::announced_shared()[{kernel, cuda_emu::current_device()}] =
        std::max(value, cuda_emu::kDefaultDynamicShared);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return api_call([&] {
    const int architecture = cuda_emu::config().compute_capability;
    *attributes = {.sharedSizeBytes = cuda_emu::static_shared_bytes(kernel),
                   .maxThreadsPerBlock = 1024,
                   .numRegs = 64,
                   .ptxVersion = architecture,
                   .binaryVersion = architecture,
                   .maxDynamicSharedSizeBytes = cuda_emu::shared_limit(kernel)};
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          size_t shared_bytes) {
  cudaDeviceProp p{};
  if (const cudaError_t error = cudaGetDeviceProperties(&p, 0); error != cudaSuccess) return error;
  if (block_size <= 0 || block_size > 1024) return cuda_emu::result(cudaErrorInvalidValue);
  const size_t per_block = shared_bytes + p.reservedSharedMemPerBlock;
  *blocks = std::min({p.maxBlocksPerMultiProcessor, p.maxThreadsPerMultiProcessor / block_size,
                      static_cast<int>(p.sharedMemPerMultiprocessor / per_block)});
  return cudaSuccess;
}
