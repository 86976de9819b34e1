#include "server/http/site_policy.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/utf8.h"

namespace bam {

namespace {

// RFC 6761, RFC 6762, RFC 8375, ICANN's reserved .internal, and what cluster name services use.
constexpr std::string_view kOwnSuffixes[] = {".localhost", ".local", ".internal", ".home.arpa",
                                             ".lan",       ".svc",   ".test"};
constexpr size_t kMaxAllowedHeaders = 1024;

bool is_address(const std::string& name) {
  in6_addr ignored{};
  return inet_pton(AF_INET, name.c_str(), &ignored) == 1 || inet_pton(AF_INET6, name.c_str(), &ignored) == 1;
}

}  // namespace

std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return ascii_lower(host.substr(1, std::min(host.find(']'), host.size()) - 1));
  std::string name = ascii_lower(host.substr(0, host.rfind(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

bool is_own_host(std::string_view host, const std::vector<std::string>& allowed) {
  const std::string name = host_name(host);
  if (name.find('.') == std::string::npos || is_address(name)) return true;
  if (std::any_of(std::begin(kOwnSuffixes), std::end(kOwnSuffixes),
                  [&](std::string_view suffix) { return name.ends_with(suffix); })) {
    return true;
  }
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& entry) { return entry == "*" || host_name(entry) == name; });
}

bool is_foreign_origin(std::string_view origin, std::string_view host, const std::vector<std::string>& cors_origins) {
  if (origin.empty()) return false;
  for (const std::string& allowed : cors_origins) {
    if (allowed == "*" || allowed == origin) return false;
  }
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return true;  // "null": a sandboxed frame, a file
  return ascii_lower(origin.substr(scheme + 3)) != ascii_lower(host);
}

std::string allowed_headers(std::string_view requested) {
  std::string result;
  for (const char c : requested.substr(0, kMaxAllowedHeaders)) {
    const bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                      c == '_' || c == ',' || c == ' ';
    if (!good) return {};
    result += c;
  }
  return result;
}

}  // namespace bam
