#include "server/http/auth.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

namespace bam {

namespace {

bool take_scheme(std::string_view& header, std::string_view scheme) {
  if (header.size() <= scheme.size() || header[scheme.size()] != ' ') return false;
  for (size_t i = 0; i < scheme.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(header[i])) != scheme[i]) return false;
  }
  header.remove_prefix(scheme.size() + 1);
  while (header.starts_with(' ')) header.remove_prefix(1);
  while (header.ends_with(' ')) header.remove_suffix(1);
  return true;
}

std::string decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0 || text.size() > 4096) return {};
  std::string out(text.size() / 4 * 3, '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size()));
  if (length < 0) return {};
  out.resize(static_cast<size_t>(length));
  // EVP_DecodeBlock counts the padding as zero bytes.
  for (size_t i = text.size(); i > text.size() - 2 && text[i - 1] == '='; --i) out.pop_back();
  return out;
}

// The key that a request presents, in any of the accepted forms.
std::string presented_key(std::string_view authorization, std::string_view api_key) {
  if (take_scheme(authorization, "bearer")) return std::string(authorization);
  if (take_scheme(authorization, "basic")) {
    const std::string pair = decode_base64(authorization);
    const size_t colon = pair.find(':');
    return colon == std::string::npos ? std::string() : pair.substr(colon + 1);
  }
  return std::string(api_key);
}

}  // namespace

// Enough of the digest to tell keys apart, too little to say anything about one.
std::string KeyRing::tenant_of(const Digest& key) {
  uint64_t head = 0;
  std::memcpy(&head, key.data(), sizeof(head));
  return fmt::format("{:016x}", head);
}

KeyRing::KeyRing(const std::vector<std::string>& api_keys, const std::string& admin_key) {
  for (const std::string& key : api_keys) keys_.push_back(digest(key));
  if (!admin_key.empty()) admin_ = digest(admin_key);
}

KeyRing::Digest KeyRing::digest(std::string_view text) {
  Digest result{};
  unsigned int length = 0;
  EVP_Digest(text.data(), text.size(), result.data(), &length, EVP_sha256(), nullptr);
  return result;
}

std::optional<Caller> KeyRing::identify(std::string_view authorization, std::string_view api_key) const {
  const Digest presented = digest(presented_key(authorization, api_key));
  Caller caller;
  bool known = false;
  size_t found = 0;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const bool equal = CRYPTO_memcmp(presented.data(), keys_[i].data(), presented.size()) == 0;
    known |= equal;
    found = equal ? i : found;
  }
  if (known && keys_.size() > 1) caller.tenant = tenant_of(keys_[found]);
  if (admin_) caller.admin = CRYPTO_memcmp(presented.data(), admin_->data(), presented.size()) == 0;
  if (required() && !known && !caller.admin) return std::nullopt;
  return caller;
}

}  // namespace bam
