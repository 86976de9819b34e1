#include "app/client/passkey_results.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <tuple>

#include <fmt/format.h>

#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::tuple<int64_t, int64_t, int> cell_of(const PasskeyRecord& record) {
  return {record.length, std::llround(record.depth * 1e6), record.repeat};
}

// Keeps records sorted by cell with one per cell.
void put(std::vector<PasskeyRecord>* records, PasskeyRecord record) {
  const auto at =
      std::lower_bound(records->begin(), records->end(), record,
                       [](const PasskeyRecord& a, const PasskeyRecord& b) { return cell_of(a) < cell_of(b); });
  if (at != records->end() && cell_of(*at) == cell_of(record)) {
    *at = std::move(record);
  } else {
    records->insert(at, std::move(record));
  }
}

double rounded_ms(double ms) { return std::round(ms * 1000) / 1000; }

}  // namespace

double PasskeyRecord::cached_fraction() const {
  if (prompt_tokens <= 0 || cached_tokens <= 0) return 0;
  return static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
}

json to_json(const PasskeyRecord& r) {
  json line = {
      {"type", "result"}, {"length", r.length}, {"depth", r.depth}, {"repeat", r.repeat}, {"expected", r.expected}};
  if (r.needle_at >= 0) line["needle_at"] = r.needle_at;
  if (!r.ok()) {
    line["error"] = r.error;
    return line;
  }
  line["output"] = r.output;
  line["score"] = r.score;
  const auto put_known = [&](const char* key, auto value) {
    if (value >= 0) line[key] = value;
  };
  put_known("prompt_tokens", r.prompt_tokens);
  put_known("cached_tokens", r.cached_tokens);
  put_known("completion_tokens", r.completion_tokens);
  put_known("ttft_ms", rounded_ms(r.ttft_ms));
  put_known("e2e_ms", rounded_ms(r.e2e_ms));
  put_known("tpot_ms", rounded_ms(r.tpot_ms));
  put_known("server_rss_bytes", r.server_rss_bytes);
  return line;
}

PasskeyRecord passkey_record_from_json(const json& line) {
  PasskeyRecord r;
  r.length = line.at("length").get<int64_t>();
  r.depth = line.at("depth").get<double>();
  r.repeat = line.value("repeat", 0);
  r.expected = line.value("expected", std::vector<std::string>());
  r.output = line.value("output", "");
  r.score = line.value("score", 0.0);
  r.prompt_tokens = line.value("prompt_tokens", int64_t{-1});
  r.cached_tokens = line.value("cached_tokens", int64_t{-1});
  r.completion_tokens = line.value("completion_tokens", int64_t{-1});
  r.needle_at = line.value("needle_at", int64_t{-1});
  r.ttft_ms = line.value("ttft_ms", -1.0);
  r.e2e_ms = line.value("e2e_ms", -1.0);
  r.tpot_ms = line.value("tpot_ms", -1.0);
  r.server_rss_bytes = line.value("server_rss_bytes", -1.0);
  r.error = line.value("error", "");
  return r;
}

PasskeyRun load_passkey_run(const std::string& path) {
  PasskeyRun run;
  const std::string text = read_text_file(path);
  size_t at = 0;
  int number = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    if (end == text.npos) break;  // half a line: a run that was killed while writing
    const json line = json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    at = end + 1;
    ++number;
    try {
      const std::string type = line.is_object() ? line.value("type", "") : "";
      if (number == 1) {
        if (type != "header" || line.value("schema", "") != kPasskeySchema) {
          throw UsageError("{} is not a passkey result file ({})", path, kPasskeySchema);
        }
        run.header = line;
      } else if (type == "result") {
        put(&run.records, passkey_record_from_json(line));
      } else {
        throw UsageError("{} line {} is not a result", path, number);
      }
    } catch (const json::exception& error) {
      throw UsageError("{} line {}: {}", path, number, error.what());
    }
  }
  if (number == 0) throw UsageError("{} is not a passkey result file (no complete line)", path);
  run.label = run.header.value("label", "");
  if (run.label.empty()) run.label = std::filesystem::path(path).stem().string();
  return run;
}

PasskeyLog::PasskeyLog(std::string path, const json& header) : path_(std::move(path)) {
  run_.header = header;
  run_.label = header.value("label", "");
  if (path_.empty()) return;
  std::error_code error;
  const std::filesystem::path target(path_);
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  const bool exists = std::filesystem::exists(target) && std::filesystem::file_size(target) > 0;
  if (exists) resume(header);
  file_.open(path_, std::ios::binary | std::ios::app);
  if (!file_) throw UsageError("--out: cannot write {}", path_);
  if (!exists) file_ << header.dump() << '\n' << std::flush;
}

