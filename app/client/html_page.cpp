#include "app/client/html_page.h"

#include <filesystem>

#include <fmt/format.h>

#include "app/client/terminal.h"
#include "app/units.h"

namespace bam::client {
namespace {

constexpr std::string_view kPageCss = R"(
:root{color-scheme:light dark;--fg:#1c1f24;--muted:#5d6570;--bg:#f5f6f8;--card:#fff;--line:#e3e6ea;--accent:#0072b2}
@media (prefers-color-scheme:dark){:root{--fg:#e8eaed;--muted:#a2abb6;--bg:#0e1013;--card:#15181c;--line:#2c3138;--accent:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:34px 0 12px}
.sub{color:var(--muted);margin:0 0 20px}
p{max-width:80ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:22px;font-weight:650;font-variant-numeric:tabular-nums;letter-spacing:-.01em;overflow-wrap:anywhere}
.tile span{color:var(--muted);font-size:13px}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px;margin:0 0 16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;overflow-x:auto}
figure h3{font-size:15px;margin:0 0 10px;font-weight:600}
figure svg{display:block;width:100%;height:auto;max-height:640px}
figcaption{color:var(--muted);font-size:13px;margin-top:8px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px;margin:0 0 16px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
caption{text-align:left;color:var(--muted);font-size:13px;padding:10px 14px 4px}
th,td{padding:6px 10px;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}
thead th{color:var(--muted);font-weight:600;border-top:0}
th:first-child,td:first-child{text-align:left}
td:first-child{max-width:46ch;overflow:hidden;text-overflow:ellipsis}
footer{color:var(--muted);font-size:13px;margin-top:32px}
@media print{body{background:#fff}figure,.scroll,.tile{break-inside:avoid}}
)";

std::string table_html(const std::string& caption, const Table& rows) {
  std::string html = "<div class=\"scroll\"><table>";
  if (!caption.empty()) html += fmt::format("<caption>{}</caption>", xml_escape(caption));
  for (size_t r = 0; r < rows.size(); ++r) {
    html += r == 0 ? "<thead><tr>" : r == 1 ? "<tbody><tr>" : "<tr>";
    for (const std::string& cell : rows[r]) {
      html += fmt::format("<{0}>{1}</{0}>", r == 0 ? "th" : "td", xml_escape(cell));
    }
    html += r == 0 ? "</tr></thead>" : "</tr>";
  }
  return html + (rows.size() > 1 ? "</tbody>" : "") + "</table></div>\n";
}

std::string chart_html(const Chart& chart) {
  return fmt::format("<figure id=\"{}\"><h3>{}</h3>{}{}</figure>\n", xml_escape(chart.id), xml_escape(chart.title),
                     chart.inline_svg(),
                     chart.caption.empty() ? "" : "<figcaption>" + xml_escape(chart.caption) + "</figcaption>");
}

}  // namespace

void Report::heading(std::string text) { blocks_.push_back({Block::kHeading, std::move(text)}); }
void Report::paragraph(std::string text) { blocks_.push_back({Block::kParagraph, std::move(text)}); }

void Report::tiles(std::vector<std::pair<std::string, std::string>> items) {
  Block block{Block::kTiles};
  block.items = std::move(items);
  blocks_.push_back(std::move(block));
}

void Report::charts(std::vector<Chart> row) {
  Block block{Block::kCharts};
  block.charts = std::move(row);
  blocks_.push_back(std::move(block));
}

void Report::table(std::string caption, Table rows) {
  Block block{Block::kTable, std::move(caption)};
  block.rows = std::move(rows);
  blocks_.push_back(std::move(block));
}

std::string Report::html() const {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<title>{0}</title><style>{1}{2}</style></head><body><main>\n<h1>{0}</h1><p class=\"sub\">{3}</p>\n",
      xml_escape(title_), kPageCss, svg_css(), xml_escape(subtitle_));
  for (const Block& block : blocks_) {
    switch (block.kind) {
      case Block::kHeading: page += fmt::format("<h2>{}</h2>\n", xml_escape(block.text)); break;
      case Block::kParagraph: page += fmt::format("<p>{}</p>\n", xml_escape(block.text)); break;
      case Block::kTiles:
        page += "<div class=\"tiles\">";
        for (const auto& [name, value] : block.items) {
          page +=
              fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", xml_escape(value), xml_escape(name));
        }
        page += "</div>\n";
        break;
      case Block::kCharts:
        page += "<div class=\"row\">";
        for (const Chart& chart : block.charts) page += chart_html(chart);
        page += "</div>\n";
        break;
      case Block::kTable: page += table_html(block.text, block.rows); break;
    }
  }
  return page + "</main></body></html>\n";
}

std::string Report::markdown(const std::string& svg_prefix) const {
  std::string text = fmt::format("# {}\n\n{}\n", title_, subtitle_);
  for (const Block& block : blocks_) {
    switch (block.kind) {
      case Block::kHeading: text += fmt::format("\n## {}\n", block.text); break;
      case Block::kParagraph: text += fmt::format("\n{}\n", block.text); break;
      case Block::kTiles: {
        Table rows(2);
        for (const auto& [name, value] : block.items) {
          rows[0].push_back(name);
          rows[1].push_back(value);
        }
        text += "\n" + markdown_table(rows);
        break;
      }
      case Block::kCharts:
        if (svg_prefix.empty()) break;
        for (const Chart& chart : block.charts) {
          text += fmt::format("\n![{}]({}{}.svg)\n", chart.title, svg_prefix, chart.id);
        }
        break;
      case Block::kTable:
        text += "\n" + markdown_table(block.rows);
        if (!block.text.empty()) text += fmt::format("\n{}\n", block.text);
        break;
    }
  }
  return text;
}

void Report::write(const ReportOptions& options) const {
  namespace fs = std::filesystem;
  if (!options.html.empty()) {
    write_text_file(options.html, html());
    fmt::print(stderr, "report: {}\n", options.html);
  }
  if (!options.svg_dir.empty()) {
    int count = 0;
    for (const Block& block : blocks_) {
      for (const Chart& chart : block.charts) {
        write_text_file((fs::path(options.svg_dir) / (chart.id + ".svg")).string(), chart.standalone_svg());
        ++count;
      }
    }
    fmt::print(stderr, "charts: {} SVG files in {}\n", count, options.svg_dir);
  }
  if (!options.markdown.empty()) {
    std::string prefix;
    if (!options.svg_dir.empty()) {
      const fs::path base = fs::absolute(options.markdown).parent_path();
      prefix = fs::absolute(options.svg_dir).lexically_relative(base).generic_string() + "/";
    }
    write_text_file(options.markdown, markdown(prefix));
    fmt::print(stderr, "tables: {}\n", options.markdown);
  }
}

}  // namespace bam::client
