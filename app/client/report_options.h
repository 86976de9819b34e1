#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "app/client/line_chart.h"

namespace bam::client {

// --report --svg --markdown, and what else every command that draws shares.
struct ReportOptions {
  std::string html;
  std::string svg_dir;
  std::string markdown;
  std::string title;
  bool any() const { return !html.empty() || !svg_dir.empty() || !markdown.empty(); }
};
void add_report_options(CLI::App& app, ReportOptions* options);

// Two runs of one model get the names of their files.
std::vector<std::string> distinct_labels(std::vector<std::string> labels, const std::vector<std::string>& files);

// The length at which all these runs' models were trained, as their servers said ("target" of a result file).
std::optional<Mark> training_mark(const std::vector<nlohmann::json>& headers);

}  // namespace bam::client
