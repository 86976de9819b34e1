#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "app/client/line_chart.h"
#include "app/client/perplexity.h"
#include "app/client/report_options.h"
#include "app/units.h"

namespace bam::client {
namespace {

using nlohmann::json;

// Up to ~a dozen windows: all if there are few, else the first and those that end at a doubling.
std::set<int64_t> shown_ends(const std::vector<json>& results) {
  std::set<int64_t> all;
  for (const json& result : results) {
    for (const json& w : result["windows"]) all.insert(w.value("end", int64_t{0}));
  }
  if (all.size() <= 12) return all;
  std::set<int64_t> shown{*all.begin(), *all.rbegin()};
  int64_t next = *all.begin() * 2;
  for (const int64_t end : all) {
    if (end < next) continue;
    shown.insert(end);
    next = end * 2;
  }
  return shown;
}

Chart position_chart(const std::vector<json>& results) {
  LineChartSpec spec;
  spec.id = "perplexity-by-position";
  spec.title = "Perplexity by position";
  spec.caption = "Each point is the mean over one window of positions; the band is two standard errors.";
  size_t most = 0;
  for (const json& r : results) most = std::max(most, r["windows"].size());
  spec.x = {"position in the sequence (tokens)", most > 40 ? Scale::kLog2 : Scale::kLinear, 0, 0, {}, [](double v) {
              return format_count(std::llround(v));
            }};
  if (most > 40) {
    for (const int64_t end : shown_ends(results)) spec.x.ticks.push_back(static_cast<double>(end));
  }
  spec.mark = training_mark(results);
  spec.y = {"perplexity", Scale::kLog10, 0, 0, {}, format_value_short};
  for (const json& r : results) {
    Series series;
    if (results.size() > 1) series.name = r.value("label", "?");
    series.markers = most <= 40;
    for (const json& w : r["windows"]) {
      const double nats = w.value("nats", std::nan("")), error = w.value("nats_stderr", 0.0);
      series.x.push_back(static_cast<double>(w.value("end", int64_t{0})));
      series.y.push_back(std::exp(nats));
      series.low.push_back(std::exp(nats - 2 * error));
      series.high.push_back(std::exp(nats + 2 * error));
    }
    spec.series.push_back(std::move(series));
  }
  return draw_line_chart(spec);
}

}  // namespace

Table perplexity_table(const std::vector<json>& results) {
  Table rows = {{"position"}};
  for (const json& r : results) rows[0].push_back(r.value("label", "?"));
  for (const int64_t end : shown_ends(results)) {
    std::vector<std::string> row = {format_count(end)};
    for (const json& r : results) {
      std::string value = "–";
      for (const json& w : r["windows"]) {
        if (w.value("end", int64_t{0}) == end) value = fmt::format("{:.3f}", w.value("perplexity", 0.0));
      }
      row.push_back(value);
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> total = {"all positions"};
  for (const json& r : results) total.push_back(fmt::format("{:.3f}", r.value("perplexity", 0.0)));
  rows.push_back(std::move(total));
  return rows;
}

Report make_perplexity_report(const std::vector<json>& results, const std::string& title) {
  std::string subtitle;
  for (const json& r : results) {
    const json config = r.value("config", json::object());
    subtitle += fmt::format("{}{}: {}, {} sequences of {} tokens", subtitle.empty() ? "" : " · ", r.value("label", "?"),
                            config.value("file", "?"), config.value("sequences", 0), config.value("length", 0));
  }
  Report report(title.empty() ? "Perplexity by position" : title, subtitle);
  report.charts({position_chart(results)});
  report.table("Perplexity of the window that ends at the position", perplexity_table(results));
  report.paragraph(
      "The text is cut into sequences without special tokens; the server scores each one in a single request, and the "
      "negative log probabilities are averaged by position over all sequences.");
  return report;
}

}  // namespace bam::client
