// The API's view of HTTP: one request, the reply it gets and the thread that it lives on. server/http implements this;
// tests drive the API with an implementation of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/api/api_error.h"
#include "server/api/request_log.h"

namespace bam {

struct Route;

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
};

// Who asks.
struct Caller {
  // Whose requests and cached prompts these are: made from the key itself, so that it does not change when keys are added
  // or removed. Empty where there is but one key, or none: all callers are one then.
  std::string tenant;
  bool admin = false;
  bool known = true;  // false: no valid key, on a route that answers all the same
};

// A body that is sent as it is made: an event stream, or a reply too large to be put together first. Everything happens
// on the connection's thread.
class ReplyStream {
 public:
  struct Head {
    std::string content_type = "text/event-stream; charset=utf-8";
    Headers headers;
  };
  // Neither is called once close() was. A client that leaves by itself is seen by Call::on_close.
  struct Callbacks {
    // True: more than --max-unsent bytes wait for the reader; false: most of them have left. What is sent all the same
    // is kept, so the sender must stop soon.
    std::function<void(bool full)> on_pressure;
    // Nothing left for --stall-timeout. Runs once; the sender says so and closes.
    std::function<void()> on_stalled;
  };

  virtual ~ReplyStream() = default;
  // Whole events, or any part of another body. Ignored after close().
  virtual void send(std::string bytes) = 0;
  // What on_pressure said last.
  virtual bool is_full() const = 0;
  // No more bytes; the connection stays usable for the next request.
  virtual void close() = 0;
  // Breaks the connection off, so that the client cannot take what it has for the whole.
  virtual void abort() = 0;
};

// One HTTP request and the reply it will get, exactly once. Fields are set before the handler runs and constant after,
// but for `body`, `request_id`, `reply_id` and `log`, which belong to the handler.
class Call : public std::enable_shared_from_this<Call> {
 public:
  virtual ~Call() = default;

  const Route* route = nullptr;
  std::string method, path, path_parameter, query;
  std::string request_id;  // the client's X-Request-Id or our own
  std::string reply_id;    // of a generation, once it has one
  Caller caller;
  std::string body;
  RequestLog log;
  const Clock::time_point started = Clock::now();

  virtual const std::string& header(const std::string& lower_case_name) const = 0;
  // False: the client is gone. Any thread.
  virtual bool is_open() const = 0;
  // Runs the task on the connection's thread, after what was posted before. Any thread.
  virtual void post(std::function<void()> task) = 0;
  // On the connection's thread: the callback runs there once when the client goes away, unless it is forgotten before.
  virtual uint64_t on_close(std::function<void()> callback) = 0;
  virtual void forget(uint64_t ticket) = 0;
  // Frees the body once it has been parsed.
  virtual void drop_body() = 0;

  // Any thread, once; later calls do nothing. Headers that every reply carries are added here.
  virtual void reply(HttpReply reply) = 0;
  void reply(const ApiError& error) { reply(error_reply(error)); }
  void reply_json(std::string json) { reply(HttpReply{.body = std::move(json)}); }
  // What `error` looks like to this client.
  virtual HttpReply error_reply(const ApiError& error);
  // On the connection's thread: answers 200 with a body that follows.
  virtual std::shared_ptr<ReplyStream> open_stream(ReplyStream::Head head, ReplyStream::Callbacks callbacks) = 0;
};

using CallPtr = std::shared_ptr<Call>;

// Threads for what takes longer than an event loop may be kept.
class Workers {
 public:
  // Small and large bodies, and calls that wait for the engine: none of them delays the one before it.
  enum class Lane : uint8_t { kSmall, kLarge, kSlow };

  virtual ~Workers() = default;
  // False when the lane is full. Tasks must not throw.
  virtual bool submit(Lane lane, std::function<void()> task) = 0;
};

}  // namespace bam
