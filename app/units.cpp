#include "app/units.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace bam {

namespace {

// Reads the leading number and returns what follows it, lower-cased and without blanks.
double leading_number(std::string_view text, std::string_view origin, const char* what, std::string& unit) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) {
    throw UsageError("{}: '{}' is not {}", origin, text, what);
  }
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  return number;
}

}  // namespace

uint64_t parse_bytes(std::string_view text, std::string_view origin) {
  static const std::map<std::string, double> units = {
      {"", 1},         {"b", 1},      {"k", 1024}, {"kb", 1e3},     {"kib", 1024}, {"m", 0x1p20}, {"mb", 1e6},
      {"mib", 0x1p20}, {"g", 0x1p30}, {"gb", 1e9}, {"gib", 0x1p30}, {"t", 0x1p40}, {"tb", 1e12},  {"tib", 0x1p40}};
  std::string unit;
  const double number = leading_number(text, origin, "a size such as 8GiB", unit);
  const auto it = units.find(unit);
  if (it == units.end() || number * it->second > 0x1p60)
    throw UsageError("{}: '{}' is not a size such as 8GiB", origin, text);
  return static_cast<uint64_t>(number * it->second);
}

double parse_seconds(std::string_view text, std::string_view origin) {
  static const std::map<std::string, double> units = {{"", 1},   {"s", 1},    {"ms", 1e-3},
                                                      {"m", 60}, {"min", 60}, {"h", 3600}};
  std::string unit;
  const double number = leading_number(text, origin, "a time such as 30s", unit);
  const auto it = units.find(unit);
  if (it == units.end() || number * it->second > 1e9)
    throw UsageError("{}: '{}' is not a time such as 30s", origin, text);
  return number * it->second;
}

std::string format_range(double min, double max) {
  constexpr double kNobodyMeansThat = 2e9;
  return max > kNobodyMeansThat ? fmt::format("of at least {}", min) : fmt::format("from {} to {}", min, max);
}

int64_t parse_integer(std::string_view text, std::string_view origin, int64_t min, int64_t max) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) {
    throw UsageError("{}: '{}' is not a whole number {}", origin, text,
                     format_range(static_cast<double>(min), static_cast<double>(max)));
  }
  return number;
}

double parse_number(std::string_view text, std::string_view origin, double min, double max) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= min && number <= max)) {
    throw UsageError("{}: '{}' is not a number {}", origin, text, format_range(min, max));
  }
  return number;
}

void check_one_of(const std::string& value, std::string_view origin, const std::string& choices) {
  const std::vector<std::string> names = split(choices, '|');
  if (std::find(names.begin(), names.end(), value) == names.end()) {
    throw UsageError("{}: '{}' is not one of {}", origin, value, choices);
  }
}

double parse_number(std::string_view text, std::string_view what) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    throw UsageError("{}: '{}' is not a number", what, text);
  }
  return value;
}

int64_t parse_count(std::string_view text, std::string_view what) {
  double factor = 1;
  std::string_view digits = text;
  if (!digits.empty()) {
    const char unit = static_cast<char>(std::tolower(static_cast<unsigned char>(digits.back())));
    if (unit == 'k') factor = 1024;
    if (unit == 'm') factor = 1024.0 * 1024;
    if (factor != 1) digits.remove_suffix(1);
  }
  if (digits.empty()) throw UsageError("{}: '{}' is not a count (512, 64k, 1m)", what, text);
  const double value = parse_number(digits, what) * factor;
  if (value < 0 || value > 1e12 || value != std::floor(value)) {
    throw UsageError("{}: '{}' is not a whole count (512, 64k, 1m)", what, text);
  }
  return static_cast<int64_t>(value);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == text.npos ? end : end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::vector<int64_t> parse_count_list(std::string_view text, std::string_view what) {
  std::vector<int64_t> counts;
  for (const std::string& part : split(text, ',')) counts.push_back(parse_count(part, what));
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::string format_count(int64_t n) {
  if (n >= 1024 * 1024 && n % (1024 * 1024) == 0) return fmt::format("{}M", n / (1024 * 1024));
  if (n >= 1024 && n % 1024 == 0) return fmt::format("{}K", n / 1024);
  return fmt::format("{}", n);
}

std::string format_thousands(int64_t n) {
  std::string digits = fmt::format("{}", n < 0 ? -n : n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return n < 0 ? "-" + digits : digits;
}

std::string format_value(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 1 || size == 0) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3g}", value);
}

std::string format_ms(double ms) {
  if (!std::isfinite(ms)) return "–";
  if (ms < 0) return "-" + format_ms(-ms);
  if (ms < 1000) return fmt::format("{:.{}f} ms", ms, ms < 10 ? 2 : ms < 100 ? 1 : 0);
  const double seconds = ms / 1000;
  if (seconds < 120) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 1);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 7200) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_remaining(double ms) {
  const auto seconds = static_cast<int64_t>(std::ceil(std::max(ms, 1.0) / 1000));
  return seconds < 120 ? fmt::format("{} s", seconds) : format_ms(1000.0 * static_cast<double>(seconds));
}

std::string format_value_short(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

std::string format_ms_short(double ms) {
  if (!std::isfinite(ms)) return "–";
  if (ms < 1000) return fmt::format("{:.3g} ms", ms);
  if (ms < 120'000) return fmt::format("{:.3g} s", ms / 1000);
  return fmt::format("{:.3g} min", ms / 60'000);
}

std::string format_percent(double fraction) {
  if (!std::isfinite(fraction)) return "–";
  const double percent = fraction * 100;
  // 99.96 must not be shown as 100: only a perfect score may look perfect.
  if (percent > 99.9 && percent < 100) return "99.9 %";
  return fmt::format("{:.{}f} %", percent, percent == std::floor(percent) ? 0 : 1);
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, ++unit;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2, kUnits[unit]);
}

std::string format_exact_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes > 0 && bytes % 1024 == 0 && unit < 4) bytes /= 1024, ++unit;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

std::string format_magnitude(int64_t count) {
  double value = static_cast<double>(count);
  for (const char* unit : {"", "K", "M", "B"}) {
    const int digits = !*unit || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    if (value < 999.5) return fmt::format("{:.{}f}{}", value, digits, unit);
    value /= 1000;
  }
  return fmt::format("{:.1f}T", value);
}

std::string excerpt(std::string_view text, size_t bytes) {
  size_t end = std::min(bytes, text.size());
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string line(text.substr(0, end));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return end < text.size() ? line + "…" : line;
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string read_text_file(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) throw UsageError("cannot read {}: it is a folder", path);
  std::ifstream file(path, std::ios::binary);
  if (file.peek() == std::ifstream::traits_type::eof() && !file.bad() && file.rdbuf()->is_open()) return {};
  if (!file) throw UsageError("cannot read {}: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.fail()) throw UsageError("cannot read {}", path);
  return std::move(text).str();
}

void write_text_file(const std::string& path, std::string_view text) {
  const std::filesystem::path target(path);
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  const std::string temporary = fmt::format("{}.tmp{}", path, getpid());
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.flush();
    if (!file) throw Error("cannot write {}", path);
  }
  std::filesystem::rename(temporary, target, error);
  if (error) throw Error("cannot write {}: {}", path, error.message());
}

}  // namespace bam
