#include "engine/kv_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "base/hash.h"
#include "kernels/backend.h"

namespace bam {

namespace {

constexpr char kMagic[8] = {'B', 'A', 'M', 'K', 'V', '\r', '\n', '\x1a'};
constexpr uint32_t kVersion = 2;
constexpr uint64_t kMaxSaltBytes = 1 << 20;
constexpr uint64_t kHeaderSeed = 0x62616d6b76, kIndexSeed = 0x696e646578;
constexpr std::string_view kTemporaryMark = ".bamkv.tmp-";

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t dtype;
  uint64_t model, tokenizer, numerics;
  uint32_t page_size, head_dim;
  uint64_t page_bytes;
  uint64_t num_groups, num_blocks, num_pages;
  uint64_t salt_bytes;
  uint64_t index_checksum;
  uint64_t header_checksum;  // of everything above
};
static_assert(sizeof(Header) == 104 && std::is_trivially_copyable_v<Header>);

std::span<const std::byte> header_bytes(const Header& header) {
  return std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_checksum));
}

uint64_t index_bytes(const Header& h) {
  return h.salt_bytes + h.num_blocks * h.page_size * sizeof(int32_t) + (h.num_blocks * h.num_groups + 7) / 8;
}

// The n-th page's checksum also covers its place.
uint64_t page_checksum(std::span<const std::byte> page, uint64_t index) { return hash_bytes(page, index + 1); }

uint64_t index_checksum(const KvFileIndex& index) {
  uint64_t h = hash_bytes(std::as_bytes(std::span(index.salt)), kIndexSeed);
  h = hash_bytes(std::as_bytes(std::span(index.tokens)), h);
  return hash_bytes(std::as_bytes(std::span(index.present)), h);
}

SnapshotError system_error(const char* action, const std::string& name, SnapshotFault fault = SnapshotFault::kFailed) {
  return SnapshotError(fault, "snapshot {}: {} failed: {}", name, action, std::strerror(errno));
}

SnapshotError refusal(const std::string& name, const std::string& why) {
  return SnapshotError(SnapshotFault::kRefused, "snapshot {} is refused: {}", name, why);
}

// Why a header does not belong to this engine; empty: it does.
std::string mismatch(const Header& h, const KvFileFormat& format) {
  const auto& [identity, geometry, layout] = format;
  if (h.model != identity.model) return "it was written by another model";
  if (h.tokenizer != identity.tokenizer) return "it was written with another tokenizer";
  if (h.dtype != static_cast<uint32_t>(layout.dtype)) {
    return fmt::format("its KV dtype is {}, ours is {}", dtype_name(static_cast<DType>(h.dtype)),
                       dtype_name(layout.dtype));
  }
  if (h.page_size != static_cast<uint32_t>(geometry.page_size())) {
    return fmt::format("its page size is {}, ours is {}", h.page_size, geometry.page_size());
  }
  if (h.numerics != identity.numerics) return "weight dtype or attention options differ";
  if (h.head_dim != static_cast<uint32_t>(layout.head_dim) || h.page_bytes != layout.page_bytes() ||
      h.num_groups != static_cast<uint64_t>(geometry.num_groups())) {
    return "its page layout differs";
  }
  return {};
}

// Opens without waiting for whatever may hang behind the name: a FIFO has no writer, a device no data.
UniqueFd open_regular(const std::filesystem::path& path, int flags, struct stat& info) {
  UniqueFd file(::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    throw system_error("opening", path.filename().string(),
                       errno == ENOENT ? SnapshotFault::kRefused : SnapshotFault::kFailed);
  }
  if (::fstat(file.get(), &info) != 0) throw system_error("reading", path.filename().string());
  if (!S_ISREG(info.st_mode)) throw refusal(path.filename().string(), "it is not a regular file");
  return file;
}

}  // namespace

UniqueFd::UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
UniqueFd::~UniqueFd() { close(); }
bool UniqueFd::close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

KvFileWriter::KvFileWriter(std::filesystem::path path, const KvFileFormat& format, const KvFileIndex& index)
    : path_(std::move(path)),
      // Replicas in containers all have process id 1 and may share the folder.
      temporary_(path_.string() + fmt::format(".tmp-{:08x}", std::random_device()())),
      page_bytes_(format.layout.page_bytes()),
      file_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
  if (file_.get() < 0) throw system_error("creating the file", path_.filename().string());
  ::flock(file_.get(), LOCK_EX | LOCK_NB);  // says that its writer lives, see remove_abandoned_kv_files()
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.dtype = static_cast<uint32_t>(format.layout.dtype);
  header.model = format.identity.model;
  header.tokenizer = format.identity.tokenizer;
  header.numerics = format.identity.numerics;
  header.page_size = static_cast<uint32_t>(format.geometry.page_size());
  header.head_dim = static_cast<uint32_t>(format.layout.head_dim);
  header.page_bytes = page_bytes_;
  header.num_groups = static_cast<uint64_t>(format.geometry.num_groups());
  header.num_blocks = index.tokens.size() / header.page_size;
  header.num_pages = index.num_pages;
  header.salt_bytes = index.salt.size();
  header.index_checksum = index_checksum(index);
  header.header_checksum = hash_bytes(header_bytes(header), kHeaderSeed);
  try {
    write(&header, sizeof(header));
    write(index.salt.data(), index.salt.size());
    write(index.tokens.data(), index.tokens.size() * sizeof(int32_t));
    write(index.present.data(), index.present.size());
  } catch (...) {
    ::unlink(temporary_.c_str());
    throw;
  }
}

