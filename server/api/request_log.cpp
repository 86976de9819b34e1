#include "server/api/request_log.h"

#include <chrono>
#include <ctime>

#include <fmt/chrono.h>

#include "base/json.h"
#include "base/log.h"

namespace bam {

namespace {

std::string now_iso8601() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms);
}

// A path as it came, percent signs decoded: a line break in it must not begin a line of the log.
std::string one_line(std::string_view path) {
  constexpr size_t kMost = 512;
  std::string text;
  for (const char c : path.substr(0, kMost)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return path.size() > kMost ? text + "…" : text;
}

double round1(double value) { return std::round(value * 10) / 10; }

}  // namespace

void RequestLog::write() const {
  const log::Level level = is_generation ? log::Level::kInfo : log::Level::kDebug;
  if (!log::is_enabled(level)) return;
  const double rate =
      generated_tokens > 1 && decode_ms > 0 ? static_cast<double>(generated_tokens - 1) * 1000 / decode_ms : 0;
  if (log::is_json()) {
    Json json{{"time", now_iso8601()}, {"level", is_generation ? "info" : "debug"},
              {"message", "request"},  {"id", id},
              {"method", method},      {"path", path},
              {"peer", peer},          {"status", status}};
    if (is_generation) {
      json["prompt_tokens"] = prompt_tokens;
      json["cached_tokens"] = cached_tokens;
      json["generated_tokens"] = generated_tokens;
      json["ttft_ms"] = ttft_ms < 0 ? Json() : Json(round1(ttft_ms));
      json["tokens_per_second"] = round1(rate);
      json["finish"] = finish.empty() ? Json() : Json(finish);
    }
    json["total_ms"] = round1(total_ms);
    if (!error.empty()) json["error"] = error;
    if (!prompt.empty()) json["prompt"] = prompt;
    log::line(dump_json(json));
    return;
  }
  std::string text = fmt::format("{} {} {} {} {:.1f} ms", id, method, one_line(path), status, total_ms);
  if (is_generation) {
    text += fmt::format(" | prompt {} (cached {}) generated {}", prompt_tokens, cached_tokens, generated_tokens);
    if (ttft_ms >= 0) text += fmt::format(" | ttft {:.1f} ms, {:.1f} tok/s", ttft_ms, rate);
    if (!finish.empty()) text += " | " + finish;
  }
  if (!error.empty()) text += " | " + dump_json_string(error);
  if (!prompt.empty()) text += " | " + dump_json_string(prompt);
  log::write(level, text);
}

}  // namespace bam
