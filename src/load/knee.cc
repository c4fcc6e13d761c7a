#include "load/knee.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace ingot::load {

namespace {
constexpr int kMaxSteps = 12;  // of doubling, and of halving of the interval
constexpr double kFirstStep = 2, kLaterStep = 1.25;
constexpr double kKeepsUp = 0.9;  // answered / sent: the rest is the last answers' own time, of a run that is long enough
// Student's t, 97.5 %, for 1 to 9 degrees of freedom.
constexpr std::array<double, 9> kStudent{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262};

KneePoint judge(const KneeOptions& options, double rate, int repeat, Figures figures) {
  KneePoint p;
  p.rate = rate;
  p.repeat = repeat;
  p.worst = worst_share(options, figures);
  p.holds = p.worst <= 1;
  p.kept_up = figures.request_s >= kKeepsUp * figures.sent_rate;
  p.figures = std::move(figures);
  return p;
}

// Where the objective is met exactly, if its value grows as a power of the rate between the two.
double crossing(const KneePoint& holds, const KneePoint& fails) {
  const double low = std::log(std::max(holds.worst, 1e-9)), high = std::log(fails.worst);
  const double at = std::isfinite(high) && high > low ? std::clamp(-low / (high - low), 0.0, 1.0) : 0.5;
  return holds.rate * std::pow(fails.rate / holds.rate, at);
}
}  // namespace

double worst_share(const KneeOptions& options, const Figures& figures) {
  const double success = figures.requests > 0 ? static_cast<double>(figures.ok) / static_cast<double>(figures.requests) : 0;
  double worst = success < options.least_success ? std::numeric_limits<double>::infinity() : 0;
  for (const Objective& o : options.objectives) {
    const auto value = figures.value(o);
    worst = std::max(worst, value ? *value / o.limit_ms : std::numeric_limits<double>::infinity());
  }
  return worst;
}

const char* shown_run(const Knee& knee) {
  const bool any = std::any_of(knee.points.begin(), knee.points.end(), [](const KneePoint& p) { return p.holds; });
  return any ? "The last run at a rate that held" : "The first run; no rate held";
}

Result<Knee> find_knee(const KneeOptions& options, const std::function<Result<Figures>(double, int)>& run) {
  Knee knee;
  double start = options.start_rate, step = kFirstStep;
  double last_low = 0, last_high = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    std::optional<KneePoint> holds, fails;
    const auto measure = [&](double rate) -> Result<> {
      INGOT_ASSIGN(Figures figures, run(rate, repeat));
      KneePoint point = judge(options, rate, repeat, std::move(figures));
      (point.holds ? holds : fails) = point;
      knee.points.push_back(std::move(point));
      return {};
    };
    INGOT_TRY(measure(start));
    for (int i = 0; i < kMaxSteps && !(holds && fails); ++i) INGOT_TRY(measure(fails ? fails->rate / step : holds->rate * step));
    if (!(holds && fails)) {
      knee.is_bounded = false;
      knee.rate = knee.low = knee.high = holds ? holds->rate : 0;
      return knee;
    }
    for (int i = 0; i < kMaxSteps && fails->rate > holds->rate * (1 + options.tolerance); ++i)
      INGOT_TRY(measure(std::sqrt(holds->rate * fails->rate)));
    knee.estimates.push_back(crossing(*holds, *fails));
    last_low = holds->rate, last_high = fails->rate;
    start = knee.estimates.back(), step = kLaterStep;
  }
  const auto n = static_cast<double>(knee.estimates.size());
  knee.rate = std::accumulate(knee.estimates.begin(), knee.estimates.end(), 0.0) / n;
  if (knee.estimates.size() == 1) {
    knee.low = last_low, knee.high = last_high;
    return knee;
  }
  double squares = 0;
  for (const double e : knee.estimates) squares += (e - knee.rate) * (e - knee.rate);
  const double t = kStudent[std::min(knee.estimates.size() - 2, kStudent.size() - 1)];
  const double half = t * std::sqrt(squares / (n - 1) / n);
  knee.low = std::max(0.0, knee.rate - half);
  knee.high = knee.rate + half;
  return knee;
}

