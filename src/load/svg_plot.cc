#include "load/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ingot::load {

namespace {
constexpr double kWidth = 860, kHeight = 320, kLeft = 70, kRight = 20, kTop = 34, kBottom = 46;
constexpr int kTicks = 6;

// 1, 2 or 5 times a power of ten, so that about kTicks of them fit.
double tick_step(double range) {
  const double raw = range / kTicks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

struct Scale {
  double low = 0, high = 1, from = 0, to = 1;  // values to places
  bool is_log = false;

  double place(double value) const {
    const auto f = [&](double v) { return is_log ? std::log10(v) : v; };
    return from + (f(value) - f(low)) / (f(high) - f(low)) * (to - from);
  }
  std::vector<double> ticks() const {
    std::vector<double> at;
    if (is_log) {
      for (double t = std::pow(10, std::floor(std::log10(low))); t <= high * 1.001; t *= 10)
        for (const double factor : {1.0, 2.0, 5.0})
          if (t * factor >= low * 0.999 && t * factor <= high * 1.001) at.push_back(t * factor);
      return at;
    }
    const double step = tick_step(high - low);
    for (double t = std::ceil(low / step) * step; t <= high + step * 1e-6; t += step) at.push_back(std::abs(t) < step * 1e-6 ? 0 : t);
    return at;
  }
};

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view extra = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, extra, html_escaped(text));
}

std::string x_axis(const Scale& x, double bottom, double top, std::string_view label) {
  std::string svg;
  for (const double t : x.ticks()) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", x.place(t), top, bottom);
    svg += text_at(x.place(t), bottom + 16, "middle", fmt::format("{:g}", t));
  }
  return svg + text_at((x.from + x.to) / 2, bottom + 34, "middle", label);
}

std::string open_svg(double height, std::string_view title) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n<title>{}</title>\n", kWidth, height, html_escaped(title)) +
         text_at(kLeft, 20, "start", title, " class=\"title\"");
}
}  // namespace

std::string html_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return escaped;
}

std::string svg_plot(const PlotOptions& options, const std::vector<PlotSeries>& series) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_low = kInfinity, x_high = -kInfinity, y_low = kInfinity, y_high = -kInfinity;
  for (const PlotSeries& s : series) {
    for (const auto& [x, y] : s.points) {
      x_low = std::min(x_low, x), x_high = std::max(x_high, x);
      y_low = std::min(y_low, y), y_high = std::max(y_high, y);
    }
  }
  if (!(x_low <= x_high)) return {};
  if (options.y_line > 0) y_low = std::min(y_low, options.y_line), y_high = std::max(y_high, options.y_line);
  Scale x{std::min(x_low, 0.0), x_high, kLeft, kWidth - kRight};
  Scale y{0, y_high, kHeight - kBottom, kTop};
  if (options.log_y && y_low > 0) y.is_log = true, y.low = y_low * 0.9, y.high = y_high * 1.1;
  if (x.high <= x.low) x.high = x.low + 1;
  if (y.high <= y.low) y.high = y.low + 1;
  std::string svg = open_svg(kHeight, options.title) + x_axis(x, kHeight - kBottom, kTop, options.x_label);
  for (const double t : y.ticks()) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", x.from, x.to, y.place(t));
    svg += text_at(x.from - 6, y.place(t) + 4, "end", fmt::format("{:g}", t));
  }
  svg += text_at(14, (kTop + kHeight - kBottom) / 2, "middle", options.y_label,
                 fmt::format(" transform=\"rotate(-90 14 {:.1f})\"", (kTop + kHeight - kBottom) / 2));
  if (options.y_line > 0) {
    const double at = y.place(options.y_line);
    svg += fmt::format("<line class=\"limit\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", x.from, x.to, at);
    svg += text_at(x.from + 6, at - 4, "start", options.y_line_name);
  }
  for (size_t i = 0; i < series.size(); ++i) {
    const PlotSeries& s = series[i];
    std::string path;
    double before = 0;
    for (const auto& [px, py] : s.points) {
      const double cx = x.place(px), cy = y.place(py);
      if (s.steps && !path.empty()) path += fmt::format("{:.1f},{:.1f} ", cx, before);
      path += fmt::format("{:.1f},{:.1f} ", cx, cy);
      before = cy;
    }
    svg += fmt::format("<polyline class=\"line series{}\" points=\"{}\"/>\n", i, path);
    if (s.dots)
      for (const auto& [px, py] : s.points)
        svg +=
            fmt::format("<circle class=\"dot series{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}: {:.4g}, {:.4g}</title></circle>\n",
                        i, x.place(px), y.place(py), html_escaped(s.name), px, py);
    svg += fmt::format("<rect class=\"fill series{}\" x=\"{:.1f}\" y=\"11\" width=\"12\" height=\"10\"/>\n", i,
                       kWidth - kRight - 150 * static_cast<double>(series.size() - i));
    svg += text_at(kWidth - kRight - 150 * static_cast<double>(series.size() - i) + 17, 20, "start", s.name);
  }
  return svg + "</svg>\n";
}

std::string svg_bars(std::string_view title, std::string_view x_label, const std::vector<Bar>& bars) {
  double end = 0;
  for (const Bar& bar : bars) {
    double at = bar.start;
    for (const double part : bar.parts) at += part;
    end = std::max(end, at);
  }
  if (bars.empty() || !(end > 0)) return {};
  const double row = std::clamp(900.0 / static_cast<double>(bars.size()), 3.0, 14.0);
  const double bottom = kTop + row * static_cast<double>(bars.size());
  const Scale x{0, end, kLeft, kWidth - kRight};
  std::string svg = open_svg(bottom + kBottom, title) + x_axis(x, bottom, kTop, x_label);
  for (size_t i = 0; i < bars.size(); ++i) {
    double at = bars[i].start;
    svg += fmt::format("<g><title>{}</title>\n", html_escaped(bars[i].hover));
    for (size_t p = 0; p < bars[i].parts.size(); ++p) {
      const double from = x.place(at);
      at += bars[i].parts[p];
      svg += fmt::format("<rect class=\"part{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n", p, from,
                         kTop + row * static_cast<double>(i), std::max(0.5, x.place(at) - from), row * 0.8);
    }
    svg += "</g>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace ingot::load
