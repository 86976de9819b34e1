// Owners of what the CUDA runtime hands out. Every failed call becomes a bam::Error that names the call.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace bam::cuda {

// Errors after which nothing works any more on the device for this process.
bool is_sticky(cudaError_t status);
// Throws unless `status` is success: DeviceLost (kernels/backend.h) if it is sticky, else bam::Error. `call` names what
// was tried.
void check(cudaError_t status, const char* call);

#define BAM_CUDA(call) ::bam::cuda::check((call), #call)

class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Page-locked host memory: copies to and from it run beside the host.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void swap(PinnedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void* data_ = nullptr;
  size_t size_ = 0;
};

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Orders streams among each other; measures nothing.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Ordinary host memory to the device in stream order, through two halves of pinned memory: the source may go when
// copy() returns. A pageable copy would be read at a time of the driver's choice. Small copies share a half; the host waits
// when it comes back to one whose copies still run.
class Uploads {
 public:
  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream);
  // The stream has been waited for.
  void reset() { halves_[0].used = halves_[1].used = 0; }

 private:
  static constexpr size_t kHalfBytes = size_t{4} << 20, kLeastBytes = size_t{64} << 10;
  struct Half {
    PinnedMemory memory;
    Event done;       // of its last copy
    size_t used = 0;  // since it was waited for
  };
  Half halves_[2];
  size_t current_ = 0;
};

// Small inputs of kernels on their way to the device: written to pinned memory, copied in stream order, forgotten at
// the next reset(). Nothing that was handed out moves before that.
class Staging {
 public:
  // Where to write `bytes` on the host and where kernels will find them.
  struct Slice {
    void* host;
    void* device;
  };
  Slice take(size_t bytes);
  // Everything handed out from begin() to send() goes to the device in one copy (one more for every chunk it outgrew).
  void begin();
  void send(cudaStream_t stream);
  // Everything handed out was consumed: the stream has been waited for.
  void reset();
  size_t outstanding_bytes() const { return outstanding_; }

 private:
  struct Chunk {
    PinnedMemory host;
    DeviceMemory device;
    size_t used = 0;  // when the next chunk was begun
  };
  std::vector<Chunk> chunks_;
  size_t current_ = 0, used_ = 0, outstanding_ = 0;
  size_t begin_chunk_ = 0, begin_ = 0;  // of what send() will send
  size_t least_chunk_ = 0;              // the next first chunk: what one step has needed
};

// Device scratch of one kind that grows. What it outgrew lives on until reset(), because kernels may still use it.
class Scratch {
 public:
  void* reserve(size_t bytes);
  template <typename T>
  T* reserve(size_t count) {
    return static_cast<T*>(reserve(count * sizeof(T)));
  }
  void reset() { outgrown_.clear(); }

 private:
  DeviceMemory memory_;
  std::vector<DeviceMemory> outgrown_;
};

}  // namespace bam::cuda
