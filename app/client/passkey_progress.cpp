#include "app/client/passkey_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <fmt/format.h>

#include "app/units.h"

namespace bam::client {
namespace {

constexpr const char* kHit = "\x1b[38;5;32m█\x1b[0m";  // blue and orange: told apart by everybody
constexpr const char* kPartial = "\x1b[38;5;179m▓\x1b[0m";
constexpr const char* kMiss = "\x1b[38;5;166m█\x1b[0m";

}  // namespace

PasskeyProgress::PasskeyProgress(const std::vector<PasskeyCell>& cells, int concurrency)
    : concurrency_(std::max(concurrency, 1)) {
  for (const PasskeyCell& cell : cells) {
    Row& row = rows_[cell.length];
    ++row.total;
    ++row.planned[cell.depth];
    ++total_;
  }
}

void PasskeyProgress::count(const PasskeyRecord& record) {
  const auto found = rows_.find(record.length);
  if (found == rows_.end()) return;
  Row& row = found->second;
  ++row.done;
  ++done_;
  row.score += record.ok() ? record.score : 0;
  row.errors += !record.ok();
  auto& [score, n] = row.depths[record.depth];
  score += record.ok() ? record.score : 0;
  ++n;
  if (record.ttft_ms > 0) row.ttft_ms.push_back(record.ttft_ms);
  row.cached += record.cached_fraction();
}

void PasskeyProgress::add_known(const PasskeyRecord& record) {
  count(record);
  ++resumed_;
}

void PasskeyProgress::on_start(const PasskeyCell& cell) {
  ++rows_[cell.length].running[cell.depth];
  tick();
}

void PasskeyProgress::on_record(const PasskeyRecord& record) {
  count(record);
  reading_.erase({record.length, record.depth, record.repeat});
  Row& row = rows_[record.length];
  --row.running[record.depth];
  if (record.ok() && record.e2e_ms > 0) {
    row.busy_ms += record.e2e_ms;
    ++row.timed;
  }
  if (!record.hit()) {
    std::string expected;
    for (const std::string& e : record.expected) expected += (expected.empty() ? "" : ", ") + e;
    const std::string what = record.ok() ? fmt::format("expected {}, got \"{}\"", expected, excerpt(record.output, 60))
                                         : "error: " + excerpt(record.error, 200);
    const std::string line =
        fmt::format("  {:>7}  depth {:>5}  {}", format_count(record.length), format_percent(record.depth), what);
    area_.print_above(line);
    last_draw_ = {};
  }
  if (!area_.enabled() && row.done == row.total) {
    fmt::print(stderr, "{}   [{}]\n", row_line(record.length, row), summary_line());
  }
  tick();
}

void PasskeyProgress::on_reading(const PasskeyCell& cell, const PromptProgress& progress) {
  reading_[{cell.length, cell.depth, cell.repeat}] = {progress, Clock::now()};
  if (progress.processed >= progress.total) reading_.erase({cell.length, cell.depth, cell.repeat});
  tick();
}

// What the slowest prompt waits for, counted down between the server's reports.
std::string PasskeyProgress::reading_line() const {
  const Reading* slowest = nullptr;
  for (const auto& [cell, reading] : reading_) {
    if (slowest == nullptr || reading.progress.eta_ms > slowest->progress.eta_ms) slowest = &reading;
  }
  if (slowest == nullptr) return {};
  const PromptProgress& progress = slowest->progress;
  std::string text =
      fmt::format("  reading {} of {} tokens, {} %", format_thousands(progress.processed),
                  format_thousands(progress.total), progress.processed * 100 / std::max<int64_t>(progress.total, 1));
  const double left = progress.eta_ms - ms_between(slowest->at, Clock::now());
  if (progress.eta_ms >= 0) text += fmt::format(", about {} to its answer", format_remaining(std::max(left, 0.0)));
  return text;
}

std::string PasskeyProgress::strip(const Row& row) const {
  std::string text;
  for (const auto& [depth, planned] : row.planned) {
    const auto done = row.depths.find(depth);
    const auto running = row.running.find(depth);
    if (done != row.depths.end() && done->second.second > 0) {
      const double score = done->second.first / done->second.second;
      const bool colour = area_.colour();
      text += score >= 1 ? (colour ? kHit : "█") : score > 0 ? (colour ? kPartial : "▒") : (colour ? kMiss : "x");
    } else {
      text += running != row.running.end() && running->second > 0 ? "›" : "·";
    }
  }
  return text;
}

std::string PasskeyProgress::row_line(int64_t length, const Row& row) const {
  const double accuracy = row.done > 0 ? row.score / row.done : std::numeric_limits<double>::quiet_NaN();
  return fmt::format("  {:>7}  {}  {:>4}/{:<4} {:>7}  TTFT {:>9}  cached {:>6}{}", format_count(length), strip(row),
                     row.done, row.total, format_percent(accuracy), format_ms(median(row.ttft_ms)),
                     row.done > 0 ? format_percent(row.cached / row.done) : "–",
                     row.errors > 0 ? fmt::format("  {} errors", row.errors) : "");
}

std::string PasskeyProgress::summary_line() const {
  const double elapsed = ms_between(start_, Clock::now());
  const double eta = eta_s();
  return fmt::format("{}/{} done, {} elapsed{}", done_, total_, format_ms(elapsed),
                     done_ == total_      ? ""
                     : std::isfinite(eta) ? ", about " + format_ms(eta * 1000) + " left"
                                          : "");
}

double PasskeyProgress::eta_s() const {
  // Time of one request by length: measured, or the nearest measured length scaled a little faster than linearly.
  std::map<int64_t, double> measured;
  for (const auto& [length, row] : rows_) {
    if (row.timed > 0) measured[length] = row.busy_ms / row.timed;
  }
  if (measured.empty()) return std::numeric_limits<double>::quiet_NaN();
  double left_ms = 0;
  for (const auto& [length, row] : rows_) {
    if (row.done >= row.total) continue;
    auto near = measured.lower_bound(length);
    if (near == measured.end()) near = std::prev(near);
    const double ratio = static_cast<double>(length) / static_cast<double>(near->first);
    left_ms += (row.total - row.done) * near->second * std::pow(ratio, 1.2);
  }
  return left_ms / concurrency_ / 1000;
}

void PasskeyProgress::tick() {
  if (!area_.enabled()) return;
  const TimePoint now = Clock::now();
  if (ms_between(last_draw_, now) < 100) return;
  last_draw_ = now;
  std::vector<std::string> lines;
  for (const auto& [length, row] : rows_) lines.push_back(row_line(length, row));
  if (std::string reading = reading_line(); !reading.empty()) lines.push_back(std::move(reading));
  constexpr int kWidth = 40;
  const int full = total_ > 0 ? done_ * kWidth / total_ : kWidth;
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < full ? "━" : "─";
  lines.push_back(fmt::format("  {}  {}", bar, summary_line()));
  area_.draw(lines);
}

void PasskeyProgress::finish() { area_.clear(); }

}  // namespace bam::client
