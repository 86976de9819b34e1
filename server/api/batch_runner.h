// Requests from a file instead of from connections: {"custom_id", "method", "url", "body"} lines go through the handlers of the
// API, many at once and behind everybody else, and come back as lines of a reply file.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>

#include "server/api/batch_line.h"
#include "server/api/server_context.h"

namespace bam {

class BatchRunner {
 public:
  struct Result {
    std::string custom_id;
    bool ok = false;   // the status is 200
    std::string line;  // of the reply file, without its end
  };

  // `max_in_flight`: lines that are in the engine at once.
  BatchRunner(ServerContext& context, Caller caller, size_t max_in_flight);

  // Takes lines until there are no more, stop() was called or it is `until`, and returns when none is in the engine any
  // more. Lines that were cut off have no result: they are to be done again. Both functions run on the calling thread.
  void run(const std::function<std::optional<std::string>()>& next, const std::function<void(Result)>& done,
           std::optional<Clock::time_point> until = {});
  // Any thread. What is in the engine is cancelled.
  void stop();

  // A line of the reply file for a request that was not asked at all.
  static std::string error_line(const std::string& custom_id, std::string_view code, std::string_view message);

 private:
  struct Line {
    std::string custom_id, url, body;
    std::string id;  // of the request in the engine
  };
  class OfflineCall;

  void start(const std::string& text);
  void submit(Line line);
  // `aborted`: the request was cancelled.
  void finish(Line line, HttpReply reply, bool aborted);
  // Runs one task; waits for it until `until`.
  void run_task(std::optional<Clock::time_point> until);

  ServerContext& context_;
  const Caller caller_;
  const size_t max_in_flight_;
  std::function<void(Result)> done_;
  std::deque<Line> again_;  // the queue was full
  Clock::time_point hold_until_{};
  std::set<std::string> in_flight_;             // request ids
  std::unordered_set<std::string> custom_ids_;  // of all lines so far

  // What happens on the thread of run(). Calls keep it: a late task is put there and never runs.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool stopping = false;

    void push(std::function<void()> task);
    bool is_stopping();
  };
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace bam
