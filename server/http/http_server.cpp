#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>

#include <drogon/HttpAppFramework.h>
#include <drogon/RequestStream.h>

#include "base/log.h"
#include "server/http/exchange.h"
#include "server/http/router.h"
#include "server/http/site_policy.h"
#include "server/http/tls_files.h"

namespace bam {

namespace {

// Bodies up to this size are parsed on the lane for small ones.
constexpr size_t kSmallBody = 64 * 1024;
// Drogon's own limits would answer with a bare 413; ours answer with JSON.
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
constexpr size_t kTlsHandshakeSeconds = 30;

// Set by the one HttpServer of the process: the hook has no argument of its own.
HttpMetrics* g_metrics = nullptr;

// Where the one HttpServer of the process runs; empty when it does not.
std::string g_running_at;

// A loop of trantor that cannot have the port, since somebody took it after bind() had found it free, calls exit(). No
// destructor may run then: the loops still do.
void on_exit_while_running() {
  if (g_running_at.empty()) return;
  std::fprintf(stderr, "bam serve: cannot listen on %s: somebody else has the port\n", g_running_at.c_str());
  _exit(1);
}

// Something threw in a connection's thread, and trantor has closed that connection.
void on_loop_exception(const std::exception_ptr& exception) {
  if (g_metrics) g_metrics->failed_connections.fetch_add(1, std::memory_order_relaxed);
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    log::error("a connection was closed because of a defect: {}", error.what());
  } catch (...) {
    log::error("a connection was closed because of a defect: unknown exception");
  }
}

// Drogon's messages are about connections of peers; none of them deserves more than a debug line.
void bridge_framework_log() {
  trantor::Logger::setLogLevel(trantor::Logger::kWarn);
  trantor::Logger::setOutputFunction(
      [](const char* text, uint64_t size) {
        std::string_view message(text, size);
        while (message.ends_with('\n')) message.remove_suffix(1);
        log::debug("http: {}", message);
      },
      [] {});
}

ApiError key_required() { return ApiError::unauthorized("A valid API key is required: 'Authorization: Bearer KEY'."); }

std::optional<Caller> identify(HttpContext& context, const Exchange& exchange) {
  auto caller = context.keys.identify(exchange.header("authorization"), exchange.header("x-api-key"));
  if (!caller) context.metrics.rejected_auth.fetch_add(1, std::memory_order_relaxed);
  return caller;
}

// Key and state of the server, for a route that exists.
std::optional<ApiError> admission_error(HttpContext& context, Exchange& exchange) {
  const Route& route = *exchange.route;
  if (route.access != Access::kPublic) {
    const auto caller = route.access == Access::kOpen
                            ? context.keys.identify(exchange.header("authorization"), exchange.header("x-api-key"))
                            : identify(context, exchange);
    if (!caller && route.access != Access::kOpen) return key_required();
    exchange.caller = caller.value_or(Caller{.known = false});
    if (route.access == Access::kAdmin && !exchange.caller.admin) {
      return ApiError::forbidden(context.keys.has_admin()
                                     ? "This route needs the admin key."
                                     : "This route needs an admin key, and the server has none (--admin-key).");
    }
  }
  if (route.admits_work && context.draining.load(std::memory_order_relaxed)) {
    return ApiError::unavailable("The server is shutting down.", "draining", 5);
  }
  if (route.needs_model && !context.model.load(std::memory_order_acquire)) {
    return ApiError::unavailable("The model is still loading.", "loading", 5);
  }
  return std::nullopt;
}

std::optional<ApiError> body_error(const HttpContext& context, const Exchange& exchange) {
  const std::string& encoding = exchange.header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    ApiError error = ApiError::invalid("Compressed request bodies are not accepted.");
    error.status = 415;
    return error;
  }
  // Digits only, at most 18 of them: RequestFraming lets nothing else through.
  const std::string& length = exchange.header("content-length");
  if (!length.empty() && std::strtoull(length.c_str(), nullptr, 10) > context.config.max_body_bytes) {
    return ApiError::too_large(
        fmt::format("The request body is larger than {} bytes (--max-body).", context.config.max_body_bytes));
  }
  return std::nullopt;
}

bool is_cors_request(const HttpContext& context, const Exchange& exchange) {
  return !context.config.cors_origins.empty() && !exchange.header("origin").empty();
}

