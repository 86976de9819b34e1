#include "server/http/exchange.h"

#include <random>

#include <fmt/format.h>

#include "base/describe.h"
#include "base/log.h"
#include "server/http/http_context.h"
#include "server/http/sse_stream.h"

namespace bam {

namespace {

std::string random_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

// A reply whose connection must close is marked here, because Drogon decides that by the request alone.
constexpr const char* kCloseMark = "x-bam-close";

}  // namespace

Exchange::Exchange(HttpContext& context, const drogon::HttpRequestPtr& request, DrogonCallback callback)
    : context_(context),
      request_(request),
      callback_(std::move(callback)),
      loop_(trantor::EventLoop::getEventLoopOfCurrentThread()) {
  method = request->isHead() ? "HEAD" : request->methodString();
  if (method == RequestFraming::kMethodAlias) method = request->getHeader(RequestFraming::kMethodMark);
  path = request->path();
  query = request->query();
  const std::string& given = request->getHeader("x-request-id");
  request_id = is_valid_request_id(given) ? given : random_id();
  if (const auto tcp = request->getConnectionPtr().lock()) {
    connection_ = context_.connections.find(tcp);
    log.peer = tcp->peerAddr().toIp();
  }
  if (connection_) number_ = connection_->request_begun();
}

Exchange::~Exchange() {
  context_.metrics.body_bytes.fetch_sub(static_cast<int64_t>(accounted_body_), std::memory_order_relaxed);
}

const std::string& Exchange::header(const std::string& lower_case_name) const {
  return request_->getHeader(lower_case_name);
}

bool Exchange::is_http10() const { return request_->version() == drogon::Version::kHttp10; }

std::optional<std::string> Exchange::malformed() const {
  if (!connection_ || connection_->malformed().empty()) return std::nullopt;
  return connection_->malformed();
}

bool Exchange::append_body(const char* data, size_t size) {
  if (answered()) return false;
  const uint64_t limit = context_.config.max_body_bytes;
  if (size > limit - std::min<uint64_t>(limit, body.size())) {
    reply(ApiError::too_large(fmt::format("The request body is larger than {} bytes (--max-body).", limit)));
    drop_body();
    return false;
  }
  // All bodies together: many clients at once must not add up to the machine's memory.
  const int64_t budget = static_cast<int64_t>(std::max<uint64_t>(8 * limit, 512ull << 20));
  if (context_.metrics.body_bytes.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed) +
          static_cast<int64_t>(size) >
      budget) {
    accounted_body_ += size;
    reply(ApiError::unavailable("Too many request bodies are being received.", "overloaded", 1));
    drop_body();
    return false;
  }
  accounted_body_ += size;
  body.append(data, size);
  return true;
}

void Exchange::body_received() {
  body_complete_ = true;
  if (connection_) connection_->body_complete();
}

void Exchange::drop_body() {
  std::string().swap(body);  // an assignment would keep the memory
  context_.metrics.body_bytes.fetch_sub(static_cast<int64_t>(accounted_body_), std::memory_order_relaxed);
  accounted_body_ = 0;
}

void Exchange::add_common_headers(const drogon::HttpResponsePtr& response) const {
  response->addHeader("x-request-id", request_id);
  response->addHeader("request-id", request_id);  // where some clients look for it
  const std::string& origin = request_->getHeader("origin");
  if (!origin.empty()) {
    for (const std::string& allowed : context_.config.cors_origins) {
      if (allowed != "*" && allowed != origin) continue;
      response->addHeader("access-control-allow-origin", allowed == "*" ? "*" : origin);
      response->addHeader("access-control-expose-headers", "x-request-id, x-ignored-fields, x-stream-id, retry-after");
      if (allowed != "*") response->addHeader("vary", "Origin");
      break;
    }
  }
  // A body still on its way could be taken for the next request.
  if (!body_complete_ || (connection_ && connection_->is_spare())) response->addHeader(kCloseMark, "1");
}

