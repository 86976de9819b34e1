#pragma once

#include <string>
#include <string_view>

namespace bam::client {

// A drawing with a name. Colours come from CSS classes, so that one drawing is right on light and dark pages.
struct Chart {
  std::string id;       // file name and anchor: "accuracy-by-length"
  std::string title;    // also the accessible name
  std::string caption;  // one sentence under the picture
  double width = 0, height = 0;
  std::string body;  // SVG elements

  std::string inline_svg() const;      // for an HTML page that has svg_css()
  std::string standalone_svg() const;  // a file of its own: style, background and title included
};

// Classes: t text, m muted text, g grid line, x axis line, bg background, s0…s7 series as stroke, f0…f7 as fill.
std::string svg_css();
inline constexpr int kNumSeriesColours = 8;

std::string xml_escape(std::string_view text);

// Collects elements; coordinates in user units, rounded to a hundredth.
class SvgCanvas {
 public:
  void line(double x1, double y1, double x2, double y2, std::string_view cls);
  void rect(double x, double y, double w, double h, std::string_view attributes, std::string_view tip = {});
  // anchor: start, middle, end. dy shifts the baseline: 0 bottom, 0.35 middle (in em).
  void text(double x, double y, std::string_view text, std::string_view cls, std::string_view anchor = "start",
            double size = 12, std::string_view extra = {});
  void path(std::string_view d, std::string_view attributes, std::string_view tip = {});
  // Shape by series number: circle, square, triangle, diamond, so that colour is not the only difference.
  void marker(double x, double y, int series, double size, std::string_view tip = {});
  void raw(std::string_view element) { body_ += element; }
  std::string take() { return std::move(body_); }

 private:
  std::string body_;
};

// Sequential scale for a share 0 … 1, readable with every kind of colour vision: burnt orange – sand – blue.
std::string share_colour(double share);
// "#fff" or "#111", whichever reads better on it.
std::string text_colour_on(double share);

}  // namespace bam::client