HttpReply options_reply(const HttpContext& context, const Exchange& exchange, const std::string& allowed) {
  HttpReply reply{.status = 204};
  reply.headers.emplace_back("allow", allowed + ", OPTIONS");
  if (is_cors_request(context, exchange)) {
    reply.headers.emplace_back("access-control-allow-methods", allowed + ", OPTIONS");
    // SDKs add headers of their own: what a page of an allowed origin asks for, it may send.
    const std::string asked = allowed_headers(exchange.header("access-control-request-headers"));
    if (!asked.empty()) reply.headers.emplace_back("access-control-allow-headers", asked);
    reply.headers.emplace_back("access-control-max-age", "86400");
  }
  return reply;
}

// Runs a handler where its route says. No exception leaves it: a bug ends one request with a 500.
void dispatch(HttpContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto task = [&context, exchange] {
    if (!exchange->is_open()) return;  // nobody waits for the answer
    try {
      exchange->route->handler(context, exchange);
    } catch (const std::bad_alloc&) {
      log::error("{} {}: out of memory", exchange->method, exchange->route->path);
      exchange->reply_or_close(ApiError::unavailable("The server is out of memory.", "out_of_memory", 1));
    } catch (const std::exception& error) {
      log::error("{} {}: {}", exchange->method, exchange->route->path, error.what());
      exchange->reply_or_close(ApiError::internal("The request failed inside the server."));
    }
  };
  if (exchange->route->run_on == RunOn::kLoop) {
    task();
    return;
  }
  const auto lane = exchange->route->run_on == RunOn::kSlow ? WorkerPool::Lane::kSlow
                    : exchange->body.size() <= kSmallBody   ? WorkerPool::Lane::kSmall
                                                            : WorkerPool::Lane::kLarge;
  if (!context.workers.submit(lane, std::move(task))) {
    exchange->reply(ApiError::unavailable("Too many requests are being parsed.", "overloaded", 1));
  }
}

// Routes of OpenAI's API that this server is not built with: a client hears so instead of looking for a typing error.
bool is_unbuilt_route(std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  constexpr std::string_view kNames[] = {"/moderations", "/rerank",  "/files",    "/batches",
                                         "/fine_tuning", "/audio",   "/images",   "/assistants",
                                         "/threads",     "/uploads", "/realtime", "/vector_stores"};
  return std::any_of(std::begin(kNames), std::end(kNames), [path](std::string_view name) {
    return path.starts_with(name) && (path.size() == name.size() || path[name.size()] == '/');
  });
}

ApiError forbidden_site(std::string message) {
  ApiError error = ApiError::forbidden(std::move(message));
  error.code = "forbidden_site";
  return error;
}

// A browser that acts for a page of somebody else. With keys there is nothing to gain: the page has none.
std::optional<ApiError> site_error(const HttpContext& context, const Exchange& exchange) {
  if (context.keys.required() || (exchange.route && exchange.route->access == Access::kPublic)) return std::nullopt;
  const std::string& host = exchange.header("host");
  if (!host.empty() && !is_own_host(host, context.config.allowed_hosts)) {
    return forbidden_site(fmt::format(
        "This server does not answer to the name '{}' without API keys; --allowed-hosts names those that are its own.",
        host.substr(0, 200)));
  }
  const bool acts = exchange.method != "GET" && exchange.method != "HEAD" && exchange.method != "OPTIONS";
  const std::string& origin = exchange.header("origin");
  if (acts && is_foreign_origin(origin, host, context.config.cors_origins)) {
    return forbidden_site(fmt::format("Pages of {} may not use this server; --cors-origins names those that may.",
                                      origin.substr(0, 200)));
  }
  return std::nullopt;
}

