#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
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

  // Whether the file at path() is not this one any more: replaced, rewritten or of another size.
  bool changed() const;

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
    std::swap(identity_, other.identity_);
    path_.swap(other.path_);
  }

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  struct Identity {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;  // of the last modification
    bool operator==(const Identity&) const = default;
  } identity_;
  static Identity identity_of(const struct ::stat& info);
  std::filesystem::path path_;
};

}  // namespace bam
