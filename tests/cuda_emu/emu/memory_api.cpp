// Allocation and copies.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "tests/cuda_emu/emu/config.h"
#include "tests/cuda_emu/emu/device_memory.h"
#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/runtime.h"
#include "tests/cuda_emu/emu/shared_memory.h"

namespace cuda_emu {

namespace {

struct Pinned {
  size_t bytes;
  bool owned;
};

// By first byte.
std::map<uintptr_t, Pinned>& pinned() {
  static std::map<uintptr_t, Pinned> ranges;
  return ranges;
}

// The part of a copy's direction that addresses tell; faults where they contradict the caller.
struct Direction {
  bool from_device;
  bool to_device;
};

Direction direction_of(const void* to, size_t to_bytes, const void* from, size_t from_bytes, cudaMemcpyKind kind) {
  const DeviceMemory& memory = device_memory();
  const Direction found{memory.contains(from, 0), memory.contains(to, 0)};
  if (kind != cudaMemcpyDefault) {
    const bool says_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool says_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (says_from != found.from_device || says_to != found.to_device) {
      throw Fault(fmt::format("a copy of kind {} whose addresses say otherwise", static_cast<int>(kind)));
    }
  }
  if (found.from_device && !memory.contains(from, from_bytes)) {
    throw Fault(fmt::format("a copy reads {} bytes beyond an allocation", from_bytes));
  }
  if (found.to_device && !memory.contains(to, to_bytes)) {
    throw Fault(fmt::format("a copy writes {} bytes beyond an allocation", to_bytes));
  }
  return found;
}

void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                 width);
  }
}

cudaError_t copy_async(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                       cudaMemcpyKind kind, cudaStream_t handle) {
  CUstream_st* stream = resolve(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (width == 0 || height == 0) return cudaSuccess;
  const size_t to_bytes = (height - 1) * to_pitch + width, from_bytes = (height - 1) * from_pitch + width;
  const Direction direction = direction_of(to, to_bytes, from, from_bytes, kind);
  const auto on_stream_device = [&](const void* address) {
    const int device = device_memory().device_of(address);
    return device < 0 || device == stream->device;
  };
  if (!on_stream_device(to) || !on_stream_device(from))
    throw Fault("a copy of memory of another device than its stream");
  ++statistics().copies;
  statistics().copied_bytes += width * height;
  // A pageable source may be read at once or when the stream gets there (the driver may stage it or not): late is what
  // finds a source that was freed too early. Pageable destinations are complete when the call returns.
  enqueue(stream, {WorkKind::kCopy, [=] { copy_rows(to, to_pitch, from, from_pitch, width, height); }, nullptr});
  if (!stream->capture && !direction.to_device && !is_pinned(to, to_bytes)) {
    ++statistics().host_waits;
    finish(stream);
  }
  return cudaSuccess;
}

cudaError_t allocate(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (++statistics().allocations == config().fail_allocation) return cudaErrorMemoryAllocation;
  *pointer = device_memory().allocate(bytes, config().memory_bytes, current_device());
  return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

}  // namespace

bool is_pinned(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  auto it = pinned().upper_bound(begin);
  if (it == pinned().begin()) return false;
  --it;
  return begin + bytes <= it->first + it->second.bytes;
}

bool is_device_reachable(const void* address, size_t bytes, int device) {
  return (device_memory().contains(address, bytes) && device_memory().device_of(address) == device) ||
         is_pinned(address, bytes);
}

}  // namespace cuda_emu

using cuda_emu::api_call;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return api_call([&] {
    if (cuda_emu::strict_capture_active()) return cudaErrorStreamCaptureUnsupported;
    return cuda_emu::allocate(pointer, bytes);
  });
}

