#include "app/client/completion_call.h"

#include <limits>

#include <fmt/format.h>

#include "app/units.h"

namespace bam::client {
namespace {

using nlohmann::json;

constexpr size_t kMaxEventBytes = 64u << 20;

std::string one_line(std::string_view text) { return excerpt(text, 300); }

int64_t int_or(const json& object, const char* key, int64_t otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

std::string string_or_empty(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string message_of(const json& body) {
  if (!body.is_object()) return {};
  const auto error = body.find("error");
  if (error != body.end()) {
    if (error->is_string()) return error->get<std::string>();
    if (error->is_object()) return string_or_empty(*error, "message");
  }
  return string_or_empty(body, "message");
}

}  // namespace

std::string_view failure_name(Failure failure) {
  switch (failure) {
    case Failure::kNone: return "none";
    case Failure::kConnect: return "connect";
    case Failure::kTimeout: return "timeout";
    case Failure::kHttp: return "http";
    case Failure::kStream: return "stream";
    case Failure::kCancelled: return "cancelled";
  }
  return "?";
}

std::string error_text(int status, std::string_view body) {
  const json parsed = json::parse(body, nullptr, false);
  const std::string message = message_of(parsed);
  return fmt::format("HTTP {}: {}", status, one_line(message.empty() ? body : message));
}

void append_id_array(std::string* out, const std::vector<int32_t>& ids) {
  out->reserve(out->size() + ids.size() * 6 + 2);
  out->push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out->push_back(',');
    const fmt::format_int digits(ids[i]);
    out->append(digits.data(), digits.size());
  }
  out->push_back(']');
}

int64_t CallResult::output_tokens() const {
  return completion_tokens >= 0 ? completion_tokens : static_cast<int64_t>(chunk_times.size());
}

double CallResult::tpot_ms() const {
  const int64_t tokens = output_tokens();
  if (tokens < 2 || !has_first_token()) return std::numeric_limits<double>::quiet_NaN();
  return (e2e_ms() - ttft_ms()) / static_cast<double>(tokens - 1);
}

CompletionCall::CompletionCall(Endpoint endpoint, TimePoint scheduled, OnDone on_done)
    : endpoint_(endpoint), on_done_(std::move(on_done)) {
  result_.scheduled = scheduled;
}

void CompletionCall::fail(Failure failure, std::string message) {
  if (!result_.ok()) return;  // the first cause is the one to show
  result_.failure = failure;
  result_.error = std::move(message);
}

void CompletionCall::on_headers(int status, std::string_view content_type) {
  result_.status = status;
  is_stream_ = status == 200 && content_type.starts_with("text/event-stream");
}

void CompletionCall::on_data(std::string_view bytes, TimePoint at) {
  if (!is_stream_) {
    if (body_.size() + bytes.size() <= kMaxEventBytes) body_.append(bytes);
    return;
  }
  parser_.feed(bytes, [&](std::string_view data) { on_event(data, at); });
  if (parser_.buffered_bytes() > kMaxEventBytes) fail(Failure::kStream, "an event is larger than 64 MiB");
}

void CompletionCall::on_event(std::string_view data, TimePoint at) {
  if (data == "[DONE]") {
    saw_done_ = true;
    return;
  }
  const json event = json::parse(data, nullptr, false);
  if (!event.is_object()) {
    fail(Failure::kStream, fmt::format("an event is not a JSON object: {}", excerpt(data, 80)));
    return;
  }
  if (event.contains("error")) {
    const std::string message = message_of(event);
    fail(Failure::kStream, one_line(message.empty() ? data : message));
    return;
  }
  read_usage(event);
  read_progress(event);
  const auto choices = event.find("choices");
  if (choices != event.end() && choices->is_array() && !choices->empty()) {
    read_choice(choices->front(), at);
  }
}

void CompletionCall::read_choice(const json& choice, TimePoint at) {
  if (!choice.is_object()) return;
  std::string text;
  if (endpoint_ == Endpoint::kCompletions) {
    text = string_or_empty(choice, "text");
  } else {
    const char* holder = is_stream_ ? "delta" : "message";
    if (const auto part = choice.find(holder); part != choice.end() && part->is_object()) {
      text = string_or_empty(*part, "content");
      if (text.empty()) text = string_or_empty(*part, "reasoning_content");
    }
  }
  const std::string reason = string_or_empty(choice, "finish_reason");
  if (!reason.empty()) result_.finish_reason = reason;
  // A role chunk is not a token, and neither is an empty last chunk.
  if (!text.empty()) {
    result_.chunk_times.push_back(at);
    result_.text += text;
    if (listener_.on_text) listener_.on_text(text);
  }
  if (!text.empty() || !reason.empty()) result_.last_choice = at;
}

void CompletionCall::read_progress(const json& body) {
  const auto progress = body.find("prompt_progress");
  if (!listener_.on_progress || progress == body.end() || !progress->is_object()) return;
  const auto number = [&](const char* key, double otherwise) {
    const auto found = progress->find(key);
    return found != progress->end() && found->is_number() ? found->get<double>() : otherwise;
  };
  listener_.on_progress({.processed = int_or(*progress, "processed", 0),
                         .total = int_or(*progress, "total", 0),
                         .time_ms = number("time_ms", 0),
                         .eta_ms = number("eta_ms", -1)});
}

void CompletionCall::read_usage(const json& body) {
  const auto usage = body.find("usage");
  if (usage == body.end() || !usage->is_object()) return;
  result_.prompt_tokens = int_or(*usage, "prompt_tokens", result_.prompt_tokens);
  result_.completion_tokens = int_or(*usage, "completion_tokens", result_.completion_tokens);
  const auto details = usage->find("prompt_tokens_details");
  if (details != usage->end() && details->is_object()) {
    result_.cached_tokens = int_or(*details, "cached_tokens", result_.cached_tokens);
  }
}

void CompletionCall::on_done(const HttpOutcome& outcome) {
  result_.start = outcome.start;
  result_.end = outcome.end;
  result_.connect_ms = outcome.connect_ms;
  if (result_.scheduled == TimePoint{}) result_.scheduled = outcome.start;
  if (!outcome.error.empty()) {
    const bool cancelled = outcome.error == "cancelled";
    fail(cancelled             ? Failure::kCancelled
         : outcome.timed_out   ? Failure::kTimeout
         : result_.status == 0 ? Failure::kConnect
                               : Failure::kStream,
         outcome.error);
  } else if (result_.status != 200) {
    fail(Failure::kHttp, error_text(result_.status, body_));
  } else if (is_stream_) {
    result_.streamed = true;
    parser_.finish([&](std::string_view data) { on_event(data, outcome.end); });
    if (!saw_done_ && result_.finish_reason.empty()) {
      fail(Failure::kStream, "the stream ended without finish_reason and [DONE]");
    }
  } else {
    const json body = json::parse(body_, nullptr, false);
    if (!body.is_object() || !body.contains("choices") || !body["choices"].is_array() || body["choices"].empty()) {
      fail(Failure::kStream, fmt::format("the answer is not a completion: {}", excerpt(body_, 80)));
    } else {
      read_usage(body);
      read_choice(body["choices"].front(), outcome.end);
    }
  }
  if (result_.last_choice == TimePoint{}) result_.last_choice = outcome.end;
  on_done_(std::move(result_));
}

}  // namespace bam::client
