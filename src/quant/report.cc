#include "quant/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <string_view>

#include "base/json.h"
#include "tensor/linear.h"

namespace ingot::quant {
namespace {

// Rows of the HTML table; a browser does not show 60,000 well. JSON and CSV have all.
constexpr size_t kHtmlRows = 1000;

double share(int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0; }

// One stable colour for each kind.
std::string_view colour(spec::TensorKind kind) {
  constexpr std::array<std::string_view, spec::kNumTensorKinds> kColours{"#7f7f7f", "#bcbd22", "#999999", "#1f77b4", "#17becf", "#d62728",
                                                                         "#e377c2", "#f7b6d2", "#2ca02c", "#ff7f0e", "#9467bd"};
  return kColours[static_cast<size_t>(kind)];
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string sqnr_text(const TensorReport& t) {
  const double db = t.error.sqnr_db();
  return std::isfinite(db) ? fmt::format("{:.2f}", db) : "exact";
}

// Lowest, mean and highest SQNR of the modules of one kind in one layer.
struct Spread {
  double low = 0, high = 0, sum = 0;
  int64_t count = 0;
};

// Layers to the right, decibels upward; for each layer and kind a bar from the worst to the best module and a dot at the mean.
std::string plot_svg(const std::vector<TensorReport>& tensors) {
  std::map<std::pair<spec::TensorKind, int64_t>, Spread> spreads;
  double low = 1e9, high = -1e9;
  int64_t last_layer = 0;
  for (const TensorReport& t : tensors) {
    const double db = t.error.sqnr_db();
    if (!std::isfinite(db)) continue;
    Spread& s = spreads[{t.kind, t.layer}];
    s.low = s.count == 0 ? db : std::min(s.low, db);
    s.high = s.count == 0 ? db : std::max(s.high, db);
    s.sum += db;
    ++s.count;
    low = std::min(low, db);
    high = std::max(high, db);
    last_layer = std::max(last_layer, t.layer);
  }
  if (spreads.empty()) return "<p>No module was changed by rounding.</p>\n";
  low = std::floor(low) - 1;
  high = std::ceil(high) + 1;
  constexpr double kLeft = 50, kTop = 14, kWidth = 900, kHeight = 320;
  const auto x = [&](int64_t layer) {
    return kLeft + (static_cast<double>(layer) + 1.5) / (static_cast<double>(last_layer) + 2.5) * kWidth;
  };
  const auto y = [&](double db) { return kTop + (high - db) / (high - low) * kHeight; };
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"SQNR by layer and kind\">\n", kLeft + kWidth + 10,
                                kTop + kHeight + 80);
  const double step = high - low > 24 ? 6 : high - low > 8 ? 2 : 1;
  for (double db = std::ceil(low / step) * step; db <= high; db += step) {
    out += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/><text x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:.0f}</text>\n",
        kLeft, kLeft + kWidth, y(db), y(db), kLeft - 6, y(db) + 4, db);
  }
  const int64_t layer_step = std::max<int64_t>(1, (last_layer + 1) / 20);
  for (int64_t layer = 0; layer <= last_layer; layer += layer_step)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(layer), kTop + kHeight + 18, layer);
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">layer</text><text x=\"4\" y=\"10\">SQNR, dB</text>\n",
                     kLeft + kWidth / 2, kTop + kHeight + 36);
  for (const auto& [key, s] : spreads) {
    const std::string_view c = colour(key.first);
    out += fmt::format(
        "<g stroke=\"{0}\" fill=\"{0}\"><line x1=\"{1:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{3:.1f}\"/><circle cx=\"{1:.1f}\" "
        "cy=\"{4:.1f}\" r=\"2.5\"/>"
        "<title>{5}, layer {6}: {7:.2f} to {8:.2f} dB, mean {9:.2f}, {10} modules</title></g>\n",
        c, x(key.second), y(s.low), y(s.high), y(s.sum / static_cast<double>(s.count)), spec::tensor_kind_name(key.first), key.second,
        s.low, s.high, s.sum / static_cast<double>(s.count), s.count);
  }
  double at = kLeft;
  spec::TensorKind previous{};
  bool first = true;
  for (const auto& [key, s] : spreads) {
    if (!first && key.first == previous) continue;
    first = false;
    previous = key.first;
    out += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n", at, kTop + kHeight + 60,
                       colour(key.first), at + 8, kTop + kHeight + 64, spec::tensor_kind_name(key.first));
    at += 130;
  }
  return out + "</svg>\n";
}

}  // namespace

void sort_worst_first(std::vector<TensorReport>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorReport& a, const TensorReport& b) {
    const double x = a.error.sqnr_db(), y = b.error.sqnr_db();
    return x != y ? x < y : a.module < b.module;
  });
}

