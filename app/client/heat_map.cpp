#include "app/client/heat_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "app/client/stats.h"
#include "app/units.h"

namespace bam::client {
namespace {

struct CellSum {
  double score = 0;
  int count = 0;
  int errors = 0;
  std::vector<double> ttft_ms;
  std::string miss;  // what came instead, of one miss
  void add(const PasskeyRecord& r) {
    score += r.ok() ? r.score : 0;
    ++count;
    errors += !r.ok();
    if (r.ttft_ms > 0) ttft_ms.push_back(r.ttft_ms);
    if (!r.hit() && miss.empty()) miss = r.ok() ? excerpt(r.output, 60) : excerpt(r.error, 120);
  }
  double share() const { return count > 0 ? score / count : std::numeric_limits<double>::quiet_NaN(); }
};

// "100", "97.5", "<1": without a per cent sign, for small cells.
std::string short_percent(double share) {
  const double p = share * 100;
  if (p > 99.9 && p < 100) return "99.9";
  return fmt::format("{:.{}f}", p, p == std::floor(p) || p >= 99.95 ? 0 : 1);
}

void draw_cell(SvgCanvas& canvas, double x, double y, double w, double h, const CellSum* cell, bool always_label,
               const std::string& where) {
  constexpr double kGap = 1.5;
  if (cell == nullptr || cell->count == 0) {
    canvas.rect(x, y, w - kGap, h - kGap, "class=\"none\" rx=\"2\"", where + ": not run");
    return;
  }
  const double share = cell->share();
  std::string tip = fmt::format("{}: {} of {}", where, short_percent(share) + " %", cell->count);
  if (!cell->ttft_ms.empty()) tip += ", TTFT " + format_ms(median(cell->ttft_ms));
  if (cell->errors > 0) tip += fmt::format(", {} error(s)", cell->errors);
  if (!cell->miss.empty()) tip += ", a miss: " + cell->miss;
  canvas.rect(x, y, w - kGap, h - kGap, fmt::format("rx=\"2\" fill=\"{}\"", share_colour(share)), tip);
  // Perfect cells stay quiet; the eye should land on the others.
  if ((always_label || share < 1) && h >= 13 && w >= 26) {
    const double size = std::min(12.0, h * 0.62);
    canvas.text(x + (w - kGap) / 2, y + (h - kGap) / 2 + size * 0.36, short_percent(share), "v", "middle", size,
                fmt::format("fill=\"{}\" pointer-events=\"none\"", text_colour_on(share)));
  }
}

void draw_colour_bar(SvgCanvas& canvas, double x, double y, double height) {
  constexpr int kSteps = 40;
  for (int i = 0; i < kSteps; ++i) {
    const double share = 1 - (i + 0.5) / kSteps;
    canvas.rect(x, y + height * i / kSteps, 12, height / kSteps + 0.6, fmt::format("fill=\"{}\"", share_colour(share)));
  }
  for (const int percent : {0, 25, 50, 75, 100}) {
    canvas.text(x + 18, y + height * (100 - percent) / 100 + 4, fmt::format("{} %", percent), "m", "start", 11);
  }
}

}  // namespace

Chart draw_heat_map(const PasskeyRun& run, const std::string& id, const std::string& title) {
  std::map<std::pair<int64_t, int64_t>, CellSum> cells;  // (length, depth in ppm)
  std::map<int64_t, CellSum> by_length, by_depth;
  CellSum total;
  for (const PasskeyRecord& r : run.records) {
    const int64_t depth = std::llround(r.depth * 1e6);
    cells[{r.length, depth}].add(r);
    by_length[r.length].add(r);
    by_depth[depth].add(r);
    total.add(r);
  }
  const auto columns = static_cast<double>(std::max<size_t>(by_length.size(), 1));
  const auto rows = static_cast<double>(std::max<size_t>(by_depth.size(), 1));
  const double left = 70, top = 22, bar = 74, mean_w = 54, gap = 8;
  const double cell_w = std::clamp(600 / columns, 28.0, 72.0);
  const double cell_h = std::clamp(380 / rows, 9.0, 30.0);
  const double grid_w = cell_w * columns, grid_h = cell_h * rows;
  const double mean_h = std::max(cell_h, 20.0);
  SvgCanvas canvas;

  const double depth_step = std::ceil(15 / cell_h);  // rows between two labels
  int row = 0;
  for (const auto& [depth, sum] : by_depth) {
    const double y = top + cell_h * row;
    const std::string name = fmt::format("{:.{}f} %", static_cast<double>(depth) / 1e4, depth % 10000 == 0 ? 0 : 1);
    const bool last = row + 1 == static_cast<int>(rows);
    if (std::fmod(row, depth_step) == 0 || last) {
      canvas.text(left - 8, y + cell_h / 2 + 3.5, fmt::format("{:.0f} %", static_cast<double>(depth) / 1e4), "m", "end",
                  11);
    }
    int column = 0;
    for (const auto& [length, ignored] : by_length) {
      const auto found = cells.find({length, depth});
      draw_cell(canvas, left + cell_w * column++, y, cell_w, cell_h, found == cells.end() ? nullptr : &found->second,
                false, fmt::format("{} tokens, depth {}", format_count(length), name));
    }
    draw_cell(canvas, left + grid_w + gap, y, mean_w, cell_h, &sum, true, "all lengths, depth " + name);
    ++row;
  }
  int column = 0;
  for (const auto& [length, sum] : by_length) {
    const double x = left + cell_w * column++;
    draw_cell(canvas, x, top + grid_h + gap, cell_w, mean_h, &sum, true, format_count(length) + " tokens, all depths");
    canvas.text(x + cell_w / 2, top + grid_h + gap + mean_h + 16, format_count(length), "m", "middle", 11.5);
  }
  draw_cell(canvas, left + grid_w + gap, top + grid_h + gap, mean_w, mean_h, &total, true, "all");
  canvas.text(left + grid_w + gap + mean_w / 2, top - 8, "mean", "m", "middle", 11);
  canvas.text(left - 8, top + grid_h + gap + mean_h / 2 + 4, "mean", "m", "end", 11);
  canvas.text(left + grid_w / 2, top + grid_h + gap + mean_h + 36, "prompt length (tokens)", "m", "middle", 12);
  canvas.text(0, 0, "depth of the key", "m", "middle", 12,
              fmt::format("transform=\"translate(13 {:.1f}) rotate(-90)\"", top + grid_h / 2));
  const double bar_x = left + grid_w + gap + mean_w + 18;
  draw_colour_bar(canvas, bar_x, top, std::max(grid_h, 80.0));

  Chart chart;
  chart.id = id;
  chart.title = title;
  chart.width = bar_x + bar - 8;
  chart.height = std::max(top + grid_h + gap + mean_h + 46, top + 110);
  chart.body = canvas.take();
  return chart;
}

}  // namespace bam::client
