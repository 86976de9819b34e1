#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "base/bus_errors.h"
#include "base/error.h"

namespace bam {
namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, Access access) : path_(path) {
  // O_NONBLOCK: opening a FIFO without a writer must fail below instead of hanging here.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw Error("{}: cannot open: {}", path.string(), reason(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw Error("{}: cannot stat: {}", path.string(), reason(errno));
  if (!S_ISREG(info.st_mode)) {
    throw Error("{}: is {}, not a regular file", path.string(),
                S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket");
  }
  identity_ = identity_of(info);
  if (info.st_size == 0) return;  // mmap refuses length 0
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) throw Error("{}: cannot map {} bytes: {}", path.string(), size, reason(errno));
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
  remember_mapping(data_, size_, path_.string());
  if (access == Access::kWillNeed) ::madvise(address, size, MADV_WILLNEED);  // a hint: failure changes nothing
}

MappedFile::Identity MappedFile::identity_of(const struct ::stat& info) {
  return {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino), static_cast<uint64_t>(info.st_size),
          static_cast<int64_t>(info.st_mtim.tv_sec), static_cast<int64_t>(info.st_mtim.tv_nsec)};
}

bool MappedFile::changed() const {
  struct stat info {};
  return ::stat(path_.c_str(), &info) != 0 || identity_of(info) != identity_;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (part.empty() || !holds(part)) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace bam
