#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/completion_call.h"
#include "app/client/stats.h"

namespace bam::client {

inline constexpr const char* kBenchSchema = "bam.bench/1";

// One request of the load, reduced from its CallResult. Times in ms since the load began; -1: not known.
struct RequestRecord {
  double scheduled_ms = 0, start_ms = 0;
  double ttft_ms = -1, e2e_ms = -1, tpot_ms = -1, connect_ms = 0;
  std::vector<float> itl_ms;  // gaps between events with text
  int64_t expected_input = -1, requested_output = 0;
  int64_t input_tokens = -1, output_tokens = 0, cached_tokens = -1;
  int64_t events = 0;  // that carried text
  bool usage_missing = false;
  int status = 0;
  Failure failure = Failure::kNone;
  std::string error;
  bool ok() const { return failure == Failure::kNone; }
};
RequestRecord make_record(const CallResult& call, TimePoint load_start, int64_t expected_input,
                          int64_t requested_output);

// Latency targets of goodput: a request is good when it meets every one given.
struct Slo {
  double ttft_ms = -1, tpot_ms = -1, e2e_ms = -1;
  bool any() const { return ttft_ms >= 0 || tpot_ms >= 0 || e2e_ms >= 0; }
  bool met_by(const RequestRecord& record) const;
};
Slo parse_slo(const std::vector<std::string>& items);  // "ttft:500" "tpot:50" "e2el:3000"; throws UsageError

struct ProbeSample {
  double at_ms = 0, ttft_ms = -1, e2e_ms = -1;  // at: scheduled, since the load began; before it is negative
  double from_schedule_ms = -1;                 // first token, counted from the scheduled time
  bool ok = false;
  std::string error;
};

struct BenchData {
  nlohmann::json config, target;
  std::string label, created;
  double duration_s = 0;
  bool open_loop = false;
  bool ignore_eos = true;
  Slo slo;
  std::vector<RequestRecord> requests;
  std::vector<ProbeSample> probes;
  double probe_interval_ms = 0;
  std::vector<int64_t> token_bins;  // events with text per 100 ms
  double max_stall_ms = 0, busy_fraction = 0;
  size_t max_in_flight = 0;
};

// The result file: documented in docs/benchmarking.md; fields are only ever added.
nlohmann::json bench_to_json(const BenchData& data, bool with_requests);
// Reads and checks the schema. Throws UsageError.
nlohmann::json load_bench_result(const std::string& path);

nlohmann::json summary_to_json(const Summary& summary);

// Metrics in rows, one column per result; with two, a column with the relative change.
std::vector<std::vector<std::string>> bench_table(const std::vector<nlohmann::json>& results);

}  // namespace bam::client
