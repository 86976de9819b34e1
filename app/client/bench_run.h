#pragma once

#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/bench_result.h"
#include "app/client/target.h"
#include "app/client/workload.h"

namespace bam::client {

struct BenchOptions {
  TargetOptions target;
  Endpoint endpoint = Endpoint::kCompletions;
  // request_rate > 0: open loop (requests leave when the plan says so, infinity = all at once), at most `concurrency`
  // in flight if that is > 0. Otherwise a closed loop of `concurrency` clients.
  double request_rate = 0;
  double burstiness = 1;
  int concurrency = 0;
  int64_t num_requests = 100;
  double duration_s = 0;  // > 0: no new request after it; num_requests then only limits if it was given
  int64_t warmup = 0;
  LengthDistribution input, output;
  double prefix_share = 0;
  int num_prefixes = 1;
  std::string dataset;
  bool ignore_eos = true;
  double temperature = 0;
  bool keep_alive = true;
  uint64_t seed = 0;
  Slo slo;
  double probe_interval_ms = 0;
  int64_t probe_input = 16, probe_output = 1;
  nlohmann::json extra_body = nlohmann::json::object();
  std::string label;
};

// Runs the load and returns what happened, also when Ctrl-C ends it early.
BenchData run_load(const BenchOptions& options);

}  // namespace bam::client
