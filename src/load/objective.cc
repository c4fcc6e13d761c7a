#include "load/objective.h"

#include <array>
#include <charconv>
#include <utility>

namespace ingot::load {

namespace {
constexpr std::array<std::pair<std::string_view, Objective::Metric>, 4> kMetrics{{{"ttft", Objective::Metric::ttft},
                                                                                  {"tpot", Objective::Metric::tpot},
                                                                                  {"itl", Objective::Metric::itl},
                                                                                  {"e2e", Objective::Metric::e2e}}};

std::string_view name_of(Objective::Metric metric) {
  for (const auto& [name, m] : kMetrics)
    if (m == metric) return name;
  return "";
}

bool read_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Result<Objective> parse_one(std::string_view text, bool with_percentile) {
  const std::string hint = with_percentile
                               ? "expected METRIC_pNN<=TIME such as ttft_p95<=5s; metrics are ttft, tpot, itl and e2e, times in ms or s"
                               : "expected METRIC<=TIME such as ttft<=5s; metrics are ttft, tpot and e2e, times in ms or s";
  const auto wrong = [&](std::string_view what) { return fail_hint(hint, "objective {}: {}", text, what); };
  const size_t at = text.find("<=");
  if (at == std::string_view::npos) return wrong("has no <=");
  std::string_view left = text.substr(0, at), right = text.substr(at + 2);
  Objective o;
  const size_t under = left.find("_p");
  bool known = false;
  for (const auto& [name, metric] : kMetrics)
    if (left.substr(0, under) == name) o.metric = metric, known = true;
  if (!known) return wrong("its metric is unknown");
  if ((under != std::string_view::npos) != with_percentile) return wrong(with_percentile ? "has no percentile" : "has a percentile");
  if (with_percentile && (!read_number(left.substr(under + 2), o.percentile) || !(o.percentile > 0 && o.percentile <= 100)))
    return wrong("its percentile is none from 0 to 100");
  if (!with_percentile && o.metric == Objective::Metric::itl) return wrong("one request has many of these");
  double factor = 0;
  if (right.ends_with("ms"))
    factor = 1, right.remove_suffix(2);
  else if (right.ends_with("s"))
    factor = 1e3, right.remove_suffix(1);
  double value = 0;
  if (factor == 0 || !read_number(right, value) || !(value > 0)) return wrong("its time is none");
  o.limit_ms = value * factor;
  return o;
}
}  // namespace

std::string Objective::metric_text() const {
  return percentile > 0 ? fmt::format("{}_p{:g}", name_of(metric), percentile) : std::string(name_of(metric));
}
std::string Objective::text() const { return fmt::format("{}<={:g}ms", metric_text(), limit_ms); }

Result<std::vector<Objective>> parse_objectives(std::string_view text, bool with_percentile) {
  std::vector<Objective> objectives;
  while (true) {
    const size_t comma = text.find(',');
    INGOT_ASSIGN(Objective one, parse_one(text.substr(0, comma), with_percentile));
    objectives.push_back(one);
    if (comma == std::string_view::npos) return objectives;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace ingot::load
