// `bam probe`: is a server ready? For health checks where no other HTTP client is at hand, such as in the image.
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "app/client/http_loop.h"
#include "app/command.h"
#include "app/commands.h"
#include "app/serve_config.h"
#include "app/units.h"

namespace bam {

namespace {

// The address of the server that this environment would start.
std::string local_url() {
  const Environment environment = process_environment();
  const std::string port = environment("BAM_PORT").value_or(std::to_string(ServerConfig().port));
  parse_integer(port, "BAM_PORT", 1, 65535);
  const bool tls = !environment("BAM_TLS_CERT").value_or("").empty();
  return fmt::format("{}://127.0.0.1:{}/readyz", tls ? "https" : "http", port);
}

// The server's reason for not being ready, or the beginning of whatever it said.
std::string reason(const client::HttpResponse& reply) {
  const auto root = nlohmann::json::parse(reply.body, nullptr, false);
  if (root.is_object()) {
    if (const auto error = root.find("error"); error != root.end() && error->is_object()) {
      return error->value("message", reply.body);
    }
  }
  return reply.body.substr(0, 200);
}

int probe(const std::string& url, double timeout_s) {
  // A probe asks this one server, never a proxy in between.
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) unsetenv(name);
  // Who checks his own health knows whom he asks: certificates are made for other names than 127.0.0.1.
  client::HttpSession session({.verify_tls = false});
  const client::HttpResponse reply = session.get(url, timeout_s);
  if (!reply.error.empty()) {
    std::printf("%s: %s\n", url.c_str(), reply.error.c_str());
    return 1;
  }
  std::printf("%s: %d%s%s\n", url.c_str(), reply.status, reply.ok() ? "" : " ",
              reply.ok() ? "" : reason(reply).c_str());
  return reply.ok() ? 0 : 1;
}

}  // namespace

int run_probe(int argc, char** argv) {
  CLI::App app("Asks a server whether it is ready; exit code 0 if it is, 1 if not.", "bam probe");
  std::string url;
  double timeout_s = 4;
  app.add_option("url", url, "default: /readyz on 127.0.0.1, port BAM_PORT or 8000, TLS if BAM_TLS_CERT is set")
      ->type_name("URL");
  app.add_option("--timeout", timeout_s, "seconds to wait for the answer")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  bam probe\n"
      "  bam probe http://127.0.0.1:9000/livez --timeout 1");
  return run_command(app, argc, argv, [&] { return probe(url.empty() ? local_url() : url, timeout_s); });
}

}  // namespace bam
