#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/stats.h"

namespace bam::client {

// One answered (or failed) prompt: a line of the result file.
struct PasskeyRecord {
  int64_t length = 0;
  double depth = 0;  // 0 … 1
  int repeat = 0;
  std::vector<std::string> expected;
  std::string output;
  double score = 0;            // fraction of the expected answers found
  int64_t prompt_tokens = -1;  // as the server counted them
  int64_t cached_tokens = -1;
  int64_t completion_tokens = -1;
  int64_t needle_at = -1;  // token index of the first needle
  double ttft_ms = -1;
  double e2e_ms = -1;
  double tpot_ms = -1;
  double server_rss_bytes = -1;
  std::string error;  // not empty: no answer; the next run tries again

  bool ok() const { return error.empty(); }
  bool hit() const { return ok() && score >= 1; }
  // Share of the prompt that the server did not have to compute; 0 if it does not say.
  double cached_fraction() const;
};

nlohmann::json to_json(const PasskeyRecord& record);
PasskeyRecord passkey_record_from_json(const nlohmann::json& line);  // throws nlohmann::json::exception

// A result file: a header line, then one record per line; a later line about the same cell replaces an earlier one.
struct PasskeyRun {
  std::string label;
  nlohmann::json header;
  std::vector<PasskeyRecord> records;  // by length, depth, repeat
};
inline constexpr const char* kPasskeySchema = "bam.passkey/1";
PasskeyRun load_passkey_run(const std::string& path);  // throws UsageError: not such a file

// Appends records; each one is in the file before append() returns, so that a killed run loses nothing.
class PasskeyLog {
 public:
  // An empty path keeps everything in memory. An existing file must have been made with the same `config`
  // (what a prompt and its answer depend on), else UsageError names the difference; half a last line is dropped.
  PasskeyLog(std::string path, const nlohmann::json& header);
  void append(const PasskeyRecord& record);
  bool has_answer(int64_t length, double depth, int repeat) const;
  size_t num_resumed() const { return num_resumed_; }
  const PasskeyRun& run() const { return run_; }

 private:
  void resume(const nlohmann::json& header);
  std::string path_;
  std::ofstream file_;
  PasskeyRun run_;
  size_t num_resumed_ = 0;
};

struct LengthStats {
  int64_t length = 0;
  int answered = 0;  // errors not included
  int errors = 0;
  int hits = 0;          // all answers right
  double score_sum = 0;  // == hits unless a task asks for several values
  double cached_fraction = 0;
  int64_t min_prompt_tokens = -1, max_prompt_tokens = -1;
  Summary ttft;         // ms, all answered requests
  double cold_ttft_ms;  // median where at most a tenth of the prompt was cached; NaN: none
  double prefill_tps;   // median of (prompt - cached) / TTFT over requests that computed at least a tenth
  double decode_tps;    // 1000 / median TPOT
  double peak_rss_bytes = -1;
  // Errors count as misses: a server that does not answer did not find the key.
  double accuracy() const;
};
std::vector<LengthStats> stats_by_length(const std::vector<PasskeyRecord>& records);
// Mean score over all records, errors as misses; NaN for none.
double overall_accuracy(const std::vector<PasskeyRecord>& records);

}  // namespace bam::client
