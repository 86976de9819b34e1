#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <drogon/HttpRequest.h>
#include <drogon/HttpResponse.h>

#include "server/api/call.h"
#include "server/api/route.h"
#include "server/http/connections.h"

namespace bam {

struct HttpContext;

// A Call over Drogon.
class Exchange : public Call {
 public:
  using DrogonCallback = std::function<void(const drogon::HttpResponsePtr&)>;
  Exchange(HttpContext& context, const drogon::HttpRequestPtr& request, DrogonCallback callback);
  ~Exchange() override;
  Exchange(const Exchange&) = delete;

  const std::string& header(const std::string& lower_case_name) const override;
  bool is_open() const override { return connection_ && connection_->is_open(); }
  // A task that throws ends the connection: only the loop would hear of it, and the client would wait for ever.
  void post(std::function<void()> task) override;
  uint64_t on_close(std::function<void()> callback) override { return connection_->on_close(std::move(callback)); }
  void forget(uint64_t ticket) override { connection_->forget(ticket); }
  void drop_body() override;
  using Call::reply;
  void reply(HttpReply reply) override;
  // For a handler that failed: where there is no memory even for the error, the connection ends. Never throws.
  void reply_or_close(const ApiError& error) noexcept;
  std::shared_ptr<ReplyStream> open_stream(ReplyStream::Head head, ReplyStream::Callbacks callbacks) override;

  trantor::EventLoop* loop() const { return loop_; }
  const std::shared_ptr<Connection>& connection() const { return connection_; }
  bool is_http10() const;
  // What was wrong with the bytes of the body, if that is why it ended.
  std::optional<std::string> malformed() const;
  bool answered() const { return answered_.load(std::memory_order_acquire); }

  // On the loop: sends the head of a body that `ready` may write to when this request's turn has come.
  void begin_body(const ReplyStream::Head& head, std::function<void(drogon::ResponseStreamPtr)> ready);
  // That body is complete; `unsent` bytes of it are still to leave.
  void stream_done(size_t unsent);

  // Body bytes as they arrive, on the loop. False: over a limit; an error was sent and the rest is ignored.
  bool append_body(const char* data, size_t size);
  void body_received();

 private:
  drogon::HttpResponsePtr make_response(HttpReply&& reply) const;
  void add_common_headers(const drogon::HttpResponsePtr& response) const;
  void send(const drogon::HttpResponsePtr& response);
  void close() noexcept;

  HttpContext& context_;
  drogon::HttpRequestPtr request_;
  DrogonCallback callback_;
  trantor::EventLoop* loop_ = nullptr;
  std::shared_ptr<Connection> connection_;
  std::atomic<bool> answered_{false};
  uint64_t number_ = 0;  // on its connection
  bool body_complete_ = false;
  size_t accounted_body_ = 0;
};

}  // namespace bam