drogon::HttpResponsePtr Exchange::make_response(HttpReply&& reply) const {
  auto response = drogon::HttpResponse::newHttpResponse();
  response->setStatusCode(static_cast<drogon::HttpStatusCode>(reply.status));
  if (reply.status != 204 && reply.status != 304) {
    response->setContentTypeString(reply.content_type);
    response->setBody(std::move(reply.body));
  }
  for (const auto& [name, value] : reply.headers) response->addHeader(name, value);
  add_common_headers(response);
  return response;
}

void Exchange::post(std::function<void()> task) {
  auto self = std::static_pointer_cast<Exchange>(shared_from_this());
  loop_->queueInLoop([self, task = std::move(task)] {
    if (!trantor::EventLoop::guarded(task)) self->close();
  });
}

void Exchange::close() noexcept {
  const auto tcp = connection_ ? connection_->tcp().lock() : nullptr;
  if (tcp) trantor::EventLoop::guarded([&] { tcp->forceClose(); });
}

void Exchange::send(const drogon::HttpResponsePtr& response) {
  auto self = std::static_pointer_cast<Exchange>(shared_from_this());
  const auto task = [self, response] {
    const bool closes = response->getHeader(kCloseMark) == "1";
    if (self->connection_) {
      self->connection_->expect_sent(response->getBody().size());
      self->connection_->request_done(self->number_, closes);
    }
    if (self->callback_) self->callback_(response);
    self->callback_ = nullptr;  // holds the connection
  };
  loop_->runInLoop([self, task] {
    if (!trantor::EventLoop::guarded(task)) self->close();
  });
}

void Exchange::reply(HttpReply reply) {
  if (answered_.exchange(true)) return;
  log.status = reply.status;
  log.id = request_id;
  log.method = method;
  log.path = path;
  log.total_ms = std::chrono::duration<double, std::milli>(Clock::now() - started).count();
  context_.metrics.count_response(route ? route->path : "other", reply.status);
  try {
    send(make_response(std::move(reply)));
  } catch (...) {
    close();  // it counts as answered: nobody else would
    throw;
  }
  log.write();
}

void Exchange::reply_or_close(const ApiError& error) noexcept {
  try {
    reply(error);
  } catch (const std::exception& failure) {
    bam::log::error("{} {}: no reply could be made: {}", method, path, describe(failure));
    close();
  }
}

std::shared_ptr<ReplyStream> Exchange::open_stream(ReplyStream::Head head, ReplyStream::Callbacks callbacks) {
  auto self = std::static_pointer_cast<Exchange>(shared_from_this());
  auto stream = std::make_shared<SseStream>(context_, std::move(self), std::move(callbacks));
  stream->open(head);
  return stream;
}

void Exchange::begin_body(const ReplyStream::Head& head, std::function<void(drogon::ResponseStreamPtr)> ready) {
  if (answered_.exchange(true)) return;
  context_.metrics.count_response(route ? route->path : "other", 200);
  auto shared_ready = std::make_shared<std::function<void(drogon::ResponseStreamPtr)>>(std::move(ready));
  auto response = drogon::HttpResponse::newAsyncStreamResponse(
      [shared_ready](drogon::ResponseStreamPtr stream) { (*shared_ready)(std::move(stream)); }, true);
  response->setContentTypeString(head.content_type);
  response->addHeader("cache-control", "no-cache");
  response->addHeader("x-accel-buffering", "no");  // proxies must pass every event on at once
  for (const auto& [name, value] : head.headers) response->addHeader(name, value);
  add_common_headers(response);
  // HTTP/1.0 knows no chunks: its streams end with the connection.
  if (is_http10()) response->addHeader(kCloseMark, "1");
  if (callback_) callback_(response);
  callback_ = nullptr;
}

void Exchange::stream_done(size_t unsent) {
  if (!connection_) return;
  connection_->expect_sent(unsent);
  connection_->request_done(number_, false);
}

}  // namespace bam
