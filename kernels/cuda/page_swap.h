// Pages on their way between host and device. See cuda_transfer.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/cuda/memory.h"
#include "kernels/paged_kv.h"

namespace bam::cuda {

// Pages between host and device on a stream of their own, through two halves of pinned memory: one is filled or emptied
// by the host while the other is on its way. The pages of a half are gathered or scattered on the device: one copy and
// one launch, however many there are.
class PageSwap {
 public:
  ~PageSwap();
  static size_t pages_per_half(size_t page_bytes) { return std::max<size_t>(1, kHalfBytes / page_bytes); }
  // Copies issued from now on wait for `event`.
  void after(cudaEvent_t event);
  size_t next_half() const { return 1 - last_; }
  // Both wait until the half is free, and issue; `pages` has at most pages_per_half().
  void read(size_t index, const KvCacheView& kv, std::span<const int32_t> pages);
  void write(size_t index, const KvCacheView& kv, std::span<const int32_t> pages, std::span<const std::byte> in);
  // The pages of a half, once they are there.
  const std::byte* wait(size_t index);
  cudaEvent_t last() const { return done_[last_].get(); }

 private:
  static constexpr size_t kHalfBytes = size_t{4} << 20;
  struct Half {
    PinnedMemory host;
    DeviceMemory device;
  };
  Half& prepare(size_t index, const KvCacheView& kv, std::span<const int32_t> pages);
  void issued(size_t index);

  Stream stream_;
  Event done_[2];
  Half halves_[2];
  bool busy_[2] = {};
  size_t last_ = 1;
};

}  // namespace bam::cuda
