#include "bench/support/http_client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "app/client/http_loop.h"
#include "app/client/sse_parser.h"
#include "base/error.h"

namespace bam::bench {

namespace {

double seconds_of(client::TimePoint at) { return std::chrono::duration<double>(at.time_since_epoch()).count(); }

// The integers that follow `name` in a JSON text: a number or a flat array. Parsing every event would cost this process
// more than the server spends on it.
std::vector<int32_t> integers_after(std::string_view text, std::string_view name) {
  std::vector<int32_t> values;
  const size_t at = text.find(name);
  if (at == std::string_view::npos) return values;
  const char* p = text.data() + at + name.size();
  const char* end = text.data() + text.size();
  if (p != end && *p == '[') ++p;
  for (int32_t value = 0; p < end; ++p) {
    const auto parsed = std::from_chars(p, end, value);
    if (parsed.ec != std::errc()) break;
    values.push_back(value);
    p = parsed.ptr;
    if (p == end || *p != ',') break;
  }
  return values;
}

class Stream : public client::HttpHandler {
 public:
  // `on_end` hears what went wrong, or nothing. Exceptions must not cross libcurl, which calls us.
  Stream(Reply& reply, std::function<void(const std::string& problem)> on_end)
      : reply_(reply), on_end_(std::move(on_end)) {}

  void on_headers(int status, std::string_view) override { status_ = status; }
  void on_data(std::string_view bytes, client::TimePoint at) override {
    if (status_ != 200) {
      body_.append(bytes.substr(0, 600));
      return;
    }
    parser_.feed(bytes, [&](std::string_view event) { read_event(event, seconds_of(at)); });
  }
  void on_done(const client::HttpOutcome& outcome) override {
    reply_.sent_s = seconds_of(outcome.start);
    if (problem_.empty() && !outcome.error.empty()) problem_ = "a stream failed: " + outcome.error;
    if (problem_.empty() && status_ != 200) problem_ = fmt::format("the server answered {}: {}", status_, body_);
    if (problem_.empty() && !done_) problem_ = "the server closed a stream before [DONE]";
    on_end_(problem_);
  }

 private:
  void read_event(std::string_view event, double at) {
    if (event == "[DONE]") {
      done_ = true;
      return;
    }
    if (event.starts_with("{\"error\"")) problem_ = fmt::format("the server sent {}", event);
    for (const int32_t token : integers_after(event, "\"token_ids\":")) reply_.tokens.push_back(token);
    if (event.find("\"finish_reason\":null") != std::string_view::npos) reply_.arrived(at);
    const auto counts = integers_after(event, "\"completion_tokens\":");
    if (!counts.empty()) reply_.num_tokens = counts[0];
  }

  Reply& reply_;
  std::function<void(const std::string&)> on_end_;
  client::SseParser parser_;
  std::string body_, problem_;
  int status_ = 0;
  bool done_ = false;
};

}  // namespace

std::vector<Reply> run_streams(int port, const std::string& path, const std::vector<std::string>& bodies,
                               size_t concurrency) {
  std::vector<Reply> replies(bodies.size());
  client::HttpLoop loop({.headers = {"Content-Type: application/json"}});
  const std::string url = fmt::format("http://127.0.0.1:{}{}", port, path);
  size_t next = 0;
  std::string failure;
  std::function<void()> send_next = [&] {
    if (next == bodies.size() || !failure.empty()) return;
    const size_t index = next++;
    loop.send({.url = url, .body = bodies[index], .timeout_s = 600},
              std::make_shared<Stream>(replies[index], [&](const std::string& problem) {
                if (failure.empty()) failure = problem;
                send_next();
              }));
  };
  for (size_t i = 0; i < std::min(concurrency, bodies.size()); ++i) send_next();
  loop.run([&] { return failure.empty(); });
  if (!failure.empty()) throw Error("{}", failure);
  return replies;
}

}  // namespace bam::bench
