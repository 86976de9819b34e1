// Objects as files: FOLDER/ab/cdef…, written beside their place and renamed. They need not survive a power cut: what is
// damaged is refused by its checksum.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/log.h"
#include "engine/kv_file.h"
#include "server/store/object_store.h"

namespace bam {

namespace {

constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr auto kAbandonedAfter = std::chrono::minutes(10);  // no writer takes so long for one object

class FolderStore final : public ObjectStore {
 public:
  FolderStore(std::filesystem::path folder, uint64_t limit) : folder_(std::move(folder)), limit_(limit) {}

  bool has(const std::string& key, Deadline) override {
    struct stat info {};
    if (::stat(path_of(key).c_str(), &info) == 0) return S_ISREG(info.st_mode);
    if (errno != ENOENT) throw failed("looking for an object");
    return false;
  }

  bool get(const std::string& key, size_t max_bytes, std::vector<std::byte>& out, Deadline) override {
    // Whatever may hang behind the name is not waited for.
    const UniqueFd file(::open(path_of(key).c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (file.get() < 0) {
      if (errno == ENOENT) return false;
      throw failed("opening an object");
    }
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) throw failed("reading an object");
    if (!S_ISREG(info.st_mode)) return false;
    out.resize(std::min(static_cast<size_t>(info.st_size), max_bytes + 1));
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::read(file.get(), out.data() + done, out.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw failed("reading an object");
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    out.resize(done);
    ::futimens(file.get(), nullptr);  // used just now; a folder of somebody else's stays as it is
    return true;
  }

  void put(const std::string& key, std::span<const std::byte> object, Deadline) override {
    const std::filesystem::path path = path_of(key);
    if (::mkdir(path.parent_path().c_str(), 0700) != 0 && errno != EEXIST) throw failed("making a folder");
    const std::string temporary = path.string() + fmt::format("{}{:08x}", kTemporaryMark, std::random_device()());
    UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0) throw failed("creating an object");
    const bool written = write_all(file.get(), object) && file.close();
    if (!written || ::rename(temporary.c_str(), path.c_str()) != 0) {
      const StoreError error = failed("writing an object");
      ::unlink(temporary.c_str());
      throw error;
    }
    bytes_ += object.size();
    unswept_ += object.size();
    if (!swept_ || bytes_ > limit_ || unswept_ > limit_ / 16) sweep();
  }

  void remove(const std::string& key, Deadline) override {
    if (::unlink(path_of(key).c_str()) != 0 && errno != ENOENT) throw failed("removing an object");
  }

 private:
  struct File {
    std::filesystem::file_time_type used;
    uint64_t bytes;
    std::filesystem::path path;
  };

  std::filesystem::path path_of(const std::string& key) const { return folder_ / key.substr(0, 2) / key.substr(2); }

  StoreError failed(const char* action) const {
    return StoreError("{}: {} failed: {}", folder_.string(), action, std::strerror(errno));
  }

  static bool write_all(int fd, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }

  // Other processes write and remove here, too: what is counted is what is there.
  void sweep() {
    std::vector<File> files;
    bytes_ = 0;
    std::error_code error;
    const auto now = std::filesystem::file_time_type::clock::now();
    for (const auto& shard : std::filesystem::directory_iterator(folder_, error)) {
      if (shard.path().filename().string().size() != 2) continue;
      std::error_code gone;
      for (const auto& entry : std::filesystem::directory_iterator(shard.path(), gone)) {
        const auto used = entry.last_write_time(gone);
        const uint64_t bytes = gone ? 0 : entry.file_size(gone);
        if (gone) continue;
        const bool temporary = entry.path().filename().string().find(kTemporaryMark) != std::string::npos;
        if (temporary && now - used > kAbandonedAfter) std::filesystem::remove(entry.path(), gone);
        if (temporary) continue;
        bytes_ += bytes;
        files.push_back({used, bytes, entry.path()});
      }
    }
    swept_ = true;
    unswept_ = 0;
    if (bytes_ <= limit_) return;
    std::ranges::sort(files, {}, &File::used);
    size_t removed = 0;
    for (const File& file : files) {
      if (bytes_ <= limit_ - limit_ / 10) break;
      std::error_code gone;
      std::filesystem::remove(file.path, gone);
      bytes_ -= file.bytes;
      ++removed;
    }
    log::debug("--kv-store: {} objects were removed, {} bytes are left", removed, bytes_);
  }

  const std::filesystem::path folder_;
  const uint64_t limit_;
  uint64_t bytes_ = 0;    // in the folder, as far as we know
  uint64_t unswept_ = 0;  // written since the last sweep
  bool swept_ = false;
};

}  // namespace

std::unique_ptr<ObjectStore> open_folder_store(const std::string& folder, uint64_t limit_bytes) {
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (!std::filesystem::is_directory(folder, error)) {
    throw UsageError("--kv-store: {} is not a folder and cannot be made, nor is it redis:HOST or s3:BUCKET", folder);
  }
  return std::make_unique<FolderStore>(folder, limit_bytes);
}

}  // namespace bam
