// Numbers, sizes and times as people write and read them; small helpers for text and files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

// "512", "64k", "1m" (k = 1024: 500k = 512,000, the paper's longest prompt), "1.5k". Throws UsageError naming `what`.
int64_t parse_count(std::string_view text, std::string_view what);
// "1k,8k,64k": sorted, without duplicates.
std::vector<int64_t> parse_count_list(std::string_view text, std::string_view what);
double parse_number(std::string_view text, std::string_view what);
double parse_number(std::string_view text, std::string_view what, double min, double max);
int64_t parse_integer(std::string_view text, std::string_view what, int64_t min, int64_t max);
// "8GiB", "512 MiB", "1e9", "65536" -> bytes.
uint64_t parse_bytes(std::string_view text, std::string_view what);
// "30", "1.5s", "500ms", "2m", "1h" -> seconds.
double parse_seconds(std::string_view text, std::string_view what);
// What is allowed, for the end of a sentence: "from 0 to 65535", "of at least 1" where the upper bound is only the type's.
std::string format_range(double min, double max);
void check_one_of(const std::string& value, std::string_view what, const std::string& choices);  // "a|b|c"
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// 65536 -> "64K", 1000 -> "1000", 1048576 -> "1M".
std::string format_count(int64_t n);
// 1234567 -> "1,234,567".
std::string format_thousands(int64_t n);
// Three significant digits with a unit: "0.52 ms", "41.0 ms", "1.25 s", "12 min 05 s".
std::string format_ms(double ms);
// How long something will take: in whole seconds, nobody knows it better.
std::string format_remaining(double ms);
// Three significant digits: "0.0123", "4.56", "789", "12.3k".
std::string format_value(double value);
// For axis ticks: no trailing zeros. "0.5 ms", "20 ms", "2 s", "5 min"; "0", "2.5", "300", "20k".
std::string format_ms_short(double ms);
std::string format_value_short(double value);
std::string format_percent(double fraction);
std::string format_bytes(double bytes);
// As parse_bytes reads it back: "32MiB", "1000".
std::string format_exact_bytes(uint64_t bytes);
// Three significant digits, powers of 1000: "4.20M", "124M", "7.24B".
std::string format_magnitude(int64_t count);

// At most `bytes` bytes in one line, cut between characters, control characters as spaces; "…" marks a cut.
std::string excerpt(std::string_view text, size_t bytes);

// UTC, ISO 8601 with seconds: "2026-01-31T12:00:00Z".
std::string utc_now();
std::string read_text_file(const std::string& path);
// Writes beside the target and renames, so that a reader never sees half a file. Throws Error.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace bam
