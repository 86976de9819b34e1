#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace bam::bench {

// Parses and runs: --help exits with 0, a bad flag or UsageError prints one line and gives 2, any other Error 1.
int run_command(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

// --report --svg --markdown, shared by every command that draws.
struct ReportOptions {
  std::string html;
  std::string svg_dir;
  std::string markdown;
  std::string title;
  bool any() const { return !html.empty() || !svg_dir.empty() || !markdown.empty(); }
};
void add_report_options(CLI::App& app, ReportOptions* options);

}  // namespace bam::bench
