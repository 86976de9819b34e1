#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

namespace bam {

// A regular file mapped read-only for the life of the object. Immutable, so any thread may read it.
// A file that another process truncates while it is mapped raises SIGBUS on access, as with any mmap.
class MappedFile {
 public:
  enum class Access {
    kOnDemand,  // pages come in when they are touched
    kWillNeed,  // the kernel starts reading the whole file ahead
  };

  MappedFile() = default;
  // Throws Error naming the path. Follows symbolic links; refuses anything but a regular file. Empty files are fine.
  explicit MappedFile(const std::filesystem::path& path, Access access = Access::kOnDemand);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  size_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

  bool holds(std::span<const std::byte> part) const {
    return part.data() >= data_ && part.data() + part.size() <= data_ + size_;
  }
  // Gives the memory of `part`, rounded inwards to whole pages, back to the system; it is read again when touched.
  // Parts outside of this file are ignored.
  void release(std::span<const std::byte> part) const;

 private:
  void swap(MappedFile& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    path_.swap(other.path_);
  }

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace bam