KvFileWriter::~KvFileWriter() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void KvFileWriter::write(const void* data, size_t size) {
  const auto* p = static_cast<const std::byte*>(data);
  while (size > 0) {
    const ssize_t n = ::write(file_.get(), p, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw system_error("writing", path_.filename().string());
    p += n;
    size -= static_cast<size_t>(n);
  }
}

void KvFileWriter::append(std::span<const std::byte> pages) {
  for (; !pages.empty(); pages = pages.subspan(page_bytes_)) {
    const uint64_t checksum = page_checksum(pages.first(page_bytes_), num_written_++);
    write(&checksum, sizeof(checksum));
    write(pages.data(), page_bytes_);
  }
}

void KvFileWriter::commit() {
  const bool written = ::fsync(file_.get()) == 0 && file_.close();
  if (!written || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw system_error("writing", path_.filename().string());
  }
  temporary_.clear();
  const UniqueFd folder(::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());  // the rename itself survives a power cut too
}

KvFileReader::KvFileReader(const std::filesystem::path& path, const KvFileFormat& format)
    : name_(path.filename().string()), page_bytes_(format.layout.page_bytes()) {
  struct stat info {};
  file_ = open_regular(path, O_RDONLY, info);
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  Header header;
  if (size < sizeof(header)) throw refusal(name_, "it is shorter than its header");
  read_at(&header, sizeof(header), 0);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) throw refusal(name_, "it is not a KV snapshot");
  if (header.version != kVersion) {
    throw refusal(name_, fmt::format("its version is {}, ours is {}", header.version, kVersion));
  }
  if (header.header_checksum != hash_bytes(header_bytes(header), kHeaderSeed)) {
    throw refusal(name_, "its header is damaged");
  }
  if (const std::string why = mismatch(header, format); !why.empty()) throw refusal(name_, why);
  const uint64_t max_blocks = static_cast<uint64_t>(format.geometry.blocks_for(kMaxPositions));
  if (header.num_blocks == 0 || header.num_blocks > max_blocks || header.salt_bytes > kMaxSaltBytes ||
      header.num_pages > header.num_blocks * header.num_groups) {
    throw refusal(name_, "its header is damaged");
  }
  pages_offset_ = sizeof(header) + index_bytes(header);
  const uint64_t expected = pages_offset_ + header.num_pages * (page_bytes_ + sizeof(uint64_t));
  if (size != expected) throw refusal(name_, fmt::format("it has {} bytes, its header says {}", size, expected));

  index_.salt.resize(header.salt_bytes);
  index_.tokens.resize(header.num_blocks * header.page_size);
  index_.present.resize((header.num_blocks * header.num_groups + 7) / 8);
  uint64_t at = sizeof(header);
  const auto next = [&](void* data, size_t bytes) {
    read_at(data, bytes, at);
    at += bytes;
  };
  next(index_.salt.data(), index_.salt.size());
  next(index_.tokens.data(), index_.tokens.size() * sizeof(int32_t));
  next(index_.present.data(), index_.present.size());
  for (const uint8_t bits : index_.present) index_.num_pages += static_cast<uint64_t>(std::popcount(bits));
  const uint64_t unused = index_.present.size() * 8 - header.num_blocks * header.num_groups;
  if (index_.present.back() >> (8 - unused) != 0) throw refusal(name_, "its token list is damaged");
  if (index_checksum(index_) != header.index_checksum || index_.num_pages != header.num_pages) {
    throw refusal(name_, "its token list is damaged");
  }
}

void KvFileReader::read_at(void* data, size_t size, uint64_t offset) const {
  auto* p = static_cast<std::byte*>(data);
  while (size > 0) {
    const ssize_t n = ::pread(file_.get(), p, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("reading", name_);
    if (n == 0) throw refusal(name_, "it became shorter while it was read");
    p += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

void KvFileReader::read(uint64_t first, std::span<std::byte> pages) const {
  const size_t stride = page_bytes_ + sizeof(uint64_t);
  for (uint64_t i = first; !pages.empty(); ++i, pages = pages.subspan(page_bytes_)) {
    uint64_t checksum = 0;
    read_at(&checksum, sizeof(checksum), pages_offset_ + i * stride);
    read_at(pages.data(), page_bytes_, pages_offset_ + i * stride + sizeof(checksum));
    if (checksum != page_checksum(pages.first(page_bytes_), i)) {
      throw refusal(name_, fmt::format("page {} of {} is damaged", i, index_.num_pages));
    }
  }
}

int remove_abandoned_kv_files(const std::filesystem::path& directory) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().filename().string().find(kTemporaryMark) == std::string::npos) continue;
    const UniqueFd file(::open(entry.path().c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    if (file.get() < 0 || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) removed += ::unlink(entry.path().c_str()) == 0;
  }
  return removed;
}

}  // namespace bam
