#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/client/report_options.h"
#include "app/client/svg.h"

namespace bam::client {

using Table = std::vector<std::vector<std::string>>;  // the first row is the head

// A report as a list of blocks; written as one HTML file, as SVG files and as Markdown.
class Report {
 public:
  explicit Report(std::string title, std::string subtitle) : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

  void heading(std::string text);
  void paragraph(std::string text);
  // Small tiles with one figure each: (name, value).
  void tiles(std::vector<std::pair<std::string, std::string>> items);
  void charts(std::vector<Chart> row);  // side by side where the window is wide enough
  void table(std::string caption, Table rows);

  std::string html() const;
  std::string markdown(const std::string& svg_prefix) const;  // pictures as links, if the prefix is not empty
  // Writes whatever the options ask for and says so on stderr.
  void write(const ReportOptions& options) const;

 private:
  struct Block {
    enum Kind { kHeading, kParagraph, kTiles, kCharts, kTable } kind;
    std::string text;
    std::vector<std::pair<std::string, std::string>> items;
    std::vector<Chart> charts;
    Table rows;
  };
  std::string title_, subtitle_;
  std::vector<Block> blocks_;
};

}  // namespace bam::client
