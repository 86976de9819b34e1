// The API's port driven by hand: a loop that runs when the test says so, workers that do, and a client that the test
// plays.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api/call.h"

namespace bam::testing {

// Tasks in order, run by the test's thread.
class ManualQueue {
 public:
  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  bool run_one() {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }
  void run_all() {
    while (run_one()) {
    }
  }
  // The last task overtakes the others, as it could have come first.
  void rotate() {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) return;
    tasks_.push_front(std::move(tasks_.back()));
    tasks_.pop_back();
  }
  // Until another thread has put something here.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !tasks_.empty(); });
  }
  size_t size() {
    const std::lock_guard lock(mutex_);
    return tasks_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
};

class ManualWorkers : public Workers {
 public:
  bool submit(Lane, std::function<void()> task) override {
    if (full) return false;
    queue.push(std::move(task));
    return true;
  }
  ManualQueue queue;
  bool full = false;
};

class FakeStream : public ReplyStream {
 public:
  explicit FakeStream(Head stream_head, Callbacks stream_callbacks)
      : head(std::move(stream_head)), callbacks(std::move(stream_callbacks)) {}

  void send(std::string bytes) override {
    if (closed) return;
    longest_send = std::max(longest_send, bytes.size());
    text += bytes;
    ++num_sends;
  }
  bool is_full() const override { return full; }
  void close() override {
    closed = true;
    callbacks = {};
  }
  void abort() override {
    aborted = true;
    close();
  }
  // What the HTTP side does when the reader falls behind, or catches up.
  void set_full(bool now) {
    full = now;
    if (callbacks.on_pressure) callbacks.on_pressure(now);
  }

  // The JSON of every event but "[DONE]".
  std::vector<Json> events() const {
    std::vector<Json> list;
    for (size_t at = 0, end; at < text.size(); at = end + 2) {
      end = text.find("\n\n", at);
      const std::string event = text.substr(at, end - at);
      if (event.starts_with("data: {")) list.push_back(Json::parse(event.substr(6)));
    }
    return list;
  }
  bool done() const { return text.ends_with("data: [DONE]\n\n"); }

  const Head head;
  Callbacks callbacks;
  std::string text;
  size_t num_sends = 0, longest_send = 0;
  bool full = false, closed = false;
  bool aborted = false;
};

class FakeCall : public Call {
 public:
  const std::string& header(const std::string& name) const override {
    static const std::string none;
    const auto it = headers.find(name);
    return it == headers.end() ? none : it->second;
  }
  bool is_open() const override { return open; }
  void post(std::function<void()> task) override { loop.push(std::move(task)); }
  uint64_t on_close(std::function<void()> callback) override {
    close_callbacks.emplace(next_ticket, std::move(callback));
    return next_ticket++;
  }
  void forget(uint64_t ticket) override { close_callbacks.erase(ticket); }
  void drop_body() override { std::string().swap(body); }
  using Call::reply;
  void reply(HttpReply now) override {
    const std::lock_guard lock(mutex);
    if (!answer) answer = std::move(now);
  }
  std::shared_ptr<ReplyStream> open_stream(ReplyStream::Head head, ReplyStream::Callbacks callbacks) override {
    stream = std::make_shared<FakeStream>(std::move(head), std::move(callbacks));
    return stream;
  }

  // The client goes away; on the loop.
  void disconnect() {
    open = false;
    for (auto& [ticket, callback] : std::exchange(close_callbacks, {})) callback();
  }

  ManualQueue loop;
  std::map<std::string, std::string> headers;
  std::atomic<bool> open{true};
  uint64_t next_ticket = 1;
  std::map<uint64_t, std::function<void()>> close_callbacks;
  std::mutex mutex;
  std::optional<HttpReply> answer;
  std::shared_ptr<FakeStream> stream;
};

}  // namespace bam::testing
