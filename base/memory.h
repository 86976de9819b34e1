#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

namespace bam {

// Zeroed anonymous memory, committed page by page on first use. Throws Error when the address space is not to be had.
// From 2 MiB on it is aligned for huge pages and asks for them unless told otherwise.
class LazyMemory {
 public:
  LazyMemory() = default;
  explicit LazyMemory(size_t bytes, bool huge_pages = true);
  ~LazyMemory();
  LazyMemory(LazyMemory&& other) noexcept { swap(other); }
  LazyMemory& operator=(LazyMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  friend class MemoryArena;
  void swap(LazyMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(whole_, other.whole_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const LazyMemory> whole_;  // set: this is a slice of it
};

// Cuts buffers that are smaller than a huge page, as a layer's matrices are, from large blocks, so that they lie on
// huge pages all the same: reading weights through 4 KiB pages costs up to a third of the memory's bandwidth. A block
// returns to the system with its last slice. Thread-safe.
class MemoryArena {
 public:
  LazyMemory allocate(size_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<const LazyMemory> block_;
  size_t used_ = 0;  // of block_
};

// Memory the kernel could hand out now without swapping, limited by the cgroup if there is one.
size_t available_memory_bytes();

}  // namespace bam
