#include "app/client/terminal.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

namespace bam::client {

LiveArea::LiveArea() {
  const char* term = std::getenv("TERM");
  enabled_ = isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
  colour_ = std::getenv("NO_COLOR") == nullptr;
}

LiveArea::~LiveArea() { drawn_ = 0; }

void LiveArea::clear() {
  if (drawn_ == 0) return;
  std::fprintf(stderr, "\x1b[%zuA\x1b[J", drawn_);
  drawn_ = 0;
}

void LiveArea::draw(const std::vector<std::string>& lines) {
  if (!enabled_) return;
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2;
  // Cursor movement cannot reach beyond the screen's top: keep what fits.
  const size_t fits = std::min<size_t>(lines.size(), known ? size.ws_row - 1u : 20u);
  clear();
  // No wrapping: a line cut by the terminal still counts as one.
  std::fputs("\x1b[?7l", stderr);
  for (size_t i = lines.size() - fits; i < lines.size(); ++i) {
    std::fprintf(stderr, "%s\n", lines[i].c_str());
  }
  std::fputs("\x1b[?7h", stderr);
  std::fflush(stderr);
  drawn_ = fits;
}

void LiveArea::print_above(std::string_view line) {
  clear();
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

void ReadingLine::show(double elapsed_ms, const std::string& line) {
  constexpr double kShortWaitMs = 300;
  if (wanted_ && elapsed_ms >= kShortWaitMs) area_.draw({line});
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string align_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - display_width(row[i]), ' ');
      if (i > 0) text += "  ";
      text += i == 0 ? row[i] + padding : padding + row[i];
    }
    while (text.ends_with(' ')) text.pop_back();
    text += '\n';
  }
  return text;
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += '|';
    for (const std::string& cell : rows[r]) {
      text += ' ';
      for (const char c : cell) {
        if (c == '|') text += '\\';
        text += c;
      }
      text += " |";
    }
    text += '\n';
    if (r > 0) continue;
    text += '|';
    for (size_t i = 0; i < rows[0].size(); ++i) text += i == 0 ? "---|" : "---:|";
    text += '\n';
  }
  return text;
}

}  // namespace bam::client