cudaError_t cudaFree(void* pointer) {
  return api_call([&] {
    if (pointer == nullptr) return cudaSuccess;
    if (cuda_emu::strict_capture_active()) return cudaErrorStreamCaptureUnsupported;
    cuda_emu::finish_device(cuda_emu::device_memory().device_of(pointer));
    return cuda_emu::device_memory().release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return api_call([&] {
    CUstream_st* queue = cuda_emu::resolve(stream);
    if (queue == nullptr) return cudaErrorInvalidResourceHandle;
    if (queue->capture) throw cuda_emu::Fault("memory nodes of graphs are not emulated");
    return cuda_emu::allocate(pointer, bytes);
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return api_call([&] {
    CUstream_st* queue = cuda_emu::resolve(stream);
    if (queue == nullptr) return cudaErrorInvalidResourceHandle;
    if (queue->capture) throw cuda_emu::Fault("memory nodes of graphs are not emulated");
    if (pointer == nullptr) return cudaSuccess;
    cuda_emu::enqueue(queue, {cuda_emu::WorkKind::kFree,
                              [pointer] {
                                if (!cuda_emu::device_memory().release(pointer)) {
                                  throw cuda_emu::Fault("cudaFreeAsync of what was not allocated");
                                }
                              },
                              nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return api_call([&] {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (cuda_emu::strict_capture_active()) return cudaErrorStreamCaptureUnsupported;
    if (++cuda_emu::statistics().allocations == cuda_emu::config().fail_allocation ||
        posix_memalign(pointer, 4096, bytes) != 0) {
      *pointer = nullptr;
      return cudaErrorMemoryAllocation;
    }
    std::memset(*pointer, cuda_emu::kPoison, bytes);
    cuda_emu::pinned()[reinterpret_cast<uintptr_t>(*pointer)] = {bytes, true};
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(pointer, bytes, flags);
}

cudaError_t cudaFreeHost(void* pointer) {
  return api_call([&] {
    if (pointer == nullptr) return cudaSuccess;
    const auto it = cuda_emu::pinned().find(reinterpret_cast<uintptr_t>(pointer));
    if (it == cuda_emu::pinned().end() || !it->second.owned) return cudaErrorInvalidValue;
    for (int device = 0; device < cuda_emu::config().device_count; ++device) cuda_emu::finish_device(device);
    cuda_emu::pinned().erase(it);
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return api_call([&] {
    if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
    cuda_emu::pinned()[reinterpret_cast<uintptr_t>(pointer)] = {bytes, false};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return api_call([&] {
    const auto it = cuda_emu::pinned().find(reinterpret_cast<uintptr_t>(pointer));
    if (it == cuda_emu::pinned().end() || it->second.owned) return cudaErrorInvalidValue;
    for (int device = 0; device < cuda_emu::config().device_count; ++device) cuda_emu::finish_device(device);
    cuda_emu::pinned().erase(it);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return api_call([&] {
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, const_cast<void*>(pointer)};
    if (cuda_emu::device_memory().contains(pointer, 1)) {
      *attributes = {cudaMemoryTypeDevice, cuda_emu::device_memory().device_of(pointer), const_cast<void*>(pointer),
                     nullptr};
    } else if (cuda_emu::is_pinned(pointer, 1)) {
      *attributes = {cudaMemoryTypeHost, 0, const_cast<void*>(pointer), const_cast<void*>(pointer)};
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return api_call([&] { return cuda_emu::copy_async(to, bytes, from, bytes, bytes, 1, kind, stream); });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return api_call([&] {
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    return cuda_emu::copy_async(to, to_pitch, from, from_pitch, width, height, kind, stream);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return api_call([&] {
    if (cuda_emu::strict_capture_active()) return cudaErrorStreamCaptureUnsupported;
    if (bytes == 0) return cudaSuccess;
    ++cuda_emu::statistics().host_waits;
    ++cuda_emu::statistics().copies;
    cuda_emu::statistics().copied_bytes += bytes;
    cuda_emu::finish_blocking_streams();
    const auto direction = cuda_emu::direction_of(to, bytes, from, bytes, kind);
    if (direction.to_device && !direction.from_device && !cuda_emu::is_pinned(from, bytes)) {
      // Staged: the source may go, but the data are on their way behind the legacy stream, which a non-blocking stream
      // does not wait for.
      const auto* begin = static_cast<const std::byte*>(from);
      std::vector<std::byte> staged(begin, begin + bytes);
      cuda_emu::enqueue(cuda_emu::resolve(nullptr),
                        {cuda_emu::WorkKind::kCopy,
                         [=, staged = std::move(staged)] { std::memcpy(to, staged.data(), bytes); }, nullptr});
      return cudaSuccess;
    }
    const cuda_emu::DeviceSection section;
    std::memmove(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return api_call([&] {
    CUstream_st* queue = cuda_emu::resolve(stream);
    if (queue == nullptr) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (!cuda_emu::is_device_reachable(to, bytes, queue->device))
      throw cuda_emu::Fault("a memset out of device memory");
    cuda_emu::enqueue(queue, {cuda_emu::WorkKind::kSet, [=] { std::memset(to, value, bytes); }, nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
