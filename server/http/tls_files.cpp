#include "server/http/tls_files.h"

#include <memory>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/error.h"

namespace bam {

namespace {

// What OpenSSL says about the last failure, in one line.
std::string reason() {
  const char* text = ERR_reason_error_string(ERR_peek_last_error());
  const std::string result = text ? text : "unknown format";
  ERR_clear_error();
  return result;
}

}  // namespace

void check_tls_files(const std::string& cert, const std::string& key) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context) throw Error("TLS is not available: {}", reason());
  // A key with a passphrase must not wait for somebody at the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });
  if (SSL_CTX_use_certificate_chain_file(context.get(), cert.c_str()) != 1) {
    throw UsageError("--tls-cert: {} is no certificate chain in PEM format ({})", cert, reason());
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
    throw UsageError("--tls-key: {} is no private key in PEM format without a passphrase that fits {} ({})", key, cert,
                     reason());
  }
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    throw UsageError("--tls-key: {} does not belong to {} ({})", key, cert, reason());
  }
}

}  // namespace bam
