#include "app/client/passkey_report.h"

#include <cctype>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "app/client/heat_map.h"
#include "app/client/line_chart.h"
#include "app/client/passkey_run.h"
#include "app/client/report_options.h"
#include "app/units.h"

namespace bam::client {
namespace {

using nlohmann::json;

std::string config_of(const PasskeyRun& run, const char* key, const std::string& otherwise) {
  const json config = run.header.value("config", json::object());
  return config.contains(key) && config[key].is_string() ? config[key].get<std::string>() : otherwise;
}

Axis length_axis(const std::vector<PasskeyRun>& runs) {
  std::set<double> lengths;
  for (const PasskeyRun& run : runs) {
    for (const PasskeyRecord& record : run.records) lengths.insert(static_cast<double>(record.length));
  }
  Axis axis;
  axis.label = "prompt length (tokens)";
  axis.scale = Scale::kLog2;
  axis.ticks.assign(lengths.begin(), lengths.end());
  axis.format = [](double v) { return format_count(std::llround(v)); };
  return axis;
}

std::optional<Mark> trained_at(const std::vector<PasskeyRun>& runs) {
  std::vector<json> headers;
  for (const PasskeyRun& run : runs) headers.push_back(run.header);
  return training_mark(headers);
}

template <typename Value>
std::vector<Series> by_length(const std::vector<PasskeyRun>& runs, Value value) {
  std::vector<Series> all;
  for (const PasskeyRun& run : runs) {
    Series series;
    if (runs.size() > 1) series.name = run.label;
    for (const LengthStats& stats : stats_by_length(run.records)) {
      series.x.push_back(static_cast<double>(stats.length));
      value(stats, &series);
    }
    all.push_back(std::move(series));
  }
  return all;
}

Chart accuracy_chart(const std::vector<PasskeyRun>& runs) {
  LineChartSpec spec;
  spec.id = "accuracy-by-length";
  spec.title = "Accuracy by prompt length";
  spec.caption = "Mean over all depths; the band is the 95 % Wilson interval. Errors count as misses.";
  spec.x = length_axis(runs);
  spec.mark = trained_at(runs);
  spec.y = {"accuracy", Scale::kLinear, 0, 1.03, {0, 0.25, 0.5, 0.75, 1}, format_percent};
  spec.series = by_length(runs, [](const LengthStats& s, Series* series) {
    const auto [low, high] = wilson_interval(s.score_sum, s.answered + s.errors);
    series->y.push_back(s.accuracy());
    series->low.push_back(low);
    series->high.push_back(high);
  });
  return draw_line_chart(spec);
}

Chart ttft_chart(const std::vector<PasskeyRun>& runs) {
  LineChartSpec spec;
  spec.id = "ttft-by-length";
  spec.title = "Time to first token by prompt length";
  spec.x = length_axis(runs);
  spec.mark = trained_at(runs);
  spec.y = {"time to first token", Scale::kLog10, 0, 0, {}, format_ms_short};
  spec.caption =
      "Median of requests that found at most a tenth of their prompt in the prefix cache (of all where there was "
      "none).";
  for (const PasskeyRun& run : runs) {
    std::vector<double> lengths, times;
    for (const LengthStats& s : stats_by_length(run.records)) {
      lengths.push_back(static_cast<double>(s.length));
      times.push_back(std::isfinite(s.cold_ttft_ms) ? s.cold_ttft_ms : s.ttft.p50);
    }
    const double exponent = growth_exponent(lengths, times);
    if (std::isfinite(exponent)) {
      spec.caption += fmt::format(" {}: time grows as length^{:.2f}.", run.label, exponent);
    }
  }
  spec.series = by_length(runs, [](const LengthStats& s, Series* series) {
    series->y.push_back(std::isfinite(s.cold_ttft_ms) ? s.cold_ttft_ms : s.ttft.p50);
  });
  return draw_line_chart(spec);
}

Chart prefill_chart(const std::vector<PasskeyRun>& runs) {
  LineChartSpec spec;
  spec.id = "prefill-by-length";
  spec.title = "Prompt tokens per second by prompt length";
  spec.caption = "Tokens that were not cached, divided by the time to first token; median.";
  spec.x = length_axis(runs);
  spec.mark = trained_at(runs);
  spec.y = {"prompt tokens/s", Scale::kLog10, 0, 0, {}, format_value_short};
  spec.series = by_length(runs, [](const LengthStats& s, Series* series) { series->y.push_back(s.prefill_tps); });
  return draw_line_chart(spec);
}

bool has_memory(const std::vector<PasskeyRun>& runs) {
  for (const PasskeyRun& run : runs) {
    for (const PasskeyRecord& record : run.records) {
      if (record.server_rss_bytes > 0) return true;
    }
  }
  return false;
}

Chart memory_chart(const std::vector<PasskeyRun>& runs) {
  LineChartSpec spec;
  spec.id = "memory-by-length";
  spec.title = "Server memory by prompt length";
  spec.caption = "Largest resident size seen while prompts of that length ran (sampled once a second).";
  spec.x = length_axis(runs);
  spec.mark = trained_at(runs);
  spec.series = by_length(runs, [](const LengthStats& s, Series* series) {
    series->y.push_back(s.peak_rss_bytes > 0 ? s.peak_rss_bytes : std::nan(""));
  });
  double top = 0;
  for (const Series& series : spec.series) {
    for (const double y : series.y) top = std::max(top, std::isfinite(y) ? y : 0);
  }
  // Ticks that are round in the unit they are written in.
  const double unit = top >= 0x1p30 ? 0x1p30 : 0x1p20;
  spec.y = {unit == 0x1p30 ? "resident GiB" : "resident MiB",         Scale::kLinear, 0, top * 1.08, {},
            [unit](double v) { return format_value_short(v / unit); }};
  for (const double t : nice_ticks(0, top * 1.08 / unit, 5)) spec.y.ticks.push_back(t * unit);
  return draw_line_chart(spec);
}

Table miss_table(const PasskeyRun& run) {
  Table rows = {{"length", "depth", "expected", "answer"}};
  for (const PasskeyRecord& r : run.records) {
    if (r.hit() || rows.size() > 20) continue;
    std::string expected;
    for (const std::string& e : r.expected) expected += (expected.empty() ? "" : ", ") + e;
    rows.push_back({format_count(r.length), format_percent(r.depth), excerpt(expected, 80),
                    r.ok() ? excerpt(r.output, 60) : "error: " + excerpt(r.error, 120)});
  }
  return rows;
}

void add_run(Report* report, const PasskeyRun& run, bool several) {
  const json target = run.header.value("target", json::object());
  report->heading(several ? run.label : "Results by length");
  const std::string note = run.header.value("note", "");
  report->table(fmt::format("{} · task {} · filler {} · prompts as {} · {}{}", target.value("model", "?"),
                            config_of(run, "task", "?"), config_of(run, "filler", "?"), config_of(run, "prompts", "?"),
                            run.header.value("created", ""), note.empty() ? "" : " · " + note),
                passkey_table(run));
  Table misses = miss_table(run);
  if (misses.size() > 1) report->table("Prompts that were not answered right (at most 20)", std::move(misses));
}

}  // namespace

std::string slug(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_') {
      out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    } else if (!out.empty() && out.back() != '-') {
      out.push_back('-');
    }
  }
  while (out.ends_with('-') || out.ends_with('.')) out.pop_back();
  return out.empty() ? "run" : out;
}

