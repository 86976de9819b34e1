#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace bam {

// Zeroed anonymous memory, committed page by page on first use. Throws Error when the address space is not to be had.
class LazyMemory {
 public:
  LazyMemory() = default;
  explicit LazyMemory(size_t bytes, bool huge_pages = true);
  ~LazyMemory();
  LazyMemory(LazyMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  LazyMemory& operator=(LazyMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Memory the kernel could hand out now without swapping, limited by the cgroup if there is one.
size_t available_memory_bytes();

}  // namespace bam
