#include "app/client/svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace bam::client {
namespace {

constexpr std::array<const char*, kNumSeriesColours> kLight = {"#0072b2", "#d55e00", "#008a64", "#b5578a",
                                                               "#a87400", "#3b8fc2", "#5f5f5f", "#7a4fc2"};
constexpr std::array<const char*, kNumSeriesColours> kDark = {"#56b4e9", "#ff8f4d", "#3ad0a0", "#e79ac6",
                                                              "#f0b73f", "#9ad6ff", "#b8b8b8", "#b79bf2"};

using Rgb = std::array<double, 3>;  // linear light

double to_linear(double c) { return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4); }
double to_srgb(double c) { return c <= 0.0031308 ? c * 12.92 : 1.055 * std::pow(c, 1 / 2.4) - 0.055; }

Rgb from_hex(uint32_t hex) {
  return {to_linear((hex >> 16 & 255) / 255.0), to_linear((hex >> 8 & 255) / 255.0), to_linear((hex & 255) / 255.0)};
}

// Equal steps in Oklab look equal; mixing sRGB values would make a muddy middle.
std::array<double, 3> to_oklab(const Rgb& c) {
  const double l = std::cbrt(0.4122214708 * c[0] + 0.5363325363 * c[1] + 0.0514459929 * c[2]);
  const double m = std::cbrt(0.2119034982 * c[0] + 0.6806995451 * c[1] + 0.1073969566 * c[2]);
  const double s = std::cbrt(0.0883024619 * c[0] + 0.2817188376 * c[1] + 0.6299787005 * c[2]);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
          1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
          0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

Rgb from_oklab(const std::array<double, 3>& c) {
  const double l = std::pow(c[0] + 0.3963377774 * c[1] + 0.2158037573 * c[2], 3);
  const double m = std::pow(c[0] - 0.1055613458 * c[1] - 0.0638541728 * c[2], 3);
  const double s = std::pow(c[0] - 0.0894841775 * c[1] - 1.2914855480 * c[2], 3);
  return {4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
          -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
          -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s};
}

Rgb share_rgb(double share) {
  static const std::array<uint32_t, 5> kStops = {0xa83b00, 0xe58a3c, 0xf2e2b8, 0x6fa8d6, 0x1b5e9e};
  const double at = std::clamp(std::isfinite(share) ? share : 0.0, 0.0, 1.0) * (kStops.size() - 1);
  const auto left = std::min(static_cast<size_t>(at), kStops.size() - 2);
  const auto a = to_oklab(from_hex(kStops[left])), b = to_oklab(from_hex(kStops[left + 1]));
  std::array<double, 3> mixed;
  for (size_t i = 0; i < 3; ++i) mixed[i] = a[i] + (b[i] - a[i]) * (at - static_cast<double>(left));
  return from_oklab(mixed);
}

std::string tip_element(std::string_view tip) {
  return tip.empty() ? std::string() : fmt::format("<title>{}</title>", xml_escape(tip));
}

std::string short_number(double v) {
  std::string text = fmt::format("{:.2f}", v);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

}  // namespace

std::string xml_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string share_colour(double share) {
  const Rgb c = share_rgb(share);
  const auto byte = [](double v) {
    return static_cast<int>(std::lround(std::clamp(to_srgb(std::clamp(v, 0.0, 1.0)), 0.0, 1.0) * 255));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", byte(c[0]), byte(c[1]), byte(c[2]));
}

std::string text_colour_on(double share) {
  const Rgb c = share_rgb(share);
  const double luminance = 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
  // WCAG contrast against white and against near-black.
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.056 ? "#fff" : "#111";
}

std::string svg_css() {
  // Plain colours first, dark ones in a media query: viewers without media queries still show a right picture.
  std::string css =
      ".t{fill:#1c1f24}.m{fill:#5d6570}.bg{fill:#ffffff}.g{stroke:#e3e6ea;stroke-width:1}"
      ".x{stroke:#9aa2ad;stroke-width:1}.none{fill:#eef0f3}.halo{stroke:#ffffff}";
  for (size_t i = 0; i < kLight.size(); ++i) {
    css += fmt::format(".s{0}{{stroke:{1};fill:none}}.f{0}{{fill:{1}}}", i, kLight[i]);
  }
  css +=
      "@media (prefers-color-scheme:dark){.t{fill:#e8eaed}.m{fill:#a2abb6}.bg{fill:#15181c}.g{stroke:#2c3138}"
      ".x{stroke:#636b76}.none{fill:#262b31}.halo{stroke:#15181c}";
  for (size_t i = 0; i < kLight.size(); ++i) {
    css += fmt::format(".s{0}{{stroke:{1};fill:none}}.f{0}{{fill:{1}}}", i, kDark[i]);
  }
  css += "}text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif}";
  return css;
}

std::string Chart::inline_svg() const {
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" style=\"max-width:{4}px\" role=\"img\" "
      "aria-label=\"{2}\">{3}</svg>",
      short_number(width), short_number(height), xml_escape(title), body, short_number(1.25 * width));
}

std::string Chart::standalone_svg() const {
  constexpr double kHead = 34;  // room for the title that the HTML page shows itself
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\"><style>{3}</style><rect class=\"bg\" width=\"{0}\" height=\"{1}\"/>"
      "<text class=\"t\" x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"600\">{2}</text>"
      "<g transform=\"translate(0 {4})\">{5}</g></svg>\n",
      short_number(width), short_number(height + kHead), xml_escape(title), svg_css(), short_number(kHead), body);
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, std::string_view cls) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>", short_number(x1),
                       short_number(y1), short_number(x2), short_number(y2), cls);
}

void SvgCanvas::rect(double x, double y, double w, double h, std::string_view attributes, std::string_view tip) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}", short_number(x), short_number(y),
                       short_number(std::max(w, 0.0)), short_number(std::max(h, 0.0)), attributes);
  body_ += tip.empty() ? "/>" : ">" + tip_element(tip) + "</rect>";
}

void SvgCanvas::text(double x, double y, std::string_view text, std::string_view cls, std::string_view anchor,
                     double size, std::string_view extra) {
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\" text-anchor=\"{}\" font-size=\"{}\"{}{}>{}</text>",
                       short_number(x), short_number(y), cls, anchor, short_number(size), extra.empty() ? "" : " ",
                       extra, xml_escape(text));
}

void SvgCanvas::path(std::string_view d, std::string_view attributes, std::string_view tip) {
  body_ += fmt::format("<path d=\"{}\" {}", d, attributes);
  body_ += tip.empty() ? "/>" : ">" + tip_element(tip) + "</path>";
}

void SvgCanvas::marker(double x, double y, int series, double r, std::string_view tip) {
  const std::string cls = fmt::format("class=\"f{} halo\" stroke-width=\"1.2\"", series % kNumSeriesColours);
  const auto at = [&](double dx, double dy) { return short_number(x + dx) + " " + short_number(y + dy); };
  switch (series % 4) {
    case 0:
      path(fmt::format("M{}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", at(-r, 0), fmt::arg("r", short_number(r)),
                       fmt::arg("d", short_number(2 * r))),
           cls, tip);
      break;
    case 1: rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8, cls, tip); break;
    case 2:
      path(fmt::format("M{}L{}L{}z", at(0, -r * 1.15), at(r * 1.1, r * 0.85), at(-r * 1.1, r * 0.85)), cls, tip);
      break;
    default:
      path(fmt::format("M{}L{}L{}L{}z", at(0, -r * 1.25), at(r * 1.25, 0), at(0, r * 1.25), at(-r * 1.25, 0)), cls,
           tip);
  }
}

}  // namespace bam::client
