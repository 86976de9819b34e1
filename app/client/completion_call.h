#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/http_loop.h"
#include "app/client/sse_parser.h"

namespace bam::client {

enum class Endpoint { kCompletions, kChat };

enum class Failure { kNone, kConnect, kTimeout, kHttp, kStream, kCancelled };
std::string_view failure_name(Failure failure);

// One finished call. Token counts are -1 where the server did not say.
struct CallResult {
  TimePoint scheduled{};               // when the load plan wanted it sent; == start in a closed loop
  TimePoint start{};                   // handed to the socket
  TimePoint end{};                     // last byte
  std::vector<TimePoint> chunk_times;  // arrivals of events that carried text
  TimePoint last_choice{};             // the last event with a choice: text or finish_reason
  std::string text;
  std::string finish_reason;
  int64_t prompt_tokens = -1;
  int64_t completion_tokens = -1;
  int64_t cached_tokens = -1;
  int status = 0;
  double connect_ms = 0;
  bool streamed = false;  // false: the server answered with one JSON body, TTFT is then unknown
  Failure failure = Failure::kNone;
  std::string error;

  bool ok() const { return failure == Failure::kNone; }
  bool has_first_token() const { return streamed && !chunk_times.empty(); }
  // The definitions of `vllm bench serve`, in ms. Valid for calls that are ok().
  double ttft_ms() const { return ms_between(start, chunk_times.front()); }
  double e2e_ms() const { return ms_between(start, last_choice); }
  // Tokens produced: the server's count, else one per event.
  int64_t output_tokens() const;
  double tpot_ms() const;  // (E2E - TTFT) / (out - 1); NaN for fewer than two tokens
};

// "prompt_progress" of a stream that was asked for it (return_progress): ours and llama.cpp's.
struct PromptProgress {
  int64_t processed = 0, total = 0;
  double time_ms = 0;
  double eta_ms = -1;  // -1: the server does not say
};

// For who wants to see an answer grow.
struct CallListener {
  std::function<void(const std::string& text)> on_text;
  std::function<void(const PromptProgress&)> on_progress;
};

// Reads the answer of /v1/completions or /v1/chat/completions, streaming or not, and reports once.
class CompletionCall : public HttpHandler {
 public:
  using OnDone = std::function<void(CallResult&&)>;
  CompletionCall(Endpoint endpoint, TimePoint scheduled, OnDone on_done);

  // Before the call is sent.
  void listen(CallListener listener) { listener_ = std::move(listener); }

  void on_headers(int status, std::string_view content_type) override;
  void on_data(std::string_view bytes, TimePoint at) override;
  void on_done(const HttpOutcome& outcome) override;

 private:
  void on_event(std::string_view data, TimePoint at);
  void read_choice(const nlohmann::json& choice, TimePoint at);
  void read_usage(const nlohmann::json& body);
  void read_progress(const nlohmann::json& body);
  void fail(Failure failure, std::string message);

  Endpoint endpoint_;
  OnDone on_done_;
  CallListener listener_;
  CallResult result_;
  SseParser parser_;
  std::string body_;  // of an answer that is not an event stream
  bool is_stream_ = false;
  bool saw_done_ = false;
};

// {"error":{"message":…}}, {"error":"…"}, {"message":…} or the start of the body, in one line.
std::string error_text(int status, std::string_view body);

// Appends `"name":[1,2,3]` quickly: a prompt of 500K ids is serialised in milliseconds, outside of any timing.
void append_id_array(std::string* out, const std::vector<int32_t>& ids);

}  // namespace bam::client
