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

// An event stream to one client. Bounded: a reader that falls too far behind, or takes nothing for too long, is cut
// off. Everything happens on the connection's loop.
class SseStream : public std::enable_shared_from_this<SseStream> {
 public:
  // `on_lost` runs at most once, when the client is cut off for not reading; a client that leaves by itself is seen by
  // the connection's own callback.
  SseStream(ServerContext& context, std::shared_ptr<Exchange> exchange, std::function<void()> on_lost);
  ~SseStream();

  // Sends the status line and headers. Events may follow at once.
  void open(const std::vector<std::pair<std::string, std::string>>& headers);
  // Whole events. Ignored once the client is lost.
  void send(std::string events);
  // No more events; the connection stays usable for the next request.
  void close();

 private:
  void attach(drogon::ResponseStreamPtr stream);
  void write(const std::string& events);
  void tick();
  void lose(const char* why);

  ServerContext& context_;
  std::shared_ptr<Exchange> exchange_;
  std::function<void()> on_lost_;
  drogon::ResponseStreamPtr stream_;  // null until it is this request's turn on the connection
  std::string backlog_;               // events from before that
  SendMeter meter_;
  Clock::time_point last_progress_ = Clock::now();
  Clock::time_point next_ping_;
  trantor::TimerId timer_ = trantor::InvalidTimerId;
  bool closing_ = false;
  bool lost_ = false;
};

}  // namespace bam
