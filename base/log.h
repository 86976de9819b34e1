// Messages to stderr. What formats and writes them stays behind this header: nearly every file includes it.
#pragma once

#include <cstdint>
#include <string_view>

#include <fmt/core.h>

namespace bam::log {

enum class Level : uint8_t { kDebug, kInfo, kWarn, kError };

// Routes all messages to stderr. `level`: trace, debug, info, warn, error, off; `format`: text or json (one object per
// line with time, level and message). Throws UsageError for anything else.
void init(std::string_view level, std::string_view format);

bool is_enabled(Level level);
void write(Level level, std::string_view text);
void write(Level level, fmt::string_view format, fmt::format_args values);

// debug("text, written as it is"), debug("{} of {}", values…); nothing is formatted below the level that is on.
inline void debug(std::string_view text) { write(Level::kDebug, text); }
inline void info(std::string_view text) { write(Level::kInfo, text); }
inline void warn(std::string_view text) { write(Level::kWarn, text); }
inline void error(std::string_view text) { write(Level::kError, text); }
template <typename... Values>
requires(sizeof...(Values) > 0) void debug(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::kDebug, format, fmt::make_format_args(values...));
}
template <typename... Values>
requires(sizeof...(Values) > 0) void info(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::kInfo, format, fmt::make_format_args(values...));
}
template <typename... Values>
requires(sizeof...(Values) > 0) void warn(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::kWarn, format, fmt::make_format_args(values...));
}
template <typename... Values>
requires(sizeof...(Values) > 0) void error(fmt::format_string<Values...> format, Values&&... values) {
  write(Level::kError, format, fmt::make_format_args(values...));
}

// True when lines are JSON objects: callers with structured data then use line().
bool is_json();
// Writes one line as it is, at level info: a whole JSON object built by the caller.
void line(std::string_view json_object);

}  // namespace bam::log