std::string report_json_text(const ReportHeader& header, const std::vector<TensorReport>& sorted) {
  Json out = {{"source", header.source},
              {"target", header.target},
              {"recipe", header.recipe},
              {"scale_mode", header.scale_mode},
              {"bytes_before", header.bytes_before},
              {"bytes_after", header.bytes_after}};
  out["tensors"] = Json::array();
  for (const TensorReport& t : sorted) {
    const double db = t.error.sqnr_db();
    Json row = {{"module", t.module},
                {"kind", std::string(spec::tensor_kind_name(t.kind))},
                {"layer", t.layer},
                {"from", std::string(tensor::weight_format_name(t.from))},
                {"to", std::string(tensor::weight_format_name(t.to))},
                {"calibrated", t.calibrated}};
    row["sqnr_db"] = std::isfinite(db) ? Json(db) : Json(nullptr);  // null: exact
    row["max_error"] = t.error.max_error;
    row["saturated"] = share(t.error.saturated, t.error.elements);
    row["zeroed"] = share(t.error.zeroed, t.error.elements);
    row["bytes_before"] = t.bytes_before;
    row["bytes_after"] = t.bytes_after;
    out["tensors"].push_back(std::move(row));
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string report_csv_text(const std::vector<TensorReport>& sorted) {
  std::string out = "module,kind,layer,from,to,calibrated,sqnr_db,max_error,saturated,zeroed,bytes_before,bytes_after\n";
  for (const TensorReport& t : sorted) {
    const double db = t.error.sqnr_db();
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_field(t.module), spec::tensor_kind_name(t.kind), t.layer,
                       tensor::weight_format_name(t.from), tensor::weight_format_name(t.to), t.calibrated ? "yes" : "no",
                       std::isfinite(db) ? fmt::format("{}", db) : "", t.error.max_error, share(t.error.saturated, t.error.elements),
                       share(t.error.zeroed, t.error.elements), t.bytes_before, t.bytes_after);
  }
  return out;
}

std::string report_html_text(const ReportHeader& header, const std::vector<TensorReport>& sorted) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>ingot quantize</title>\n<style>\n"
      "body{font:14px system-ui,sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
      "td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
      "svg{width:100%;font:11px system-ui,sans-serif}.grid{stroke:#e4e4e4}\n</style></head><body>\n";
  out += fmt::format("<h1>{}</h1>\n<p>From {}: recipe {}, scale mode {}; {:.3f} GB became {:.3f} GB; {} modules packed.</p>\n",
                     escaped(header.target), escaped(header.source), escaped(header.recipe), escaped(header.scale_mode),
                     static_cast<double>(header.bytes_before) / 1e9, static_cast<double>(header.bytes_after) / 1e9, sorted.size());
  out += plot_svg(sorted);
  out += fmt::format("<h2>Worst first{}</h2>\n", sorted.size() > kHtmlRows ? fmt::format(": {} of {}", kHtmlRows, sorted.size()) : "");
  out +=
      "<table><tr><th>module</th><th>kind</th><th>from</th><th>to</th><th>SQNR, dB</th><th>largest error</th><th>saturated</th>"
      "<th>zeroed</th><th>bytes before</th><th>after</th></tr>\n";
  for (size_t i = 0; i < std::min(sorted.size(), kHtmlRows); ++i) {
    const TensorReport& t = sorted[i];
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td><td>{}</td><td>{:.3g}</td><td>{:.3f} %</td><td>{:.3f} "
        "%</td><td>{}</td><td>{}</td></tr>\n",
        escaped(t.module), spec::tensor_kind_name(t.kind), tensor::weight_format_name(t.from), tensor::weight_format_name(t.to),
        t.calibrated ? ", calibrated" : "", sqnr_text(t), t.error.max_error, 100 * share(t.error.saturated, t.error.elements),
        100 * share(t.error.zeroed, t.error.elements), t.bytes_before, t.bytes_after);
  }
  return out + "</table></body></html>\n";
}

Result<> check_report_path(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".csv" && extension != ".html")
    return fail("--report {}: the name must end in .json, .csv or .html", path.string());
  std::error_code ec;
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder, ec)) return fail("--report {}: there is no folder {}", path.string(), folder.string());
  return {};
}

Result<> write_report(const std::filesystem::path& path, const ReportHeader& header, std::vector<TensorReport> tensors) {
  INGOT_TRY(check_report_path(path));
  sort_worst_first(tensors);
  const std::string extension = path.extension().string();
  const std::string text = extension == ".json"  ? report_json_text(header, tensors)
                           : extension == ".csv" ? report_csv_text(tensors)
                                                 : report_html_text(header, tensors);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail("cannot write the report {}", path.string());
  return {};
}

}  // namespace ingot::quant
