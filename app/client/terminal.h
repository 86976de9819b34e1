#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bam::client {

// Lines redrawn in place on a terminal; nothing at all elsewhere. Writes to stderr, so that stdout stays a result.
class LiveArea {
 public:
  LiveArea();
  ~LiveArea();
  bool enabled() const { return enabled_; }
  bool colour() const { return enabled_ && colour_; }
  void draw(const std::vector<std::string>& lines);
  // Prints a line that stays, above the area.
  void print_above(std::string_view line);
  void clear();

 private:
  bool enabled_ = false;
  bool colour_ = false;
  size_t drawn_ = 0;
};

// One line about a prompt that is being read. It comes only after a moment: most prompts are short.
class ReadingLine {
 public:
  explicit ReadingLine(bool wanted) : wanted_(wanted) {}
  void show(double elapsed_ms, const std::string& line);
  void clear() { area_.clear(); }

 private:
  LiveArea area_;
  bool wanted_;
};

// Columns aligned by display width (UTF-8 aware): the first left, the others right.
std::string align_table(const std::vector<std::vector<std::string>>& rows);
// | a | b | with the separator line of Markdown.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);
size_t display_width(std::string_view text);

}  // namespace bam::client
