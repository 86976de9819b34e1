#include "kernels/cuda/memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "kernels/backend.h"

namespace bam::cuda {
namespace {

constexpr size_t kStagingChunk = size_t{1} << 20;
constexpr size_t kAlignment = 256;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

double mebibytes(size_t bytes) { return static_cast<double>(bytes) / (1u << 20); }

// What helps, for errors that come from how a machine is set up.
const char* advice(cudaError_t status) {
  switch (static_cast<int>(status)) {
    case 46: return "; another process has the GPU to itself, or its compute mode forbids this one";
    case 209: return "; this build has no kernels for this GPU: name its architecture in BAM_CUDA_ARCHITECTURES";
    case 222: return "; only a newer driver can compile the PTX that this build has for this GPU";
    case 802: return "; with NVSwitch, nvidia-fabricmanager must be running";
    case 803: return "; the driver was updated and the old one is still loaded: restart the machine";
    default: return "";
  }
}

}  // namespace

bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown: return true;
    default: break;
  }
  switch (static_cast<int>(status)) {  // not named by every toolkit that this builds with
    case 220:                          // NVLink
    case 226:                          // contained: a fault of peer memory or of the device
    case 709:                          // the context was destroyed
    case 721:                          // tensor memory was leaked
    case 810:                          // the MPS server ended this client
    case 911: return true;             // a device outside of CUDA
    default: return false;
  }
}

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // the error was reported; a later call must not report it again
  if (is_sticky(status)) {
    throw DeviceLost("the GPU failed and this process cannot use it any more: {} ({}), seen by {}",
                     cudaGetErrorString(status), cudaGetErrorName(status), call);
  }
  throw Error("CUDA: {} failed: {} ({}){}", call, cudaGetErrorString(status), cudaGetErrorName(status), advice(status));
}

DeviceMemory::DeviceMemory(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const cudaError_t status = cudaMalloc(&data_, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    throw Error(
        "out of device memory: {:.1f} MiB wanted, {:.1f} of {:.1f} MiB free; use a smaller --kv-memory, "
        "fewer --max-batched-tokens or smaller weights",
        mebibytes(bytes), mebibytes(free), mebibytes(total));
  }
  check(status, "cudaMalloc");
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) (void)cudaFree(data_);
}

PinnedMemory::PinnedMemory(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  check(cudaMallocHost(&data_, bytes), "cudaMallocHost");
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) (void)cudaFreeHost(data_);
}

Stream::Stream() { BAM_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

Stream::~Stream() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Event::Event() { BAM_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }

Event::~Event() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}

void Uploads::copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, kHalfBytes);
    if (halves_[current_].used + part > halves_[current_].memory.size()) {
      Half& next = halves_[1 - current_];
      if (next.used > 0) BAM_CUDA(cudaEventSynchronize(next.done.get()));
      next.used = 0;
      if (next.memory.size() < part) next.memory = PinnedMemory(std::max(part, kLeastBytes));
      current_ = 1 - current_;
    }
    Half& half = halves_[current_];
    std::byte* const staged = half.memory.as<std::byte>() + half.used;
    std::memcpy(staged, source + done, part);
    half.used += round_up(part, kAlignment);
    BAM_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, staged, part, cudaMemcpyHostToDevice, stream));
    BAM_CUDA(cudaEventRecord(half.done.get(), stream));
    done += part;
  }
}

Staging::Slice Staging::take(size_t bytes) {
  // Powers of two: what grows from step to step leaves what follows at its address until it has doubled.
  bytes = std::bit_ceil(std::max(bytes, kAlignment));
  while (current_ < chunks_.size() && used_ + bytes > chunks_[current_].host.size()) {
    chunks_[current_].used = used_;
    ++current_;
    used_ = 0;
  }
  if (current_ == chunks_.size()) {
    const size_t size = std::max({bytes, least_chunk_, kStagingChunk << std::min<size_t>(current_, 6)});
    chunks_.push_back({PinnedMemory(size), DeviceMemory(size), 0});
    used_ = 0;
  }
  const Chunk& chunk = chunks_[current_];
  const Slice slice{chunk.host.as<std::byte>() + used_, chunk.device.as<std::byte>() + used_};
  used_ += bytes;
  outstanding_ += bytes;
  return slice;
}

void Staging::begin() {
  begin_chunk_ = current_;
  begin_ = used_;
}

void Staging::send(cudaStream_t stream) {
  for (; begin_chunk_ < chunks_.size() && begin_chunk_ <= current_; ++begin_chunk_, begin_ = 0) {
    const Chunk& chunk = chunks_[begin_chunk_];
    const size_t end = begin_chunk_ == current_ ? used_ : chunk.used;
    if (end == begin_) continue;
    BAM_CUDA(cudaMemcpyAsync(chunk.device.as<std::byte>() + begin_, chunk.host.as<std::byte>() + begin_, end - begin_,
                             cudaMemcpyHostToDevice, stream));
  }
}

void Staging::reset() {
  if (current_ > 0) {  // more than one chunk: the next step gets one that is large enough
    least_chunk_ = std::bit_ceil(outstanding_);
    chunks_.clear();
  }
  current_ = used_ = outstanding_ = begin_chunk_ = begin_ = 0;
}

void* Scratch::reserve(size_t bytes) {
  if (memory_.size() < bytes) {
    if (memory_.size() > 0) outgrown_.push_back(std::move(memory_));
    memory_ = DeviceMemory(std::max(bytes, outgrown_.empty() ? size_t{0} : outgrown_.back().size() * 3 / 2));
  }
  return memory_.data();
}

}  // namespace bam::cuda
