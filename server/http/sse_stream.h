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

// A body that is sent as it is made, an event stream above all. Everything happens on the connection's loop.
class SseStream : public ReplyStream, public std::enable_shared_from_this<SseStream> {
 public:
  SseStream(HttpContext& context, std::shared_ptr<Exchange> exchange, Callbacks callbacks);
  ~SseStream() override;

  // Sends the status line and headers. Bytes may follow at once.
  void open(const Head& head);
  void send(std::string bytes) override;
  bool is_full() const override { return full_; }
  void close() override;
  void abort() override;

 private:
  void attach(drogon::ResponseStreamPtr stream);
  void write(const std::string& events);
  void tick();
  void measure();
  void update_pressure();

  HttpContext& context_;
  std::shared_ptr<Exchange> exchange_;
  Callbacks callbacks_;
  drogon::ResponseStreamPtr stream_;  // null until it is this request's turn on the connection
  std::string backlog_;               // events from before that
  SendMeter meter_;
  Clock::time_point last_progress_ = Clock::now();
  Clock::time_point next_ping_;
  trantor::TimerId timer_ = trantor::InvalidTimerId;
  trantor::TimerId drain_timer_ = trantor::InvalidTimerId;  // while full_: nobody tells when bytes leave
  bool pings_ = true;                                       // only an event stream has a place for comments
  bool full_ = false;
  bool closing_ = false;
};

}  // namespace bam
