#include "base/log.h"

#include <array>
#include <memory>
#include <string>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/error.h"

namespace bam::log {

namespace {

bool json_lines = false;
std::shared_ptr<spdlog::logger> raw_logger;

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: break;
  }
  return spdlog::level::err;
}

// %*: the message as the inside of a JSON string.
class JsonEscapedPayload : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& msg, const std::tm&, spdlog::memory_buf_t& out) override {
    for (const char c : msg.payload) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (byte < 0x20) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
      } else {
        out.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonEscapedPayload>(); }
};

}  // namespace

void init(std::string_view level, std::string_view format) {
  static constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warn", "error", "off"};
  bool known = false;
  for (std::string_view name : kLevels) known = known || name == level;
  if (!known) throw UsageError("--log-level: '{}' is not one of trace, debug, info, warn, error, off", level);
  if (format != "text" && format != "json") {
    throw UsageError("--log-format: '{}' is not one of text, json", format);
  }
  json_lines = format == "json";
  auto logger = std::make_shared<spdlog::logger>("bam", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::from_str(std::string(level)));
  if (json_lines) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonEscapedPayload>('*');
    formatter->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%*"})");
    logger->set_formatter(std::move(formatter));
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
  }
  raw_logger = std::make_shared<spdlog::logger>("raw", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  raw_logger->set_level(logger->level());
  raw_logger->set_pattern("%v");
  spdlog::set_default_logger(std::move(logger));
}

bool is_enabled(Level level) { return spdlog::default_logger_raw()->should_log(level_of(level)); }

void write(Level level, std::string_view text) { spdlog::default_logger_raw()->log(level_of(level), text); }

void write(Level level, fmt::string_view format, fmt::format_args values) {
  if (is_enabled(level)) write(level, fmt::vformat(format, values));
}

bool is_json() { return json_lines; }

void line(std::string_view json_object) {
  if (raw_logger) raw_logger->info(json_object);
}

}  // namespace bam::log
