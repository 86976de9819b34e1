#include "server/store/kv_object.h"

#include <openssl/evp.h>

#include <cstring>
#include <memory>
#include <type_traits>

#include "base/hash.h"
#include "engine/kv_file.h"

namespace bam {

namespace {

constexpr char kMagic[8] = {'B', 'A', 'M', 'K', 'V', 'O', 'B', '\x1'};
constexpr uint64_t kHeaderSeed = 0x6b766f626a;

struct Header {
  char magic[8];
  uint8_t name[32];
  uint64_t payload_bytes;
  uint64_t payload_checksum;
  uint64_t header_checksum;  // of everything above
};
static_assert(sizeof(Header) == kObjectHeaderBytes && std::is_trivially_copyable_v<Header>);

uint64_t header_checksum(const Header& header) {
  return hash_bytes(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_checksum)), kHeaderSeed);
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) throw Error("SHA-256 is not there");
  }
  Sha256& add(std::span<const std::byte> bytes) {
    if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) throw Error("SHA-256 failed");
    return *this;
  }
  Sha256& add(uint64_t number) { return add(std::as_bytes(std::span(&number, 1))); }
  ObjectName finish() {
    ObjectName name;
    if (EVP_DigestFinal_ex(context_.get(), name.data(), nullptr) != 1) throw Error("SHA-256 failed");
    return name;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype([](EVP_MD_CTX* c) { EVP_MD_CTX_free(c); })> context_;
};

}  // namespace

std::string to_hex(const ObjectName& name) {
  std::string hex;
  for (const uint8_t byte : name) hex += fmt::format("{:02x}", byte);
  return hex;
}

PrefixNames::PrefixNames(const KvFileFormat& format, int64_t stretch_tokens, uint64_t part_bytes,
                         const std::string& salt, std::span<const int32_t> tokens) {
  const auto& [identity, geometry, layout] = format;
  Sha256 root;
  root.add(std::as_bytes(std::span(kMagic)));
  for (const uint64_t number :
       {identity.model, identity.tokenizer, identity.numerics, static_cast<uint64_t>(layout.dtype),
        static_cast<uint64_t>(layout.head_dim), layout.page_bytes(), static_cast<uint64_t>(geometry.page_size()),
        static_cast<uint64_t>(geometry.num_groups()), static_cast<uint64_t>(stretch_tokens), part_bytes, salt.size()}) {
    root.add(number);
  }
  ObjectName end = root.add(std::as_bytes(std::span(salt))).finish();
  const auto length = static_cast<size_t>(stretch_tokens);
  for (; tokens.size() >= length; tokens = tokens.subspan(length)) {
    end = Sha256().add(std::as_bytes(std::span(end))).add(std::as_bytes(tokens.first(length))).finish();
    ends_.push_back(end);
  }
}

ObjectName PrefixNames::name(ObjectKind kind, int64_t index, int64_t part) const {
  return Sha256()
      .add(std::as_bytes(std::span(ends_[static_cast<size_t>(index)])))
      .add(static_cast<uint64_t>(kind))
      .add(static_cast<uint64_t>(part))
      .finish();
}

void seal_object(const ObjectName& name, std::span<std::byte> object) {
  const auto payload = object.subspan(sizeof(Header));
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::memcpy(header.name, name.data(), name.size());
  header.payload_bytes = payload.size();
  header.payload_checksum = hash_bytes(payload, header.payload_bytes);
  header.header_checksum = header_checksum(header);
  std::memcpy(object.data(), &header, sizeof(header));
}

Result<std::span<const std::byte>> open_object(const ObjectName& name, size_t payload_bytes,
                                               std::span<const std::byte> object) {
  Header header;
  if (object.size() < sizeof(header)) return Error("it is shorter than its header");
  std::memcpy(&header, object.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return Error("it is no object of this kind");
  if (header.header_checksum != header_checksum(header)) return Error("its header is damaged");
  if (std::memcmp(header.name, name.data(), name.size()) != 0) return Error("it belongs to another name");
  const auto payload = object.subspan(sizeof(header));
  if (header.payload_bytes != payload_bytes || payload.size() != payload_bytes) {
    return Error("it has {} bytes of pages, its header says {}, and {} are expected", payload.size(),
                 header.payload_bytes, payload_bytes);
  }
  if (header.payload_checksum != hash_bytes(payload, header.payload_bytes)) return Error("its pages are damaged");
  return payload;
}

}  // namespace bam