// What to answer before any of the body is looked at; nothing when the handler shall run.
std::optional<HttpReply> early_reply(HttpContext& context, Exchange& exchange) {
  const RouteMatch match = match_route(all_routes(), exchange.method, exchange.path);
  exchange.route = match.route;
  exchange.path_parameter = match.parameter;
  if (const auto error = site_error(context, exchange)) return exchange.error_reply(*error);
  const bool probe = match.route && (match.route->access == Access::kPublic || match.route->access == Access::kOpen);
  if (exchange.connection()->is_spare() && !probe) {
    context.metrics.refused_connections.fetch_add(1, std::memory_order_relaxed);
    return exchange.error_reply(ApiError::unavailable("Too many connections.", "overloaded", 1));
  }
  if (match.route) {
    std::optional<ApiError> error = admission_error(context, exchange);
    if (!error) error = body_error(context, exchange);
    if (error) return exchange.error_reply(*error);
    return std::nullopt;
  }
  const bool preflight = exchange.method == "OPTIONS" && !match.allowed.empty();
  // Browsers send no key with a preflight.
  if (preflight && is_cors_request(context, exchange)) return options_reply(context, exchange, match.allowed);
  if (context.keys.required() && !identify(context, exchange)) return exchange.error_reply(key_required());
  if (preflight) return options_reply(context, exchange, match.allowed);
  if (match.allowed.empty() && is_unbuilt_route(exchange.path)) {
    return exchange.error_reply(ApiError::not_built(
        fmt::format("This server offers completions and chat; {} is not part of it.", exchange.path.substr(0, 200))));
  }
  if (match.allowed.empty()) {
    return exchange.error_reply(
        ApiError::not_found(fmt::format("There is no route {} {}.", exchange.method, exchange.path.substr(0, 200))));
  }
  ApiError error = ApiError::invalid(
      fmt::format("{} does not answer {}; it answers {}.", exchange.path, exchange.method, match.allowed));
  error.status = 405;
  HttpReply reply = exchange.error_reply(error);
  reply.headers.emplace_back("allow", match.allowed + ", OPTIONS");
  return reply;
}

// A request's headers have arrived. Answers at once, or reads the body and dispatches.
void on_request(HttpContext& context, const drogon::HttpRequestPtr& request, Exchange::DrogonCallback&& callback) {
  auto exchange = std::make_shared<Exchange>(context, request, std::move(callback));
  if (!exchange->connection()) return;  // it is gone, and nobody waits for an answer
  std::optional<HttpReply> early = early_reply(context, *exchange);
  const bool wanted = !early;
  const auto on_data = [exchange, wanted](const char* data, size_t size) {
    if (wanted) exchange->append_body(data, size);
  };
  const auto on_finish = [&context, exchange, wanted](std::exception_ptr error) {
    if (!error) exchange->body_received();
    if (!wanted || exchange->answered()) return;
    if (error) {
      exchange->reply(ApiError::invalid(exchange->malformed().value_or("The client left while sending.")));
    } else {
      dispatch(context, exchange);
    }
  };
  if (wanted && !exchange->header(RequestFraming::kExpectMark).empty()) exchange->connection()->send_continue();
  // Hands over what has arrived already before it returns, so that an early answer knows whether more is to come.
  if (drogon::RequestStreamPtr stream = drogon::internal::createRequestStream(request)) {
    stream->setStreamReader(drogon::RequestStreamReader::newReader(on_data, on_finish));
  } else {
    on_finish(nullptr);
  }
  if (early) exchange->reply(*std::move(early));
}

struct AddressInfo {
  addrinfo* list = nullptr;
  ~AddressInfo() {
    if (list) freeaddrinfo(list);
  }
};

}  // namespace

HttpServer::HttpServer(HttpContext& context) : context_(context) {}

HttpServer::~HttpServer() {
  trantor::EventLoop::exceptionHook() = nullptr;
  g_metrics = nullptr;
}

void HttpServer::bind() {
  const ServerConfig& config = context_.config;
  if (!config.tls_cert.empty()) check_tls_files(config.tls_cert, config.tls_key);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  AddressInfo found;
  const int status = getaddrinfo(config.host.c_str(), std::to_string(config.port).c_str(), &hints, &found.list);
  if (status != 0)
    throw UsageError("--host: '{}' is no address of this machine ({})", config.host, gai_strerror(status));
  // Drogon shares its port between event loops, so a second server on it would go unnoticed; this socket notices.
  const int fd = socket(found.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Error("cannot open a socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int failed = ::bind(fd, found.list->ai_addr, found.list->ai_addrlen) != 0 || listen(fd, 1) != 0 ? errno : 0;
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (failed == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) failed = errno;
  close(fd);
  if (failed != 0) throw Error("cannot listen on {}:{}: {}", config.host, config.port, std::strerror(failed));
  char text[INET6_ADDRSTRLEN] = {};
  if (bound.ss_family == AF_INET6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(&bound);
    inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof(text));
    port_ = ntohs(address->sin6_port);
  } else {
    const auto* address = reinterpret_cast<const sockaddr_in*>(&bound);
    inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
    port_ = ntohs(address->sin_port);
  }
  address_ = text;
}

std::string HttpServer::url() const {
  const bool v6 = address_.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", context_.config.tls_cert.empty() ? "http" : "https",
                     v6 ? "[" + address_ + "]" : address_, port_);
}

