#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace bam::client {

// --report --svg --markdown, shared by every command that draws.
struct ReportOptions {
  std::string html;
  std::string svg_dir;
  std::string markdown;
  std::string title;
  bool any() const { return !html.empty() || !svg_dir.empty() || !markdown.empty(); }
};
void add_report_options(CLI::App& app, ReportOptions* options);

}  // namespace bam::client
