#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "load/report.h"
#include "load/svg_plot.h"

namespace ingot::load {

namespace {
constexpr size_t kMaxBars = 300;        // requests of the waterfall
constexpr size_t kMaxCdfPoints = 1000;  // of a curve

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5d6470; --back: #fff; --grid: #e3e6ea; --a: #2563c9; --b: #d9480f; --c: #2b8a3e; --d: #9c36b5; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #9aa2ad; --back: #16181c; --grid: #30343b; --a: #74a7ff; --b: #ff922b; --c: #69db7c; --d: #e599f7; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
td, th { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--grid); } td:first-child, th:first-child { text-align: left; }
.facts td { text-align: left; vertical-align: top; } .warning { border-left: 4px solid var(--b); padding: .2rem .7rem; margin: .4rem 0; }
pre { overflow-x: auto; font-size: 12px; } svg { width: 100%; height: auto; margin: .6rem 0; }
svg text { fill: var(--soft); font-size: 12px; } svg .title { fill: var(--text); font-size: 14px; font-weight: 600; }
.grid { stroke: var(--grid); stroke-width: 1; } .limit { stroke: var(--soft); stroke-dasharray: 5 4; } .line { fill: none; stroke-width: 1.8; }
.line.series0 { stroke: var(--a); } .line.series1 { stroke: var(--b); } .line.series2 { stroke: var(--c); } .line.series3 { stroke: var(--d); }
.dot.series0, .fill.series0 { fill: var(--a); } .dot.series1, .fill.series1 { fill: var(--b); } .dot.series2, .fill.series2 { fill: var(--c); }
.dot.series3, .fill.series3 { fill: var(--d); } .part0 { fill: var(--b); } .part1 { fill: var(--a); } dt { font-weight: 600; } dd { margin: 0 0 .4rem 1rem; }
)";

std::string row(const char* name, const Distribution& d) {
  if (d.empty()) return {};
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td></tr>\n", name,
      d.sorted.size(), d.mean(), d.percentile(50), d.percentile(90), d.percentile(95), d.percentile(99), d.sorted.back());
}

PlotSeries cdf(std::string name, const Distribution& d) {
  PlotSeries s{std::move(name), {}, false, true};
  const size_t n = d.sorted.size(), stride = n / kMaxCdfPoints + 1;
  for (size_t i = 0; i < n; i += stride) s.points.emplace_back(d.sorted[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(n));
  if (n > 0) s.points.emplace_back(d.sorted.back(), 100);
  return s;
}

std::string knee_plots(const Knee& knee, const KneeOptions& options) {
  std::vector<const KneePoint*> rows;
  for (const KneePoint& p : knee.points) rows.push_back(&p);
  std::stable_sort(rows.begin(), rows.end(), [](const KneePoint* a, const KneePoint* b) { return a->rate < b->rate; });
  PlotSeries p50{"TTFT p50", {}, true, false}, p95{"TTFT p95", {}, true, false}, tpot{"TPOT p95", {}, true, false},
      out{"output", {}, true, false};
  for (const KneePoint* p : rows) {
    if (p->figures.ttft_ms.empty()) continue;
    p50.points.emplace_back(p->rate, p->figures.ttft_ms.percentile(50));
    p95.points.emplace_back(p->rate, p->figures.ttft_ms.percentile(95));
    if (!p->figures.tpot_ms.empty()) tpot.points.emplace_back(p->rate, p->figures.tpot_ms.percentile(95));
    out.points.emplace_back(p->rate, p->figures.output_tok_s);
  }
  PlotOptions latency{"Time to first token against rate", "offered requests/s", "ms", 0, "", true};
  for (const Objective& o : options.objectives)
    if (o.metric == Objective::Metric::ttft) latency.y_line = o.limit_ms, latency.y_line_name = o.text();
  return svg_plot(latency, {p50, p95}) +
         svg_plot({"Time per output token against rate", "offered requests/s", "ms", 0, "", false}, {tpot}) +
         svg_plot({"Output tokens a second against rate", "offered requests/s", "tokens/s", 0, "", false}, {out});
}

// Tokens that came in each of about a hundred equal spans.
std::string timeline(const std::vector<Sample>& samples) {
  int64_t end = 0;
  for (const Sample& s : samples) end = std::max(end, s.end_ns);
  if (end == 0) return {};
  constexpr double kSpans = 100;
  const double span = static_cast<double>(end) / kSpans;
  std::vector<double> tokens(static_cast<size_t>(kSpans) + 1), flying(tokens.size());
  for (const Sample& s : samples) {
    const double each = s.arrived.empty() ? 0 : static_cast<double>(output_tokens(s)) / static_cast<double>(s.arrived.size());
    for (const Arrived& a : s.arrived)
      tokens[static_cast<size_t>(static_cast<double>(a.at_ns) / span)] += a.tokens >= 0 ? static_cast<double>(a.tokens) : each;
    for (auto i = static_cast<size_t>(static_cast<double>(s.sent_ns) / span);
         i <= static_cast<size_t>(static_cast<double>(s.end_ns) / span); ++i)
      ++flying[i];
  }
  PlotSeries rate{"tokens/s", {}, false, true}, open{"requests in flight", {}, false, true};
  for (size_t i = 0; i < static_cast<size_t>(kSpans); ++i) {
    const double at = static_cast<double>(i) * span / 1e9;
    rate.points.emplace_back(at, tokens[i] / (span / 1e9));
    open.points.emplace_back(at, flying[i]);
  }
  return svg_plot({"Output tokens over time, warm-up included", "s", "tokens/s", 0, "", false}, {rate}) +
         svg_plot({"Requests in flight over time", "s", "requests", 0, "", false}, {open});
}

std::string waterfall(const std::vector<Sample>& samples) {
  std::vector<Bar> bars;
  for (const Sample& s : samples) {
    if (bars.size() == kMaxBars) break;
    const auto seconds = [](int64_t ns) { return static_cast<double>(ns) / 1e9; };
    Bar bar;
    bar.start = seconds(s.sent_ns);
    const int64_t first = s.first_token_ns < 0 ? s.end_ns : s.first_token_ns;
    bar.parts = {seconds(first - s.sent_ns), seconds(s.end_ns - first)};
    bar.hover = fmt::format("request {}{}: {} in, {} cached, {} out; first token after {:.1f} ms, end after {:.1f} ms{}", s.index,
                            s.is_warmup ? " (warm-up)" : "", s.usage.prompt_tokens, s.usage.cached_tokens, s.ok() ? output_tokens(s) : 0,
                            1e3 * bar.parts[0], 1e3 * (bar.parts[0] + bar.parts[1]), s.ok() ? "" : "; " + s.error + ": " + s.detail);
    bars.push_back(std::move(bar));
  }
  const std::string title = samples.size() > kMaxBars
                                ? fmt::format("The first {} of {} requests: waiting, then answering", kMaxBars, samples.size())
                                : std::string("Requests: waiting, then answering");
  return svg_bars(title, "s", bars);
}
}  // namespace