Json to_json(const Knee& knee, const KneeOptions& options) {
  Json objectives = Json::array();
  for (const Objective& o : options.objectives) objectives.push_back(o.text());
  Json rows = Json::array();
  for (const KneePoint& p : knee.points)
    rows.push_back({{"rate", p.rate},
                    {"repeat", p.repeat},
                    {"holds", p.holds},
                    {"kept_up", p.kept_up},
                    {"worst", std::isfinite(p.worst) ? Json(p.worst) : Json()},
                    {"figures", to_json(p.figures)}});
  return {{"objectives", std::move(objectives)}, {"rate", knee.rate},           {"interval_95", {knee.low, knee.high}},
          {"is_bounded", knee.is_bounded},       {"estimates", knee.estimates}, {"repeats", options.repeats},
          {"tolerance", options.tolerance},      {"rows", std::move(rows)}};
}

std::string knee_text(const Knee& knee, const KneeOptions& options) {
  std::vector<const KneePoint*> rows;
  for (const KneePoint& p : knee.points) rows.push_back(&p);
  std::stable_sort(rows.begin(), rows.end(), [](const KneePoint* a, const KneePoint* b) { return a->rate < b->rate; });
  std::string text =
      fmt::format("\n{:>9} {:>6} {:>9} {:>9} {:>10} {:>10} {:>11} {:>11} {:>11} {:>9} {:>10} {:>6}\n", "offered/s", "repeat", "sent/s",
                  "req/s", "out tok/s", "all tok/s", "TTFT p50 ms", "TTFT p95 ms", "TPOT p95 ms", "success", "tok/req", "holds");
  for (const KneePoint* p : rows) {
    const Figures& f = p->figures;
    const auto percentile = [](const Distribution& d, double at) {
      return d.empty() ? std::string("-") : fmt::format("{:.1f}", d.percentile(at));
    };
    // Tokens a second over requests a second must be the workload's tokens a request, or the row does not agree with itself.
    text += fmt::format("{:>9.3f} {:>6} {:>9.3f} {:>9.3f} {:>10.1f} {:>10.1f} {:>11} {:>11} {:>11} {:>8.1f}% {:>10.1f} {:>6}\n", p->rate,
                        p->repeat + 1, f.sent_rate, f.request_s, f.output_tok_s, f.total_tok_s, percentile(f.ttft_ms, 50),
                        percentile(f.ttft_ms, 95), percentile(f.tpot_ms, 95),
                        f.requests > 0 ? 100.0 * static_cast<double>(f.ok) / static_cast<double>(f.requests) : 0.0,
                        f.request_s > 0 ? f.output_tok_s / f.request_s : 0.0, p->holds ? "yes" : "no");
  }
  std::string objectives;
  for (const Objective& o : options.objectives) objectives += (objectives.empty() ? "" : ", ") + o.text();
  if (!knee.is_bounded)
    text += knee.rate > 0
                ? fmt::format("knee: above {:.3f} requests/s, the highest rate tried: {} held at every one\n", knee.rate, objectives)
                : fmt::format("knee: none: {} did not hold at any rate tried\n", objectives);
  else if (knee.estimates.size() == 1)
    text += fmt::format("knee: {:.3f} requests/s for {}; it held at {:.3f} and not at {:.3f} (one search, no interval)\n", knee.rate,
                        objectives, knee.low, knee.high);
  else
    text += fmt::format("knee: {:.3f} requests/s for {}, 95 % interval {:.3f} to {:.3f} from {} searches\n", knee.rate, objectives,
                        knee.low, knee.high, knee.estimates.size());
  const auto behind = std::count_if(knee.points.begin(), knee.points.end(), [](const KneePoint& p) { return p.holds && !p.kept_up; });
  if (behind > 0)
    text += fmt::format(
        "warning: in {} of the runs that held, less than {:.0f} % of what was sent a second was answered: a queue grew, and a longer run "
        "would "
        "not have held. The knee is lower than it says; give more --num-requests\n",
        behind, 100 * kKeepsUp);
  return text;
}

}  // namespace ingot::load
