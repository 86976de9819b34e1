#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/clock.h"

namespace bam::client {

using bam::Clock;  // monotonic: a clock step of the machine cannot bend a latency
using TimePoint = Clock::time_point;

using bam::ms_between;

struct HttpRequest {
  std::string method = "POST";
  std::string url;
  std::string body;
  double timeout_s = 0;  // 0: none
};

struct HttpOutcome {
  int status = 0;
  std::string error;  // transport failure in words; empty when a whole response arrived
  bool timed_out = false;
  bool connect_failed = false;
  TimePoint start;  // just before the request is handed to the socket layer
  TimePoint end;
  double connect_ms = 0;  // DNS + TCP + TLS of this transfer; 0 on a reused connection
};

// Receives one response. Called on the loop's thread only.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void on_headers(int status, std::string_view content_type) = 0;
  // `at` is taken right after recv() returned these bytes.
  virtual void on_data(std::string_view bytes, TimePoint at) = 0;
  virtual void on_done(const HttpOutcome& outcome) = 0;  // always, exactly once
};

struct HttpSettings {
  std::vector<std::string> headers;  // "Authorization: Bearer …"
  bool verify_tls = true;
  bool keep_alive = true;
};

// One thread, epoll, libcurl's socket interface: thousands of connections at a cost per event, not per connection.
// All methods are for the thread that calls run(), callbacks included.
class HttpLoop {
 public:
  explicit HttpLoop(HttpSettings settings);
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;

  // Returns the start time that the outcome will carry.
  TimePoint send(HttpRequest request, std::shared_ptr<HttpHandler> handler);
  void at(TimePoint when, std::function<void()> task);
  // Until no transfer and no task is left, or keep_going (asked after every wake-up) says no; what is in flight
  // then ends with the error "cancelled".
  void run(const std::function<bool()>& keep_going = {});
  size_t num_active() const;

  // How late a timestamp can be: bytes may wait in the kernel while the loop is busy with others.
  struct Health {
    double max_stall_ms = 0;   // longest stretch between two looks at the sockets
    double busy_fraction = 0;  // of the time spent in run()
  };
  Health health() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct HttpResponse {
  int status = 0;
  std::string body;
  std::string error;  // transport failure; empty: `status` and `body` are valid
  bool ok() const { return error.empty() && status >= 200 && status < 300; }
};

// Blocking requests over one kept-alive connection, for set-up work. Not thread-safe.
class HttpSession {
 public:
  explicit HttpSession(HttpSettings settings);
  ~HttpSession();
  HttpResponse get(const std::string& url, double timeout_s = 10);
  HttpResponse post(const std::string& url, const std::string& json, double timeout_s = 60);

 private:
  HttpResponse perform(const std::string& url, const std::string* body, double timeout_s);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lets the process open as many sockets as the hard limit allows; returns the new limit.
int64_t raise_open_file_limit();

// While it lives, the first Ctrl-C (or SIGTERM) only sets a flag; the second one ends the process as usual, unless
// Ctrl-C is to set the flag `every_time`.
class InterruptGuard {
 public:
  explicit InterruptGuard(bool every_time = false);
  ~InterruptGuard();
  static bool interrupted();
};

}  // namespace bam::client
