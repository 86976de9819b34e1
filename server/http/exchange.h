#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <drogon/HttpRequest.h>
#include <drogon/HttpResponse.h>

#include "engine/request.h"
#include "server/api/api_error.h"
#include "server/http/auth.h"
#include "server/http/connections.h"
#include "server/api/request_log.h"
#include "server/http/router.h"

namespace bam {

struct ServerContext;

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

// One HTTP request and the reply it will get, exactly once. Fields are set before the handler runs and constant after.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using DrogonCallback = std::function<void(const drogon::HttpResponsePtr&)>;
  Exchange(ServerContext& context, const drogon::HttpRequestPtr& request, DrogonCallback callback);
  ~Exchange();
  Exchange(const Exchange&) = delete;

  const Route* route = nullptr;
  std::string method, path, path_parameter;
  std::string request_id;  // the client's X-Request-Id or our own
  Caller caller;
  std::string body;
  RequestLog log;
  const Clock::time_point started = Clock::now();

  const std::string& header(const std::string& lower_case_name) const;
  trantor::EventLoop* loop() const { return loop_; }
  const std::shared_ptr<Connection>& connection() const { return connection_; }
  bool is_open() const { return connection_ && connection_->is_open(); }
  bool is_http10() const;
  // What was wrong with the bytes of the body, if that is why it ended.
  std::optional<std::string> malformed() const;

  // Any thread, once. Headers that every reply carries are added here.
  void reply(HttpReply reply);
  void reply(const ApiError& error) { reply(error_reply(error)); }
  HttpReply error_reply(const ApiError& error);
  void reply_json(std::string json) { reply(HttpReply{.body = std::move(json)}); }
  // On the loop: answers 200 with a chunked body that `ready` receives when this request's turn has come.
  void open_stream(const std::vector<std::pair<std::string, std::string>>& headers,
                   std::function<void(drogon::ResponseStreamPtr)> ready);
  // The chunked body is complete; `unsent` bytes of it are still to leave.
  void stream_done(size_t unsent);

  // Body bytes as they arrive, on the loop. False: over a limit; an error was sent and the rest is ignored.
  bool append_body(const char* data, size_t size);
  void body_received();
  bool answered() const { return answered_.load(std::memory_order_acquire); }
  // Frees the body once it has been parsed.
  void drop_body();

 private:
  drogon::HttpResponsePtr make_response(HttpReply&& reply) const;
  void add_common_headers(const drogon::HttpResponsePtr& response) const;
  void send(const drogon::HttpResponsePtr& response);

  ServerContext& context_;
  drogon::HttpRequestPtr request_;
  DrogonCallback callback_;
  trantor::EventLoop* loop_ = nullptr;
  std::shared_ptr<Connection> connection_;
  std::atomic<bool> answered_{false};
  bool body_complete_ = false;
  size_t accounted_body_ = 0;
};

}  // namespace bam
