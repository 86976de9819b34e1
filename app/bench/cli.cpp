#include "app/bench/cli.h"

#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include "base/error.h"

namespace bam::bench {
namespace {

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

int run_command(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& shown) {  // --help
    return app.exit(shown);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "bam {}: {} (see --help)\n", argv[0], one_line(error.what()));
    return 2;
  }
  try {
    return body();
  } catch (const UsageError& error) {
    fmt::print(stderr, "bam {}: {}\n", argv[0], one_line(error.what()));
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bam {}: {}\n", argv[0], one_line(error.what()));
    return 1;
  }
}

void add_report_options(CLI::App& app, ReportOptions* options) {
  app.add_option("--report", options->html, "Write one self-contained HTML file");
  app.add_option("--svg", options->svg_dir, "Write every chart as an SVG file into this folder");
  app.add_option("--markdown", options->markdown, "Write the tables as Markdown");
  app.add_option("--title", options->title, "Title of the report");
}

}  // namespace bam::bench
