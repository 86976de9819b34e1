#include "server/api/batch_runner.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/json.h"
#include "base/log.h"
#include "server/api/choice_decoder.h"
#include "server/api/route.h"

namespace bam {

namespace {

std::string new_request_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("batch_req_{:016x}{:016x}", random(), random());
}

const Route* route_of(const std::string& url) {
  for (const Route& route : all_routes()) {
    if (route.method == "POST" && route.path == url) return &route;
  }
  return nullptr;
}

std::string result_line(const std::string& custom_id, const std::string& request_id, int status,
                        std::string_view body) {
  return fmt::format(
      R"({{"id":{},"custom_id":{},"response":{{"status_code":{},"request_id":{},"body":{}}},"error":null}})",
      dump_json_string(request_id), dump_json_string(custom_id), status, dump_json_string(request_id), body);
}

}  // namespace

// Nobody waits at the other end of it, and nobody leaves.
class BatchRunner::OfflineCall final : public Call {
 public:
  OfflineCall(BatchRunner& runner, Line line) : runner_(runner), queue_(runner.queue_), line_(std::move(line)) {}

  const std::string& header(const std::string&) const override {
    static const std::string none;
    return none;
  }
  bool is_open() const override { return true; }
  void post(std::function<void()> task) override { queue_->push(std::move(task)); }
  uint64_t on_close(std::function<void()>) override { return 1; }
  void forget(uint64_t) override {}
  void drop_body() override { std::string().swap(body); }
  using Call::reply;
  void reply(HttpReply reply) override {
    if (answered_.exchange(true)) return;
    queue_->push(
        [this, self = shared_from_this(), reply = std::move(reply), aborted = log.finish == kAborted]() mutable {
          runner_.finish(std::move(line_), std::move(reply), aborted);
        });
  }
  // Long replies come in pieces.
  std::shared_ptr<ReplyStream> open_stream(ReplyStream::Head, ReplyStream::Callbacks) override {
    return std::make_shared<Pieces>(std::static_pointer_cast<OfflineCall>(shared_from_this()));
  }

 private:
  class Pieces final : public ReplyStream {
   public:
    explicit Pieces(std::shared_ptr<OfflineCall> call) : call_(std::move(call)) {}
    void send(std::string bytes) override { text_ += bytes; }
    bool is_full() const override { return false; }
    void close() override {
      if (const auto call = std::exchange(call_, nullptr)) call->reply(HttpReply{.body = std::move(text_)});
    }
    void abort() override {
      if (const auto call = std::exchange(call_, nullptr))
        call->reply(ApiError::internal("The answer was broken off."));
    }

   private:
    std::shared_ptr<OfflineCall> call_;
    std::string text_;
  };

  BatchRunner& runner_;  // in tasks of the queue only
  const std::shared_ptr<Queue> queue_;
  Line line_;
  std::atomic<bool> answered_{false};
};

BatchRunner::BatchRunner(ServerContext& context, Caller caller, size_t max_in_flight)
    : context_(context), caller_(std::move(caller)), max_in_flight_(max_in_flight) {}

std::string BatchRunner::error_line(const std::string& custom_id, std::string_view code, std::string_view message) {
  return dump_json({{"id", new_request_id()},
                    {"custom_id", custom_id},
                    {"response", nullptr},
                    {"error", {{"code", code}, {"message", message}}}});
}

void BatchRunner::Queue::push(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  tasks.push_back(std::move(task));
  changed.notify_one();
}

bool BatchRunner::Queue::is_stopping() {
  const std::lock_guard lock(mutex);
  return stopping;
}

void BatchRunner::stop() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->push([this] {
    for (const std::string& id : in_flight_) {
      if (const auto job = context_.jobs.find(caller_.tenant, id)) job->cancel();
    }
  });
}

void BatchRunner::run_task(std::optional<Clock::time_point> until) {
  std::function<void()> task;
  {
    std::unique_lock lock(queue_->mutex);
    const auto ready = [this] { return !queue_->tasks.empty(); };
    if (until) {
      if (!queue_->changed.wait_until(lock, *until, ready)) return;
    } else {
      queue_->changed.wait(lock, ready);
    }
    task = std::move(queue_->tasks.front());
    queue_->tasks.pop_front();
  }
  task();
}

void BatchRunner::run(const std::function<std::optional<std::string>()>& next, const std::function<void(Result)>& done,
                      std::optional<Clock::time_point> until) {
  done_ = done;
  bool more = true;
  while (true) {
    if (until && Clock::now() >= *until && !queue_->is_stopping()) stop();
    const bool stopped = queue_->is_stopping();
    while (!stopped && in_flight_.size() < max_in_flight_ && Clock::now() >= hold_until_ && (more || !again_.empty())) {
      if (!again_.empty()) {
        Line line = std::move(again_.front());
        again_.pop_front();
        submit(std::move(line));
        continue;
      }
      const std::optional<std::string> text = next();
      more = text.has_value();
      if (text) start(*text);
    }
    const bool waits = !stopped && (more || !again_.empty());
    if (in_flight_.empty() && !waits) return;
    std::optional<Clock::time_point> wake = stopped ? std::nullopt : until;
    if (waits && Clock::now() < hold_until_) wake = std::min(hold_until_, wake.value_or(hold_until_));
    run_task(wake);
  }
}

// A line that cannot be read has its result at once.
void BatchRunner::start(const std::string& text) {
  BatchLine read;
  auto error = read_batch_line(text, read);
  if (!error && !custom_ids_.insert(read.custom_id).second)
    error = ApiError::invalid("Another line has this 'custom_id', too.", "custom_id", "duplicate_custom_id");
  if (error) {
    return done_(
        {read.custom_id, false, result_line(read.custom_id, new_request_id(), error->status, error->to_json())});
  }
  Json& body = read.body;
  // Behind everybody who waits at a connection.
  if (!body.contains("priority") || body["priority"].is_null()) body["priority"] = context_.config.max_priority;
  body.erase("request_id");  // custom_id is what tells lines apart
  submit({.custom_id = std::move(read.custom_id), .url = std::move(read.url), .body = dump_json(body)});
}

void BatchRunner::submit(Line line) {
  line.id = new_request_id();
  auto call = std::make_shared<OfflineCall>(*this, line);
  call->route = route_of(line.url);
  call->method = "POST";
  call->path = line.url;
  call->request_id = line.id;
  call->caller = caller_;
  call->body = std::move(line.body);
  in_flight_.insert(line.id);
  try {
    call->route->handler(context_, call);
  } catch (const std::exception& error) {
    log::error("batch {}: {}", call->path, error.what());
    call->reply(ApiError::internal("The request failed inside the server."));
  }
}

void BatchRunner::finish(Line line, HttpReply reply, bool aborted) {
  in_flight_.erase(line.id);
  const bool stopping = queue_->is_stopping();
  if (reply.status == 429 || (reply.status == 503 && !stopping)) {
    int64_t seconds = 1;
    for (const auto& [name, value] : reply.headers) {
      if (name == "retry-after") seconds = std::clamp<int64_t>(std::strtoll(value.c_str(), nullptr, 10), 1, 30);
    }
    hold_until_ = Clock::now() + std::chrono::seconds(seconds);
    again_.push_back(std::move(line));
    return;
  }
  if (stopping && (aborted || reply.status >= 500 || reply.status == 408)) return;
  done_({line.custom_id, reply.status == 200, result_line(line.custom_id, line.id, reply.status, reply.body)});
}

}  // namespace bam
