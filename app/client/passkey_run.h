#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/passkey_results.h"
#include "app/client/retrieval_task.h"
#include "app/client/target.h"

namespace bam::client {

struct PasskeyOptions {
  TargetOptions target;
  TaskConfig task;
  std::vector<int64_t> lengths;
  std::vector<double> depths;
  int repeats = 1;
  int concurrency = 1;
  int64_t max_tokens = 0;  // 0: what the answer needs
  Endpoint endpoint = Endpoint::kCompletions;
  bool prefix_cache = true;
  bool poll_memory = true;
  nlohmann::json extra_body = nlohmann::json::object();
  std::string out;
  std::string label;
};

// "20": evenly spaced from 0 to 1; "0,0.25,1" or "0%,25%,100%": these. Throws UsageError.
std::vector<double> parse_depths(const std::string& text);

// Runs every cell that `out` does not hold yet and returns all results. `interrupted` tells that cells are missing.
PasskeyRun run_passkey_task(const PasskeyOptions& options, bool* interrupted);

// The table per length, for the terminal and for Markdown; the first row is the head.
std::vector<std::vector<std::string>> passkey_table(const PasskeyRun& run);

}  // namespace bam::client
