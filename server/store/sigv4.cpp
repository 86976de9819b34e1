#include "server/store/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <ctime>

#include "base/error.h"

namespace bam {

namespace {

using Bytes = std::vector<unsigned char>;

std::string hex(const Bytes& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

Bytes sha256(const void* data, size_t size) {
  Bytes digest(32);
  if (EVP_Digest(data, size, digest.data(), nullptr, EVP_sha256(), nullptr) != 1) throw Error("SHA-256 failed");
  return digest;
}

Bytes hmac(const Bytes& key, const std::string& text) {
  Bytes digest(32);
  unsigned int length = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, text.size(), digest.data(), &length)) {
    throw Error("HMAC failed");
  }
  return digest;
}

}  // namespace

std::vector<std::string> sign_request(const S3Credentials& credentials, const S3Request& request) {
  const std::string payload = hex(sha256(request.body.data(), request.body.size()));
  // In the order of their names.
  std::string names = "host;x-amz-content-sha256;x-amz-date";
  std::vector<std::string> headers = {"x-amz-content-sha256: " + payload, "x-amz-date: " + request.date};
  std::string lines =
      fmt::format("host:{}\nx-amz-content-sha256:{}\nx-amz-date:{}\n", request.host, payload, request.date);
  if (!credentials.session_token.empty()) {
    names += ";x-amz-security-token";
    lines += fmt::format("x-amz-security-token:{}\n", credentials.session_token);
    headers.push_back("x-amz-security-token: " + credentials.session_token);
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, request.query, lines, names, payload);

  const std::string day = request.date.substr(0, 8);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, credentials.region);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", request.date, scope, hex(sha256(canonical.data(), canonical.size())));
  const std::string first = "AWS4" + credentials.secret;
  Bytes key(first.begin(), first.end());
  for (const std::string& part : {day, credentials.region, std::string("s3"), std::string("aws4_request")}) {
    key = hmac(key, part);
  }
  headers.push_back(fmt::format("Authorization: AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                                credentials.id, scope, names, hex(hmac(key, to_sign))));
  return headers;
}

std::string request_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &utc)};
}

}  // namespace bam
