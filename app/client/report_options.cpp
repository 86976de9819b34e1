#include "app/client/report_options.h"

namespace bam::client {

void add_report_options(CLI::App& app, ReportOptions* options) {
  app.add_option("--report", options->html, "Write one self-contained HTML file");
  app.add_option("--svg", options->svg_dir, "Write every chart as an SVG file into this folder");
  app.add_option("--markdown", options->markdown, "Write the tables as Markdown");
  app.add_option("--title", options->title, "Title of the report");
}

}  // namespace bam::client
