#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <drogon/HttpResponse.h>

#include "server/http/exchange.h"

namespace bam {

// How many bytes of a stream the kernel has not taken yet, from what was queued and what the connection says it sent.
class SendMeter {
 public:
  explicit SendMeter(size_t already_sent = 0) : last_sent_(already_sent) {}
  // `sent`: the connection's counter now. Returns true if it moved.
  bool advance(size_t sent);
  // `size` bytes were queued and the counter stands at `sent` afterwards.
  void queued(size_t size, size_t sent);
  size_t unsent() const { return unsent_; }

 private:
  size_t last_sent_ = 0;
  size_t unsent_ = 0;
};

// An event stream to one client. A reader that falls behind is told of by on_pressure, so that whoever makes the events
// waits for it; one that takes nothing for --stall-timeout, by on_stalled. Everything happens on the connection's loop.
class SseStream : public std::enable_shared_from_this<SseStream> {
 public:
  struct Callbacks {
    // True: more than --max-unsent bytes wait for the reader; false: most of them have left. What is sent all the same
    // is kept, so the sender must stop soon.
    std::function<void(bool full)> on_pressure;
    // Nothing left for --stall-timeout. Runs once; the sender says so and closes.
    std::function<void()> on_stalled;
  };
  SseStream(ServerContext& context, std::shared_ptr<Exchange> exchange, Callbacks callbacks);
  ~SseStream();

  // Sends the status line and headers. Events may follow at once.
  void open(const std::vector<std::pair<std::string, std::string>>& headers);
  // Whole events. Ignored after close().
  void send(std::string events);
  // No more events; the connection stays usable for the next request.
  void close();

 private:
  void attach(drogon::ResponseStreamPtr stream);
  void write(const std::string& events);
  void tick();
  void measure();
  void update_pressure();

  ServerContext& context_;
  std::shared_ptr<Exchange> exchange_;
  Callbacks callbacks_;
  drogon::ResponseStreamPtr stream_;  // null until it is this request's turn on the connection
  std::string backlog_;               // events from before that
  SendMeter meter_;
  Clock::time_point last_progress_ = Clock::now();
  Clock::time_point next_ping_;
  trantor::TimerId timer_ = trantor::InvalidTimerId;
  trantor::TimerId drain_timer_ = trantor::InvalidTimerId;  // while full_: nobody tells when bytes leave
  bool full_ = false;
  bool closing_ = false;
};

}  // namespace bam
