#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/client/svg.h"

namespace bam::client {

enum class Scale { kLinear, kLog10, kLog2 };

struct Series {
  std::string name;
  std::vector<double> x, y;
  std::vector<double> low, high;  // optional band, same size
  bool line = true;
  bool markers = true;
  bool steps = false;  // staircase, for distributions
};

struct Axis {
  std::string label;
  Scale scale = Scale::kLinear;
  // low < high fixes the range; otherwise it follows the data (a linear axis then starts at zero).
  double low = 0, high = 0;
  std::vector<double> ticks;                  // empty: chosen
  std::function<std::string(double)> format;  // of tick labels and tips
};

// A vertical line with a word beside it.
struct Mark {
  double x = 0;
  std::string label;
};

struct LineChartSpec {
  std::string id, title, caption;
  Axis x, y;                                // one that is not linear says so
  std::optional<Mark> mark = std::nullopt;  // drawn if it is within the axis
  std::vector<Series> series;
  double width = 560, height = 320;
};

// Points that are not finite (or not positive on a log axis) are left out. Never fails: no data gives an empty frame
// that says so.
Chart draw_line_chart(const LineChartSpec& spec);

// About `count` round numbers covering [low, high].
std::vector<double> nice_ticks(double low, double high, int count);
// Decades, with 2 and 5 between them when there are few.
std::vector<double> log_ticks(double low, double high);

}  // namespace bam::client
