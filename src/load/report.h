// What `ingot bench serve` and `ingot bench single` found, as text, JSON and a page. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "load/figures.h"
#include "load/knee.h"
#include "load/sample.h"

namespace ingot::load {

inline constexpr int kReportVersion = 1;
inline constexpr const char* kReportKind = "ingot bench serve";

struct Report {
  std::string title;                                       // workload and scale
  std::vector<std::pair<std::string, std::string>> facts;  // what was run, in words
  Json setup = Json::object();                             // the same as values
  Figures figures;                                         // of a run; with a knee: of its last run at a rate that held, else of its first
  std::vector<Sample> samples;
  std::optional<std::pair<Knee, KneeOptions>> knee;
};

std::string report_text(const Report& report);
Json to_json(const Report& report);
// One file, no script and no network: tables and plots (SVG) of latency against rate, TTFT, tokens over time, requests.
std::string report_html(const Report& report);

// Two reports side by side (JSON of to_json): aggregates, and ratios of the requests that both answered, which equal seeds make pairs.
// Errors: no such report, or of another version.
Result<std::string> compare_reports(const Json& a, const Json& b);

}  // namespace ingot::load
