#include "app/client/bench_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "app/client/bench_result.h"
#include "app/client/line_chart.h"
#include "app/units.h"

namespace bam::client {
namespace {

using nlohmann::json;

double number_at(const json& result, std::initializer_list<const char*> path) {
  const json* at = &result;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return std::nan("");
    at = &(*at)[key];
  }
  return at->is_number() ? at->get<double>() : std::nan("");
}

std::vector<double> numbers_at(const json& object, const char* key) {
  std::vector<double> values;
  if (!object.is_object() || !object.contains(key) || !object[key].is_array()) return values;
  for (const json& v : object[key]) values.push_back(v.is_number() ? v.get<double>() : std::nan(""));
  return values;
}

std::string label_of(const std::vector<json>& results, size_t i) {
  return results.size() > 1 ? results[i].value("label", "?") : std::string();
}

Chart distribution_chart(const std::vector<json>& results, const char* key, const std::string& name) {
  LineChartSpec spec;
  spec.id = fmt::format("distribution-{}", std::string(key).substr(0, std::string(key).find('_')));
  spec.title = name;
  spec.caption = "Share of samples that took at most this long.";
  spec.x = {"milliseconds", Scale::kLog10, 0, 0, {}, format_ms_short};
  spec.y = {"share", Scale::kLinear, 0, 1.02, {0, 0.25, 0.5, 0.75, 0.9, 1}, format_percent};
  for (size_t i = 0; i < results.size(); ++i) {
    Series series;
    series.name = label_of(results, i);
    series.x = numbers_at(results[i]["distributions"], key);
    for (double& v : series.x) v = std::max(v, 0.01);  // chunks of one packet: shown at the axis' edge
    for (size_t q = 0; q < series.x.size(); ++q) {
      series.y.push_back(static_cast<double>(q) / static_cast<double>(std::max<size_t>(series.x.size() - 1, 1)));
    }
    series.markers = false;
    spec.series.push_back(std::move(series));
  }
  spec.x.label = name;
  return draw_line_chart(spec);
}

Chart timeline_chart(const std::vector<json>& results, const char* key, const std::string& id, const std::string& title,
                     const std::string& unit) {
  LineChartSpec spec;
  spec.id = id;
  spec.title = title;
  spec.x = {"seconds since the load began", Scale::kLinear, 0, 0, {}, format_value_short};
  spec.y = {unit, Scale::kLinear, 0, 0, {}, format_value_short};
  for (size_t i = 0; i < results.size(); ++i) {
    const json& timeline = results[i]["timeline"];
    const double bin = timeline.value("bin_s", 1.0);
    Series series;
    series.name = label_of(results, i);
    series.y = numbers_at(timeline, key);
    for (size_t b = 0; b < series.y.size(); ++b) series.x.push_back((static_cast<double>(b) + 0.5) * bin);
    series.markers = false;
    spec.series.push_back(std::move(series));
  }
  return draw_line_chart(spec);
}

bool has_probe(const std::vector<json>& results) {
  return std::any_of(results.begin(), results.end(), [](const json& r) { return r.contains("probe"); });
}

Chart probe_chart(const std::vector<json>& results) {
  LineChartSpec spec;
  spec.id = "probe";
  spec.title = "Short requests beside the load";
  spec.x = {"seconds since the load began", Scale::kLinear, 0, 0, {}, format_value_short};
  spec.y = {"time to first token", Scale::kLog10, 0, 0, {}, format_ms_short};
  spec.caption = "One dot per probe, counted from its scheduled time: waiting behind the load shows.";
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].contains("probe")) continue;
    const json& probe = results[i]["probe"];
    Series series;
    series.name = label_of(results, i);
    series.line = false;
    for (const json& point : probe.value("series", json::array())) {
      if (!point.is_array() || point.size() != 2) continue;
      series.x.push_back(point[0].get<double>() / 1000);
      series.y.push_back(point[1].get<double>());
    }
    spec.series.push_back(std::move(series));
    const double idle = number_at(probe, {"idle_ttft_ms", "p50"});
    if (std::isfinite(idle) && idle > 0) {
      spec.caption += fmt::format(" {} alone on the server: {}.", results[i].value("label", "?"), format_ms(idle));
    }
  }
  return draw_line_chart(spec);
}

void add_errors(Report* report, const json& result) {
  const json& errors = result["errors"];
  if (number_at(errors, {"total"}) > 0) {
    Table rows = {{"kind", "count"}};
    const json kinds = errors.value("by_kind", json::object());
    for (const auto& [kind, count] : kinds.items()) {
      rows.push_back({kind, count.dump()});
    }
    report->table("Failed requests: " + result.value("label", ""), std::move(rows));
    Table examples = {{"message", "kind"}};
    for (const json& example : errors.value("examples", json::array())) {
      examples.push_back({excerpt(example.value("message", ""), 160), example.value("kind", "")});
    }
    report->table("Examples", std::move(examples));
  }
}

