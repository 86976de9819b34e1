#include "app/client/report_options.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "app/units.h"

namespace bam::client {

void add_report_options(CLI::App& app, ReportOptions* options) {
  app.add_option("--report", options->html, "Write one self-contained HTML file");
  app.add_option("--svg", options->svg_dir, "Write every chart as an SVG file into this folder");
  app.add_option("--markdown", options->markdown, "Write the tables as Markdown");
  app.add_option("--title", options->title, "Title of the report");
}

std::vector<std::string> distinct_labels(std::vector<std::string> labels, const std::vector<std::string>& files) {
  const std::vector<std::string> given = labels;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (std::count(given.begin(), given.end(), given[i]) < 2) continue;
    labels[i] += fmt::format(" ({})", std::filesystem::path(files[i]).stem().string());
  }
  return labels;
}

std::optional<Mark> training_mark(const std::vector<nlohmann::json>& headers) {
  std::optional<int64_t> common;
  for (const nlohmann::json& header : headers) {
    const nlohmann::json target = header.value("target", nlohmann::json::object());
    const nlohmann::json length = target.is_object() ? target.value("training_context", nlohmann::json()) : target;
    if (!length.is_number_integer() || common.value_or(length) != length) return std::nullopt;
    common = length.get<int64_t>();
  }
  if (!common) return std::nullopt;
  return Mark{static_cast<double>(*common), "trained at " + format_count(*common)};
}

}  // namespace bam::client
