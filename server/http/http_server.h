#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/http_context.h"

namespace bam {

// The HTTP front: one per process, because Drogon is. Order of calls: bind(), run(), and quit() from another thread.
class HttpServer {
 public:
  explicit HttpServer(HttpContext& context);
  ~HttpServer();

  // Checks that the address can be listened on and settles the port. Throws Error.
  void bind();
  int port() const { return port_; }
  std::string url() const;
  // Serves until quit(). `on_ready` runs once the listeners accept connections.
  void run(std::function<void()> on_ready);
  // Any thread: closes the listeners and all connections, and lets run() return.
  void quit();

 private:
  void configure();
  void when_listening(std::function<void()> done);

  HttpContext& context_;
  std::string address_;  // numeric
  int port_ = 0;
  std::mutex mutex_;
  bool running_ = false, quit_asked_ = false;  // quit() may come before run() has got so far
};

}  // namespace bam
