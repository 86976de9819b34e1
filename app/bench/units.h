#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bam::bench {

// "512", "64k", "1m" (k = 1024: 500k = 512,000, the paper's longest prompt), "1.5k". Throws UsageError naming `what`.
int64_t parse_count(std::string_view text, std::string_view what);
// "1k,8k,64k": sorted, without duplicates.
std::vector<int64_t> parse_count_list(std::string_view text, std::string_view what);
double parse_number(std::string_view text, std::string_view what);
std::vector<std::string> split(std::string_view text, char separator);

// 65536 -> "64K", 1000 -> "1000", 1048576 -> "1M".
std::string format_count(int64_t n);
// 1234567 -> "1,234,567".
std::string format_thousands(int64_t n);
// Three significant digits with a unit: "0.52 ms", "41.0 ms", "1.25 s", "12 min 05 s".
std::string format_ms(double ms);
// Three significant digits: "0.0123", "4.56", "789", "12.3k".
std::string format_value(double value);
// For axis ticks: no trailing zeros. "0.5 ms", "20 ms", "2 s", "5 min"; "0", "2.5", "300", "20k".
std::string format_ms_short(double ms);
std::string format_value_short(double value);
std::string format_percent(double fraction);
std::string format_bytes(double bytes);

// At most `bytes` bytes in one line, cut between characters, control characters as spaces; "…" marks a cut.
std::string excerpt(std::string_view text, size_t bytes);

// UTC, ISO 8601 with seconds: "2026-01-31T12:00:00Z".
std::string utc_now();
uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u);
std::string read_text_file(const std::string& path);
// Writes beside the target and renames, so that a reader never sees half a file. Throws Error.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace bam::bench