Report make_passkey_report(const std::vector<PasskeyRun>& runs, const std::string& title) {
  std::string subtitle;
  for (const PasskeyRun& run : runs) subtitle += (subtitle.empty() ? "" : " · ") + run.label;
  Report report(title.empty() ? "Retrieval by length and depth" : title, subtitle);
  if (runs.size() == 1) {
    const PasskeyRun& run = runs[0];
    const std::vector<LengthStats> stats = stats_by_length(run.records);
    int64_t longest_perfect = 0;
    double peak = -1;
    int errors = 0;
    for (const LengthStats& s : stats) {
      if (s.accuracy() >= 1) longest_perfect = s.length;
      peak = std::max(peak, s.peak_rss_bytes);
      errors += s.errors;
    }
    std::vector<std::pair<std::string, std::string>> tiles = {
        {"accuracy, all cells", format_percent(overall_accuracy(run.records))},
        {"prompts answered", fmt::format("{}", run.records.size() - static_cast<size_t>(errors))},
        {"longest prompt", stats.empty() ? "–" : format_count(stats.back().length)},
        {"longest length without a miss", longest_perfect > 0 ? format_count(longest_perfect) : "–"}};
    if (!stats.empty() && stats.back().ttft.count > 0) {
      tiles.push_back({"slowest first token", format_ms(stats.back().ttft.max)});
    }
    if (peak > 0) tiles.push_back({"peak server memory", format_bytes(peak)});
    if (errors > 0) tiles.push_back({"errors", fmt::format("{}", errors)});
    report.tiles(std::move(tiles));
  }
  std::vector<Chart> maps;
  std::set<std::string> used;
  for (const PasskeyRun& run : runs) {
    std::string id = runs.size() == 1 ? "heatmap" : "heatmap-" + slug(run.label);
    while (!used.insert(id).second) id += "-2";
    maps.push_back(draw_heat_map(run, id, "Accuracy by length and depth" + (runs.size() > 1 ? ": " + run.label : "")));
    maps.back().caption =
        "Per cent of answers right; means in the margins; grey: not run. Point at a cell for details.";
  }
  report.charts(std::move(maps));
  std::vector<Chart> charts = {accuracy_chart(runs), ttft_chart(runs), prefill_chart(runs)};
  if (has_memory(runs)) charts.push_back(memory_chart(runs));
  report.charts(std::move(charts));
  for (const PasskeyRun& run : runs) add_run(&report, run, runs.size() > 1);
  report.heading("How it was measured");
  report.paragraph(
      "Each prompt has exactly the length shown (token ids, no special tokens) unless a note says that lengths are "
      "approximate. The key is put at the filler boundary nearest to the depth. Decoding is greedy; an answer is right "
      "when all its digits (all values, for tasks with several) are right. Times are taken by the client when bytes "
      "arrive at its socket. Prompts of one length share their beginning, so a server with a prefix cache answers "
      "later ones faster: the cached share is shown, and the chart of times uses uncached requests.");
  return report;
}

}  // namespace bam::client