Table trust_table(const std::vector<json>& results) {
  Table rows = {{""},
                {"prompts as"},
                {"requests without usage"},
                {"prompt count differs from what was sent"},
                {"output count differs from what was asked"},
                {"events differ from output tokens"},
                {"send lag p99"},
                {"longest stall of the client"},
                {"client busy"},
                {"most requests in flight"}};
  for (const json& r : results) {
    const auto count = [&](const char* key) { return format_value_short(number_at(r, {"tokens", key})); };
    rows[0].push_back(r.value("label", "?"));
    rows[1].push_back(r.value("config", json::object()).value("prompts", "?"));
    rows[2].push_back(count("requests_without_usage"));
    rows[3].push_back(count("prompt_count_differs"));
    rows[4].push_back(count("output_count_differs"));
    rows[5].push_back(count("events_differ_from_output_tokens"));
    rows[6].push_back(format_ms(number_at(r, {"send_lag_ms", "p99"})));
    rows[7].push_back(format_ms(number_at(r, {"client", "max_stall_ms"})));
    rows[8].push_back(format_percent(number_at(r, {"client", "busy_fraction"})));
    rows[9].push_back(format_value_short(number_at(r, {"client", "max_in_flight"})));
  }
  return rows;
}

std::string load_in_words(const json& result) {
  const json config = result.value("config", json::object());
  const json target = result.value("target", json());
  std::string text = target.is_object() ? target.value("url", "") : "";
  text += config.value("mode", "") == "open"
              ? fmt::format(", open loop at {} requests/s",
                            config.contains("request_rate") ? config["request_rate"].dump() : "?")
              : fmt::format(", closed loop of {} clients", config.value("concurrency", 0));
  if (config.contains("input_len")) text += fmt::format(", input {}", config.value("input_len", ""));
  text += fmt::format(", output {}", config.value("output_len", ""));
  if (config.contains("prefix_share"))
    text += fmt::format(", {} shared prefix", format_percent(config["prefix_share"].get<double>()));
  return text + ", " + result.value("created", "");
}

}  // namespace

Report make_bench_report(const std::vector<json>& results, const std::string& title) {
  std::string subtitle;
  for (const json& r : results) {
    subtitle += fmt::format("{}{}: {}", subtitle.empty() ? "" : " · ", r.value("label", "?"), load_in_words(r));
  }
  Report report(title.empty() ? "Load test" : title, subtitle);
  if (results.size() == 1) {
    const json& r = results[0];
    std::vector<std::pair<std::string, std::string>> tiles = {
        {"requests completed", format_thousands(r.value("completed", int64_t{0}))},
        {"failed", format_thousands(r.value("failed", int64_t{0}))},
        {"requests per second", format_value(number_at(r, {"request_throughput"}))},
        {"output tokens per second", format_value(number_at(r, {"output_throughput"}))},
        {"TTFT p50", format_ms(number_at(r, {"ttft_ms", "p50"}))},
        {"TTFT p99", format_ms(number_at(r, {"ttft_ms", "p99"}))},
        {"TPOT p50", format_ms(number_at(r, {"tpot_ms", "p50"}))}};
    if (r.contains("goodput")) {
      tiles.push_back({"goodput, requests per second", format_value(number_at(r, {"goodput", "requests_per_s"}))});
    }
    if (r.contains("probe")) {
      tiles.push_back(
          {"probe TTFT p99 under load", format_ms(number_at(r, {"probe", "ttft_from_schedule_ms", "p99"}))});
    }
    report.tiles(std::move(tiles));
  }
  report.charts({distribution_chart(results, "ttft_ms", "Time to first token"),
                 distribution_chart(results, "tpot_ms", "Time per output token"),
                 distribution_chart(results, "itl_ms", "Inter-token latency"),
                 distribution_chart(results, "e2e_ms", "End-to-end latency")});
  std::vector<Chart> over_time = {
      timeline_chart(results, "events_per_s", "throughput", "Throughput over time", "output events/s"),
      timeline_chart(results, "running", "running", "Requests in flight over time", "requests")};
  if (has_probe(results)) over_time.push_back(probe_chart(results));
  report.charts(std::move(over_time));
  report.heading("All figures");
  report.table("", bench_table(results));
  for (const json& r : results) add_errors(&report, r);
  report.heading("Can these figures be trusted?");
  report.table("", trust_table(results));
  report.paragraph(
      "TTFT, TPOT = (E2E - TTFT) / (output tokens - 1), ITL and E2E are defined as in vllm bench serve and are counted "
      "from the moment a request is handed to the socket; the rows \"from schedule\" count from the moment the load "
      "plan wanted it sent, so that a slow server cannot hide by slowing the client down. A closed loop sends less "
      "when the server is slow: compare servers with an open loop. Bytes that arrive while the client is busy are "
      "stamped late by at most the longest stall.");
  return report;
}

}  // namespace bam::client
