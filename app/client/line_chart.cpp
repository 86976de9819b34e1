#include "app/client/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "app/client/terminal.h"
#include "app/units.h"

namespace bam::client {
namespace {

bool usable(double v, Scale scale) { return std::isfinite(v) && (scale == Scale::kLinear || v > 0); }

// Maps data to pixels along one axis.
class AxisMap {
 public:
  AxisMap(const Axis& axis, double data_low, double data_high, double from, double to)
      : axis_(axis), from_(from), to_(to) {
    const bool fixed = axis.low < axis.high;
    low_ = fixed ? axis.low : data_low;
    high_ = fixed ? axis.high : data_high;
    if (!std::isfinite(low_) || !std::isfinite(high_)) low_ = 1, high_ = 10;
    if (axis.scale == Scale::kLinear) {
      if (!fixed && axis.ticks.empty()) {
        low_ = std::min(low_, 0.0);
        high_ += (high_ - low_) * 0.05;
      }
      if (high_ <= low_) high_ = low_ + 1;
      ticks_ = axis.ticks.empty() ? nice_ticks(low_, high_, 5) : axis.ticks;
    } else {
      if (!fixed) {
        const double pad = std::max(std::pow(high_ / low_, 0.04), 1.02);
        low_ /= pad, high_ *= pad;
      }
      ticks_ = axis.ticks.empty() ? log_ticks(low_, high_) : axis.ticks;
    }
    std::erase_if(ticks_, [&](double t) { return t < low_ * (1 - 1e-9) - 1e-12 || t > high_ * (1 + 1e-9); });
  }
  double operator()(double v) const {
    const bool log = axis_.scale != Scale::kLinear;
    const double a = log ? std::log(low_) : low_, b = log ? std::log(high_) : high_;
    const double t = ((log ? std::log(std::max(v, low_ * 1e-6)) : v) - a) / (b - a);
    return from_ + std::clamp(t, -0.02, 1.02) * (to_ - from_);
  }
  bool has(double v) const { return v >= low_ && v <= high_; }
  const std::vector<double>& ticks() const { return ticks_; }
  std::string format(double v) const { return axis_.format ? axis_.format(v) : format_value(v); }

 private:
  const Axis& axis_;
  double from_, to_, low_, high_;
  std::vector<double> ticks_;
};

std::string axis_label(const Axis& axis) { return axis.label + (axis.scale == Scale::kLinear ? "" : ", logarithmic"); }

std::string svg_number(double v) { return fmt::format("{:.1f}", v); }

void draw_series(SvgCanvas& canvas, const LineChartSpec& spec, const Series& series, int index, const AxisMap& x,
                 const AxisMap& y) {
  std::string line, upper, lower;
  double last_y = 0;
  std::vector<size_t> shown;
  for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
    if (usable(series.x[i], spec.x.scale) && usable(series.y[i], spec.y.scale)) shown.push_back(i);
  }
  const bool band = series.low.size() == series.x.size() && series.high.size() == series.x.size();
  for (const size_t i : shown) {
    const double px = x(series.x[i]), py = y(series.y[i]);
    if (line.empty()) {
      line = "M" + svg_number(px) + " " + svg_number(py);
    } else {
      if (series.steps) line += "L" + svg_number(px) + " " + svg_number(last_y);
      line += "L" + svg_number(px) + " " + svg_number(py);
    }
    last_y = py;
    if (band) {
      upper += fmt::format("{}{:.1f} {:.1f}", upper.empty() ? "M" : "L", px, y(series.high[i]));
      lower = fmt::format("L{:.1f} {:.1f}", px, y(series.low[i])) + lower;
    }
  }
  const int colour = index % kNumSeriesColours;
  if (band && shown.size() > 1) canvas.path(upper + lower + "z", fmt::format("class=\"f{}\" opacity=\"0.14\"", colour));
  if (series.line && shown.size() > 1) {
    static constexpr const char* kDashes[] = {"", "7 4", "2 4", "9 3 2 3"};
    const char* dash = kDashes[index % 4];
    canvas.path(line, fmt::format("class=\"s{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{}", colour,
                                  *dash ? fmt::format(" stroke-dasharray=\"{}\"", dash) : ""));
  }
  if (!series.markers && !(shown.size() == 1)) return;
  for (const size_t i : shown) {
    canvas.marker(x(series.x[i]), y(series.y[i]), index, series.line ? 4.2 : 3.2,
                  fmt::format("{}{}{}: {}", series.name, series.name.empty() ? "" : ", ", x.format(series.x[i]),
                              y.format(series.y[i])));
  }
}

void draw_legend(SvgCanvas& canvas, const std::vector<Series>& series, double left, double width, double* bottom) {
  double x = left, y = 14;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series[i].name.empty()) continue;
    const double item = 30 + 6.7 * static_cast<double>(display_width(series[i].name)) + 16;
    if (x + item > left + width && x > left) x = left, y += 19;
    canvas.line(x, y - 4, x + 22, y - 4, fmt::format("s{}\" stroke-width=\"2", i % kNumSeriesColours));
    canvas.marker(x + 11, y - 4, static_cast<int>(i), 4);
    canvas.text(x + 28, y, series[i].name, "t");
    x += item;
  }
  *bottom = y;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power * 10;
  for (const double m : {1.0, 2.0, 2.5, 5.0}) {
    if (power * m >= raw * 0.999) {
      step = power * m;
      break;
    }
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12) + 1e-300; ++i) {
    ticks.push_back(i * step == 0 ? 0 : i * step);
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  const double decades = std::log10(high / low);
  std::vector<double> ticks;
  for (double p = std::floor(std::log10(low)); p <= std::ceil(std::log10(high)); ++p) {
    for (const double m : {1.0, 2.0, 5.0}) {
      if (m > 1 && decades > 3.5) continue;
      const double t = m * std::pow(10, p);
      if (t >= low && t <= high) ticks.push_back(t);
    }
  }
  if (ticks.size() < 2) return nice_ticks(low, high, 4);
  return ticks;
}

