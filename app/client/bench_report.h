#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/client/html_page.h"

namespace bam::client {

// Latency distributions, throughput over time, probes, tables: one result, or several in the same axes.
Report make_bench_report(const std::vector<nlohmann::json>& results, const std::string& title);

}  // namespace bam::client
