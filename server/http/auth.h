#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call.h"

namespace bam {

// API keys, kept and compared as SHA-256 digests: every comparison looks at all bytes of all keys, whatever was sent.
class KeyRing {
 public:
  KeyRing(const std::vector<std::string>& api_keys, const std::string& admin_key);

  bool required() const { return !keys_.empty(); }
  bool has_admin() const { return admin_.has_value(); }
  // `authorization`: the header ("Bearer KEY", or "Basic …" with the key as password, which browsers can send);
  // `api_key`: the X-API-Key header. Nothing: the caller may not come in.
  std::optional<Caller> identify(std::string_view authorization, std::string_view api_key) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest digest(std::string_view text);
  static std::string tenant_of(const Digest& key);

  std::vector<Digest> keys_;
  std::optional<Digest> admin_;
};

}  // namespace bam
