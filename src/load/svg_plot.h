// Line plots and bars as SVG text: axes with round ticks, series with a legend, titles on hover. Pure; knows nothing of what it draws.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ingot::load {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool dots = false;  // marks, each with its values on hover
  bool steps = false;
};

struct PlotOptions {
  std::string title, x_label, y_label;
  double y_line = 0;  // > 0: a dashed line there (an objective)
  std::string y_line_name;
  bool log_y = false;
};

std::string html_escaped(std::string_view text);

// Empty text when no series has a point.
std::string svg_plot(const PlotOptions& options, const std::vector<PlotSeries>& series);

// One row a bar: parts one after the other from `start`, each with a class of its own ("part0", "part1", ...).
struct Bar {
  double start = 0;
  std::vector<double> parts;
  std::string hover;
};
std::string svg_bars(std::string_view title, std::string_view x_label, const std::vector<Bar>& bars);

}  // namespace ingot::load
