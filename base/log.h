#pragma once

#include <string_view>

#include <spdlog/spdlog.h>

namespace bam::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

// Routes all messages to stderr. `level`: trace, debug, info, warn, error, off; `format`: text or json (one object per
// line with time, level and message). Throws UsageError for anything else.
void init(std::string_view level, std::string_view format);

// True when lines are JSON objects: callers with structured data then use line().
bool is_json();
// Writes one line as it is, at level info: a whole JSON object built by the caller.
void line(std::string_view json_object);

}  // namespace bam::log