Chart draw_line_chart(const LineChartSpec& spec) {
  SvgCanvas canvas;
  const double left = 62, right = 24, plot_w = spec.width - left - right;
  double legend_bottom = 0;
  const bool named = std::any_of(spec.series.begin(), spec.series.end(), [](auto& s) { return !s.name.empty(); });
  if (named) draw_legend(canvas, spec.series, 8, spec.width - 16, &legend_bottom);
  const double top = legend_bottom + 34, bottom = spec.height - 46;

  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low, y_low = x_low, y_high = -x_low;
  for (const Series& s : spec.series) {
    for (size_t i = 0; i < std::min(s.x.size(), s.y.size()); ++i) {
      if (!usable(s.x[i], spec.x.scale) || !usable(s.y[i], spec.y.scale)) continue;
      x_low = std::min(x_low, s.x[i]), x_high = std::max(x_high, s.x[i]);
      y_low = std::min(y_low, s.y[i]), y_high = std::max(y_high, s.y[i]);
    }
  }
  const bool empty = !(x_low <= x_high);
  const AxisMap x(spec.x, x_low, x_high, left, left + plot_w);
  const AxisMap y(spec.y, y_low, y_high, bottom, top);
  for (const double t : y.ticks()) {
    canvas.line(left, y(t), left + plot_w, y(t), "g");
    canvas.text(left - 8, y(t) + 4, y.format(t), "m", "end", 11.5);
  }
  double last_label = -1e9;
  for (const double t : x.ticks()) {
    canvas.line(x(t), bottom, x(t), bottom + 4, "x");
    const double half = 3.4 * static_cast<double>(display_width(x.format(t)));
    if (x(t) - half < last_label + 6) continue;  // labels never touch
    canvas.text(x(t), bottom + 18, x.format(t), "m", "middle", 11.5);
    last_label = x(t) + half;
  }
  canvas.line(left, bottom, left + plot_w, bottom, "x");
  canvas.text(left + plot_w / 2, spec.height - 8, axis_label(spec.x), "m", "middle", 12);
  canvas.text(8, top - 14, axis_label(spec.y), "m", "start", 12);
  if (spec.mark && !empty && x.has(spec.mark->x)) {
    const double at = x(spec.mark->x), middle = (top + bottom) / 2;
    canvas.line(at, top, at, bottom, "x\" stroke-dasharray=\"5 4");
    // Beside the line, at half height: curves begin above it or below.
    canvas.text(at - 5, middle, spec.mark->label, "m", "middle", 11,
                fmt::format("transform=\"rotate(-90 {:.1f} {:.1f})\"", at - 5, middle));
  }
  if (empty) canvas.text(left + plot_w / 2, (top + bottom) / 2, "no data", "m", "middle", 14);
  // Later series must not hide earlier ones' markers: draw in reverse, the first on top.
  for (size_t i = spec.series.size(); i-- > 0;) {
    draw_series(canvas, spec, spec.series[i], static_cast<int>(i), x, y);
  }
  return {spec.id, spec.title, spec.caption, spec.width, spec.height, canvas.take()};
}

}  // namespace bam::client