std::string report_html(const Report& report) {
  const Figures& f = report.figures;
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\"/>\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<table class=\"facts\">\n",
      html_escaped(report.title), kStyle);
  for (const auto& [name, value] : report.facts)
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", html_escaped(name), html_escaped(value));
  html += "</table>\n";
  for (const auto* warnings : {&f.warnings, &f.client.warnings})
    for (const std::string& w : *warnings) html += fmt::format("<p class=\"warning\">{}</p>\n", html_escaped(w));
  if (report.knee) {
    html += "<h2>Latency against rate</h2>\n" + knee_plots(report.knee->first, report.knee->second);
    html += fmt::format("<pre>{}</pre>\n<h2>{}</h2>\n", html_escaped(knee_text(report.knee->first, report.knee->second)),
                        shown_run(report.knee->first));
  }
  html +=
      "<h2>Latencies "
      "(ms)</h2>\n<table>\n<tr><th></th><th>n</th><th>mean</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>max</th></tr>\n";
  html += row("TTFT", f.ttft_ms) +
          row("TTFT of answer", f.ttft_content_ms.sorted == f.ttft_ms.sorted ? Distribution() : f.ttft_content_ms) +
          row("TPOT", f.tpot_ms) + row("ITL", f.itl_ms) + row("E2E", f.e2e_ms);
  html += "</table>\n";
  html += svg_plot({"Share of requests with a first token within", "ms", "%", 0, "", false}, {cdf("TTFT", f.ttft_ms)});
  html += svg_plot({"Share of gaps between tokens within", "ms", "%", 0, "", false}, {cdf("ITL", f.itl_ms)});
  html += "<h2>Over time</h2>\n" + timeline(report.samples) + waterfall(report.samples);
  html += fmt::format("<h2>All figures</h2>\n<pre>{}</pre>\n<h2>Definitions</h2>\n<dl>\n", html_escaped(report_text(report)));
  const Json meanings = definitions();
  for (const auto& [name, meaning] : meanings.items())
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", html_escaped(name), html_escaped(meaning.get<std::string>()));
  return html + "</dl>\n</body>\n</html>\n";
}

}  // namespace ingot::load