void HttpServer::configure() {
  const ServerConfig& config = context_.config;
  bridge_framework_log();
  g_metrics = &context_.metrics;
  trantor::EventLoop::exceptionHook() = on_loop_exception;
  auto& app = drogon::app();
  // Drogon insists on a folder for bodies that it puts into files. Ours stay in memory: it gets a name that can never
  // become one.
  app.setUploadPath("/dev/null/bam-http")
      .setThreadNum(static_cast<size_t>(config.io_threads))
      .setIdleConnectionTimeout(kTlsHandshakeSeconds)
      .setMaxConnectionNum(kNoLimit)  // ConnectionTable counts; Drogon lets one more in
      .setPipeliningRequestsNumber(32)
      .setClientMaxBodySize(kNoLimit)
      .setClientMaxMemoryBodySize(kNoLimit)
      .enableGzip(false)
      .enableBrotli(false)
      .enableSendfile(false)
      .setServerHeaderField("bam/" + context_.version)
      .disableSigtermHandling();
  app.enableRequestStream(true);
  app.setAfterAcceptSockOptCallback([](int fd) {
    // What a peer does not read waits where it is counted and bounded, not in megabytes of kernel memory.
    const int unsent = 64 * 1024;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
  });
  app.addListener(address_, static_cast<uint16_t>(port_), !config.tls_cert.empty(), config.tls_cert, config.tls_key);
  app.setConnectionCallback([this](const trantor::TcpConnectionPtr& tcp) { context_.connections.on_connection(tcp); });
  app.registerPreRoutingAdvice(
      [this](const drogon::HttpRequestPtr& request, drogon::AdviceCallback&& callback, drogon::AdviceChainCallback&&) {
        on_request(context_, request, std::move(callback));
      });
  app.registerPreSendingAdvice([](const drogon::HttpRequestPtr&, const drogon::HttpResponsePtr& response) {
    if (response->getHeader("x-bam-close").empty()) return;
    response->removeHeader("x-bam-close");
    response->setCloseConnection(true);
  });
}

// The framework tells that it begins before its loops listen: this is behind all of them.
void HttpServer::when_listening(std::function<void()> done) {
  drogon::app().getLoop()->queueInLoop([this, done = std::move(done)] {
    auto left = std::make_shared<std::atomic<int>>(context_.config.io_threads);
    for (int i = 0; i < context_.config.io_threads; ++i) {
      drogon::app().getIOLoop(static_cast<size_t>(i))->queueInLoop([left, done] {
        if (--*left == 0) drogon::app().getLoop()->queueInLoop(done);
      });
    }
  });
}

void HttpServer::run(std::function<void()> on_ready) {
  configure();
  auto& app = drogon::app();
  app.registerBeginningAdvice([this, &app, on_ready = std::move(on_ready)] {
    for (int i = 0; i < context_.config.io_threads; ++i) {
      trantor::EventLoop* loop = app.getIOLoop(static_cast<size_t>(i));
      loop->runEvery(1.0, [this, loop] { context_.connections.sweep(loop); });
      if (i == 0) loop->runEvery(1.0, [this] { context_.streams.sweep(Clock::now()); });
    }
    when_listening(on_ready);
    const std::lock_guard lock(mutex_);
    running_ = true;
    if (quit_asked_) app.quit();
  });
  struct Running {
    explicit Running(std::string at) { g_running_at = std::move(at); }
    ~Running() { g_running_at.clear(); }
  } const running(url());
  std::atexit(on_exit_while_running);  // after the framework's own, and so before it
  app.run();
}

void HttpServer::quit() {
  const std::lock_guard lock(mutex_);
  quit_asked_ = true;
  if (running_) drogon::app().quit();
}

}  // namespace bam
