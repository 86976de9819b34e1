#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/client/target.h"
#include "app/eval/eval_metrics.h"

namespace bam::eval {

inline constexpr const char* kEvalSchema = "bam.eval/1";

struct EvalOptions {
  client::TargetOptions target;
  std::vector<TaskSource> tasks;
  int64_t max_length = 0;  // tokens of a request, its generated one included; 0: what the server takes
  int concurrency = 4;
  std::string label;
  bool samples = false;  // keep what was asked and answered
};

// Asks a server and scores as lm-eval does. Returns the result file's content; throws Error, UsageError.
Json run_tasks(const EvalOptions& options);

// task, metric, filter, value, stderr, interval; by row.
std::vector<std::vector<std::string>> eval_table(const Json& result);
std::string eval_csv(const Json& result);

}  // namespace bam::eval
