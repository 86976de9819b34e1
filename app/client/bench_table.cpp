#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "app/client/bench_result.h"
#include "app/units.h"

namespace bam::client {
namespace {

using nlohmann::json;

struct RowSpec {
  std::string name;
  std::function<double(const json&)> get;
  std::string (*format)(double);
};

double number(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_number() ? object[key].get<double>()
                                                                               : std::nan("");
}

std::function<double(const json&)> top(const char* key) {
  return [key](const json& r) { return number(r, key); };
}

std::function<double(const json&)> nested(const char* outer, const char* inner) {
  return [=](const json& r) { return r.contains(outer) ? number(r[outer], inner) : std::nan(""); };
}

std::function<double(const json&)> probe(const char* which, const char* stat) {
  return [=](const json& r) {
    return r.contains("probe") && r["probe"].contains(which) ? number(r["probe"][which], stat) : std::nan("");
  };
}

std::string whole(double v) { return std::isfinite(v) ? format_thousands(std::llround(v)) : "–"; }

std::vector<RowSpec> row_specs(const std::vector<json>& results) {
  const auto any_has = [&](const char* key) {
    return std::any_of(results.begin(), results.end(), [&](const json& r) { return r.contains(key); });
  };
  std::vector<RowSpec> specs = {{"requests completed", top("completed"), whole},
                                {"requests failed", top("failed"), whole},
                                {"duration (s)", top("duration_s"), format_value},
                                {"input tokens", top("input_tokens"), whole},
                                {"cached input tokens", top("cached_tokens"), whole},
                                {"output tokens", top("output_tokens"), whole},
                                {"requests/s", top("request_throughput"), format_value},
                                {"output tokens/s", top("output_throughput"), format_value},
                                {"total tokens/s", top("total_token_throughput"), format_value}};
  if (any_has("goodput")) {
    specs.push_back({"goodput (requests/s)", nested("goodput", "requests_per_s"), format_value});
  }
  constexpr std::pair<const char*, const char*> kMetrics[] = {
      {"TTFT", "ttft_ms"}, {"TPOT", "tpot_ms"}, {"ITL", "itl_ms"}, {"E2E", "e2e_ms"}};
  for (const auto& [title, key] : kMetrics) {
    for (const char* stat : {"mean", "p50", "p90", "p99", "max"}) {
      specs.push_back({fmt::format("{} {}", title, stat), nested(key, stat), format_ms});
    }
  }
  const bool open_loop = std::any_of(results.begin(), results.end(), [](const json& r) {
    return r.contains("config") && r["config"].value("mode", "") == "open";
  });
  if (open_loop) {
    specs.push_back({"TTFT from schedule p50", nested("ttft_from_schedule_ms", "p50"), format_ms});
    specs.push_back({"TTFT from schedule p99", nested("ttft_from_schedule_ms", "p99"), format_ms});
    specs.push_back({"send lag p99", nested("send_lag_ms", "p99"), format_ms});
  }
  if (any_has("probe")) {
    specs.push_back({"probe TTFT idle p50", probe("idle_ttft_ms", "p50"), format_ms});
    for (const char* stat : {"p50", "p99", "max"}) {
      specs.push_back({fmt::format("probe TTFT under load {}", stat), probe("ttft_from_schedule_ms", stat), format_ms});
    }
  }
  return specs;
}

}  // namespace

std::vector<std::vector<std::string>> bench_table(const std::vector<json>& results) {
  std::vector<std::vector<std::string>> rows(1);
  rows[0].push_back("");
  for (const json& r : results) rows[0].push_back(r.value("label", "?"));
  if (results.size() == 2) rows[0].push_back("change");
  for (const RowSpec& spec : row_specs(results)) {
    std::vector<std::string> row{spec.name};
    for (const json& r : results) row.push_back(spec.format(spec.get(r)));
    if (results.size() == 2) {
      const double a = spec.get(results[0]), b = spec.get(results[1]);
      const bool comparable = std::isfinite(a) && std::isfinite(b) && a != 0;
      row.push_back(comparable ? fmt::format("{:+.1f} %", (b / a - 1) * 100) : "–");
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bam::client
