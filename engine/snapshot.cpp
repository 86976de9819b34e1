#include "engine/snapshot.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <random>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include <fmt/format.h>

namespace bam {

namespace {

constexpr char kMagic[8] = {'B', 'A', 'M', 'K', 'V', '\r', '\n', '\x1a'};
constexpr uint32_t kVersion = 2;
constexpr int64_t kExtraTokens = 1024;  // kept beyond a bounded window, for prompts that part a little earlier
constexpr uint64_t kMaxSaltBytes = 1 << 20;
constexpr uint64_t kHeaderSeed = 0x62616d6b76, kIndexSeed = 0x696e646578;

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

// Pages that go through host memory at a time.
size_t pages_per_batch(size_t page_bytes) {
  constexpr size_t kBatchBytes = size_t{8} << 20;
  return std::max<size_t>(1, kBatchBytes / page_bytes);
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  bool write_all(const void* data, size_t size) {
    const auto* p = static_cast<const std::byte*>(data);
    while (size > 0) {
      const ssize_t n = ::write(fd_, p, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      p += n;
      size -= static_cast<size_t>(n);
    }
    return true;
  }
  bool read_all(void* data, size_t size) {
    auto* p = static_cast<std::byte*>(data);
    while (size > 0) {
      const ssize_t n = ::read(fd_, p, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      p += n;
      size -= static_cast<size_t>(n);
    }
    return true;
  }
  // The result of close is part of the result of writing.
  bool sync_and_close() {
    const bool synced = ::fsync(fd_) == 0;
    const bool closed = ::close(std::exchange(fd_, -1)) == 0;
    return synced && closed;
  }

 private:
  int fd_;
};

Error system_error(const char* action, const std::filesystem::path& path) {
  return Error("snapshot {}: {} failed: {}", path.filename().string(), action, std::strerror(errno));
}

struct Index {
  std::string salt;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> present;  // bit [block * groups + group]

  bool has(uint64_t bit) const { return (present[bit / 8] >> (bit % 8)) & 1; }
};

uint64_t index_checksum(const Index& index) {
  uint64_t h = hash_bytes(std::as_bytes(std::span(index.salt)), kIndexSeed);
  h = hash_bytes(std::as_bytes(std::span(index.tokens)), h);
  return hash_bytes(std::as_bytes(std::span(index.present)), h);
}

}  // namespace

SnapshotStore::SnapshotStore(std::filesystem::path directory, SnapshotIdentity identity, KvCache& kv, Backend& backend,
                             const KvCacheView& view)
    : directory_(std::move(directory)), identity_(identity), kv_(kv), backend_(backend), view_(view) {}

Result<std::filesystem::path> SnapshotStore::path_of(const std::string& name) const {
  if (directory_.empty()) return Error("snapshots are off: start with --kv-dir");
  if (!kv_.prefix_enabled()) return Error("snapshots need the prefix cache, which is off");
  const bool legal = !name.empty() && name.size() <= 128 && std::ranges::all_of(name, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
  if (!legal) return Error("a snapshot name has 1 to 128 of the characters A-Z a-z 0-9 . _ -");
  return directory_ / (name + ".bamkv");
}

Result<std::string> SnapshotStore::save(const std::string& name, const std::vector<int32_t>& tokens,
                                        const std::string& salt) {
  const auto path = path_of(name);
  if (!path) return path.error();
  const KvGeometry& geometry = kv_.geometry();
  const std::vector<int32_t> chain = kv_.cached_chain(salt, tokens);
  if (chain.empty()) {
    return Error("snapshot {}: none of the {} tokens is in the prefix cache (blocks have {} tokens)", name,
                 tokens.size(), geometry.page_size());
  }
  const int64_t blocks = static_cast<int64_t>(chain.size()), groups = geometry.num_groups();
  const int64_t kept_tokens = blocks * geometry.page_size();
  Index index{salt, {tokens.begin(), tokens.begin() + kept_tokens}, {}};
  index.present.resize(static_cast<size_t>((blocks * groups + 7) / 8));
  std::vector<int32_t> pages;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int g = 0; g < groups; ++g) {
      const int32_t page = kv_.prefix().page(chain[static_cast<size_t>(b)], g);
      if (page == kNoPage || b < geometry.first_needed_block(g, std::max<int64_t>(0, kept_tokens - kExtraTokens)))
        continue;
      const size_t bit = static_cast<size_t>(b * groups + g);
      index.present[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
      pages.push_back(page);
    }
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.dtype = static_cast<uint32_t>(view_.layout.dtype);
  header.model = identity_.model;
  header.tokenizer = identity_.tokenizer;
  header.numerics = identity_.numerics;
  header.page_size = static_cast<uint32_t>(geometry.page_size());
  header.head_dim = static_cast<uint32_t>(view_.layout.head_dim);
  header.page_bytes = view_.layout.page_bytes();
  header.num_groups = static_cast<uint64_t>(groups);
  header.num_blocks = static_cast<uint64_t>(blocks);
  header.num_pages = pages.size();
  header.salt_bytes = salt.size();
  header.index_checksum = index_checksum(index);
  header.header_checksum = hash_bytes(header_bytes(header), kHeaderSeed);

  // Replicas in containers all have process id 1 and may share the folder.
  const std::filesystem::path temporary = path->string() + fmt::format(".tmp-{:08x}", std::random_device()());
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.ok()) return system_error("creating the file", *path);
  bool written = file.write_all(&header, sizeof(header)) && file.write_all(salt.data(), salt.size()) &&
                 file.write_all(index.tokens.data(), index.tokens.size() * sizeof(int32_t)) &&
                 file.write_all(index.present.data(), index.present.size());
  const size_t batch = pages_per_batch(header.page_bytes);
  std::vector<std::byte> buffer(std::min(batch, pages.size()) * header.page_bytes);
  for (size_t first = 0; first < pages.size() && written; first += batch) {
    const size_t count = std::min(batch, pages.size() - first);
    const auto bytes = std::span(buffer).first(count * header.page_bytes);
    backend_.read_pages(view_, std::span(pages).subspan(first, count), bytes);
    for (size_t i = 0; i < count && written; ++i) {
      const auto page = bytes.subspan(i * header.page_bytes, header.page_bytes);
      const uint64_t checksum = page_checksum(page, first + i);
      written = file.write_all(&checksum, sizeof(checksum)) && file.write_all(page.data(), page.size());
    }
  }
  written = written && file.sync_and_close();
  if (!written || ::rename(temporary.c_str(), path->c_str()) != 0) {
    const Error error = system_error("writing", *path);
    ::unlink(temporary.c_str());
    return error;
  }
  const File folder(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.ok()) ::fsync(folder.fd());  // the rename itself survives a power cut too
  return fmt::format("saved {} tokens in {} pages ({:.1f} MiB) as {}", kept_tokens, pages.size(),
                     static_cast<double>(pages.size() * header.page_bytes) / (1 << 20), path->filename().string());
}

namespace {

// Why a header does not belong to this engine; empty: it does.
std::string mismatch(const Header& h, const SnapshotIdentity& identity, const KvGeometry& geometry,
                     const KvLayout& layout) {
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

}  // namespace

Result<std::string> SnapshotStore::restore(const std::string& name) {
  const auto path = path_of(name);
  if (!path) return path.error();
  const auto refuse = [&](const std::string& why) { return Error("snapshot {} is refused: {}", name, why); };
  File file(::open(path->c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return system_error("opening", *path);
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) return system_error("reading", *path);
  const uint64_t size = static_cast<uint64_t>(info.st_size);

  Header header;
  if (size < sizeof(header) || !file.read_all(&header, sizeof(header))) return refuse("it is shorter than its header");
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return refuse("it is not a KV snapshot");
  if (header.version != kVersion) return refuse(fmt::format("its version is {}, ours is {}", header.version, kVersion));
  if (header.header_checksum != hash_bytes(header_bytes(header), kHeaderSeed)) return refuse("its header is damaged");
  if (const std::string why = mismatch(header, identity_, kv_.geometry(), view_.layout); !why.empty())
    return refuse(why);
  const uint64_t max_blocks = static_cast<uint64_t>(kv_.geometry().blocks_for(kMaxModelLen));
  if (header.num_blocks == 0 || header.num_blocks > max_blocks || header.salt_bytes > kMaxSaltBytes ||
      header.num_pages > header.num_blocks * header.num_groups) {
    return refuse("its header is damaged");
  }
  const uint64_t expected =
      sizeof(header) + index_bytes(header) + header.num_pages * (header.page_bytes + sizeof(uint64_t));
  if (size != expected) return refuse(fmt::format("it has {} bytes, its header says {}", size, expected));

  Index index;
  index.salt.resize(header.salt_bytes);
  index.tokens.resize(header.num_blocks * header.page_size);
  index.present.resize((header.num_blocks * header.num_groups + 7) / 8);
  if (!file.read_all(index.salt.data(), index.salt.size()) ||
      !file.read_all(index.tokens.data(), index.tokens.size() * sizeof(int32_t)) ||
      !file.read_all(index.present.data(), index.present.size())) {
    return system_error("reading", *path);
  }
  uint64_t num_present = 0;
  for (const uint8_t bits : index.present) num_present += static_cast<uint64_t>(std::popcount(bits));
  if (index_checksum(index) != header.index_checksum || num_present != header.num_pages) {
    return refuse("its token list is damaged");
  }

  auto pages = kv_.allocate_pages(static_cast<int64_t>(header.num_pages));
  if (!pages) {
    return refuse(fmt::format("it needs {} pages and only {} are not in use", header.num_pages, kv_.num_available()));
  }
  const size_t batch = pages_per_batch(header.page_bytes);
  std::vector<std::byte> buffer(std::min(batch, pages->size()) * header.page_bytes);
  for (size_t first = 0; first < pages->size(); first += batch) {
    const size_t count = std::min(batch, pages->size() - first);
    const auto bytes = std::span(buffer).first(count * header.page_bytes);
    for (size_t i = 0; i < count; ++i) {
      const auto page = bytes.subspan(i * header.page_bytes, header.page_bytes);
      uint64_t checksum = 0;
      const bool read = file.read_all(&checksum, sizeof(checksum)) && file.read_all(page.data(), page.size());
      if (!read || checksum != page_checksum(page, first + i)) {
        kv_.release_pages(*pages);  // never published: free at once
        return refuse(fmt::format("page {} of {} is damaged", first + i, pages->size()));
      }
    }
    backend_.write_pages(view_, std::span(*pages).subspan(first, count), bytes);
  }
  std::vector<int32_t> table(header.num_blocks * header.num_groups, kNoPage);
  size_t next = 0;
  for (size_t bit = 0; bit < table.size(); ++bit) {
    if (index.has(bit)) table[bit] = (*pages)[next++];
  }
  kv_.adopt(index.salt, index.tokens, table);
  return fmt::format("restored {} tokens in {} pages from {}", index.tokens.size(), pages->size(),
                     path->filename().string());
}

}  // namespace bam