void PasskeyLog::resume(const json& header) {
  const std::string text = read_text_file(path_);
  const size_t last_newline = text.rfind('\n');
  if (last_newline == text.npos) throw UsageError("--out: {} is not a passkey result file", path_);
  if (last_newline + 1 < text.size()) std::filesystem::resize_file(path_, last_newline + 1);
  PasskeyRun old = load_passkey_run(path_);
  const json before = old.header.value("config", json::object());
  const json now = header.value("config", json::object());
  for (const auto& [key, value] : now.items()) {
    if (!before.contains(key) || before.at(key) != value) {
      throw UsageError("--out: {} was made with {} = {}, this run has {}: use another file", path_, key,
                       before.contains(key) ? before.at(key).dump() : "(none)", value.dump());
    }
  }
  run_ = std::move(old);
  for (const PasskeyRecord& record : run_.records) num_resumed_ += record.ok();
}

void PasskeyLog::append(const PasskeyRecord& record) {
  if (file_.is_open()) {
    file_ << to_json(record).dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << std::flush;
    if (!file_) throw Error("cannot write {}: is the disk full?", path_);
  }
  put(&run_.records, record);
}

bool PasskeyLog::has_answer(int64_t length, double depth, int repeat) const {
  PasskeyRecord key;
  key.length = length, key.depth = depth, key.repeat = repeat;
  const auto at =
      std::lower_bound(run_.records.begin(), run_.records.end(), key,
                       [](const PasskeyRecord& a, const PasskeyRecord& b) { return cell_of(a) < cell_of(b); });
  return at != run_.records.end() && cell_of(*at) == cell_of(key) && at->ok();
}

double LengthStats::accuracy() const {
  const int total = answered + errors;
  return total == 0 ? kNaN : score_sum / total;
}

std::vector<LengthStats> stats_by_length(const std::vector<PasskeyRecord>& records) {
  std::map<int64_t, std::vector<const PasskeyRecord*>> groups;
  for (const PasskeyRecord& record : records) groups[record.length].push_back(&record);
  std::vector<LengthStats> all;
  for (const auto& [length, group] : groups) {
    LengthStats stats;
    stats.length = length;
    std::vector<double> ttft, cold, prefill, tpot, cached;
    for (const PasskeyRecord* r : group) {
      stats.peak_rss_bytes = std::max(stats.peak_rss_bytes, r->server_rss_bytes);
      if (!r->ok()) {
        ++stats.errors;
        continue;
      }
      ++stats.answered;
      stats.hits += r->hit();
      stats.score_sum += r->score;
      cached.push_back(r->cached_fraction());
      if (r->prompt_tokens >= 0) {
        const bool first = stats.min_prompt_tokens < 0;
        stats.min_prompt_tokens = first ? r->prompt_tokens : std::min(stats.min_prompt_tokens, r->prompt_tokens);
        stats.max_prompt_tokens = std::max(stats.max_prompt_tokens, r->prompt_tokens);
      }
      constexpr double kMeasurableTpotMs = 0.01;  // tokens that came together tell no rate
      if (r->tpot_ms >= kMeasurableTpotMs) tpot.push_back(r->tpot_ms);
      if (r->ttft_ms <= 0) continue;
      ttft.push_back(r->ttft_ms);
      if (r->cached_fraction() <= 0.1) cold.push_back(r->ttft_ms);
      const double tokens = static_cast<double>(r->prompt_tokens > 0 ? r->prompt_tokens : r->length);
      if (r->cached_fraction() <= 0.9) {
        prefill.push_back(tokens * (1 - r->cached_fraction()) / r->ttft_ms * 1000);
      }
    }
    stats.cached_fraction = cached.empty() ? 0 : mean(cached);
    stats.ttft = summarize(ttft);
    stats.cold_ttft_ms = median(cold);
    stats.prefill_tps = median(prefill);
    stats.decode_tps = 1000 / median(tpot);
    all.push_back(stats);
  }
  return all;
}

double overall_accuracy(const std::vector<PasskeyRecord>& records) {
  if (records.empty()) return kNaN;
  double sum = 0;
  for (const PasskeyRecord& record : records) sum += record.ok() ? record.score : 0;
  return sum / static_cast<double>(records.size());
}

}  // namespace bam::client
