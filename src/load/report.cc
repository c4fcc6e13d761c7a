#include "load/report.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace ingot::load {

namespace {
std::string number(const Json& json, int digits = 1) {
  return json.is_number() ? fmt::format("{:.{}f}", json.get<double>(), digits) : std::string("-");
}

std::string counts(const std::map<std::string, int64_t>& map) {
  std::string text;
  for (const auto& [name, count] : map) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, count);
  return text.empty() ? "none" : text;
}

std::string distribution_line(const char* name, const Distribution& d) {
  if (d.empty()) return {};
  return fmt::format("{:<16} {:>9} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, d.sorted.size(), d.mean(),
                     d.sorted.front(), d.percentile(50), d.percentile(90), d.percentile(95), d.percentile(99), d.sorted.back());
}

// Mean of log ratios with its 95 % interval (normal: pairs are many, or the interval is told as rough).
struct Paired {
  std::vector<double> logs;
  std::string text(const char* name) const {
    if (logs.size() < 2) return fmt::format("  {:<12} {} pairs\n", name, logs.size());
    const auto n = static_cast<double>(logs.size());
    double mean = 0, squares = 0;
    for (const double l : logs) mean += l / n;
    for (const double l : logs) squares += (l - mean) * (l - mean);
    const double half = 1.96 * std::sqrt(squares / (n - 1) / n);
    return fmt::format("  {:<12} x{:.3f}   95 % x{:.3f} to x{:.3f}   {} pairs{}\n", name, std::exp(mean), std::exp(mean - half),
                       std::exp(mean + half), logs.size(), logs.size() < 30 ? " (few: the interval is rough)" : "");
  }
};

Result<> expect_report(const Json& json, const char* which) {
  if (!json.is_object() || json.value("kind", Json()) != kReportKind) return fail("{} is no report of `{}`", which, kReportKind);
  if (const Json version = json.value("version", Json()); version != kReportVersion)
    return fail("{} is a report of version {}, not {}", which, version.dump(), kReportVersion);
  return {};
}
}  // namespace

std::string report_text(const Report& report) {
  const Figures& f = report.figures;
  std::string text = report.title + "\n";
  for (const auto& [name, value] : report.facts) text += fmt::format("  {:<11} {}\n", name, value);
  if (report.knee) {
    text += knee_text(report.knee->first, report.knee->second);
    text += fmt::format("\n{}:\n", shown_run(report.knee->first));
  }
  text += fmt::format("\nrequests         {} measured, {} answered, {} warm-up; errors: {}; finished: {}\n", f.requests, f.ok, f.warmup,
                      counts(f.errors), counts(f.finish_reasons));
  for (const auto& [kind, example] : f.error_examples) text += fmt::format("  {}: {}\n", kind, example);
  text += fmt::format("time             {:.3f} s, of which {:.3f} s sending; {:.2f} requests in flight in the mean\n", f.duration_s,
                      f.steady_s, f.mean_concurrency);
  text += f.offered_rate > 0 ? fmt::format("rate             offered {:.3f}/s, sent {:.3f}/s, answered {:.3f}/s\n", f.offered_rate,
                                           f.sent_rate, f.request_s)
                             : fmt::format("rate             closed loop, answered {:.3f}/s\n", f.request_s);
  const double n = std::max<double>(1, static_cast<double>(f.ok));
  text +=
      fmt::format("tokens           {} in ({:.1f} a request), {} out ({:.1f} a request), counted by {}\n", f.input_tokens,
                  static_cast<double>(f.input_tokens) / n, f.output_tokens, static_cast<double>(f.output_tokens) / n, name_of(f.counted));
  text += fmt::format("tokens/s         in {:.1f}, out {:.1f}, all {:.1f}; out while sending {:.1f}, peak second {:.1f}\n", f.input_tok_s,
                      f.output_tok_s, f.total_tok_s, f.steady_output_tok_s, f.peak_output_tok_s);
  text += fmt::format("cache hits       {} of prompt tokens; a cache without limit: {:.1f} %\n",
                      f.hit_ratio ? fmt::format("{:.1f} %", 100 * *f.hit_ratio) : "not told", 100 * f.asked_hit_ratio);
  if (f.acceptance_length)
    text += fmt::format("speculation      acceptance length {:.3f}{}\n", *f.acceptance_length,
                        f.acceptance_rate ? fmt::format(", {:.1f} % of drafts accepted", 100 * *f.acceptance_rate) : "");
  if (f.goodput_share)
    text +=
        fmt::format("goodput          {:.3f} requests/s, {:.1f} % of the measured ones\n", f.goodput_s.value_or(0), 100 * *f.goodput_share);
  text += fmt::format("\n{:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "ms", "n", "mean", "min", "p50", "p90", "p95", "p99",
                      "max");
  text += distribution_line("TTFT", f.ttft_ms);
  // The same unless there is reasoning before the answer.
  if (f.ttft_content_ms.sorted != f.ttft_ms.sorted) text += distribution_line("TTFT of answer", f.ttft_content_ms);
  text += distribution_line("TPOT", f.tpot_ms);
  text += distribution_line("ITL", f.itl_ms);
  text += distribution_line("E2E", f.e2e_ms);
  const ClientHealth& c = f.client;
  text += fmt::format("\nclient           {:.0f} % of a core; timer behind p99 {:.2f} ms, max {:.2f} ms", 100 * c.cpu_share, c.lag_p99_ms,
                      c.lag_max_ms);
  if (f.offered_rate > 0) text += fmt::format("; sends behind p99 {:.2f} ms, max {:.2f} ms", c.late_p99_ms, c.late_max_ms);
  text += "\n";
  for (const std::string& w : f.warnings) text += "warning: " + w + "\n";
  for (const std::string& w : c.warnings) text += "warning: " + w + "\n";
  if (f.ok > 0 && f.ok < 100) text += fmt::format("note: of {} answers p99 is the slowest\n", f.ok);
  text +=
      "\nTTFT: from the client's begin of a request to the first text of any kind, reasoning included. TPOT: (last token - first) / "
      "(tokens - 1).\n"
      "ITL: per token, an event of k tokens after a gap g is k gaps of g / k. Percentiles are exact. --json has all definitions.\n";
  return text;
}

Json to_json(const Report& report) {
  Json json{{"kind", kReportKind}, {"version", kReportVersion}, {"title", report.title}, {"setup", report.setup}};
  json["figures"] = to_json(report.figures);
  if (report.knee) json["knee"] = to_json(report.knee->first, report.knee->second);
  Json requests = Json::array();
  for (const Sample& s : report.samples) requests.push_back(to_json(s));
  json["requests"] = std::move(requests);
  json["definitions"] = definitions();
  return json;
}

Result<std::string> compare_reports(const Json& a, const Json& b) {
  INGOT_TRY(expect_report(a, "a"));
  INGOT_TRY(expect_report(b, "b"));
  std::string text;
  const Json sa = a.value("setup", Json::object()), sb = b.value("setup", Json::object());
  for (const auto& [name, value] : sa.items())
    if (sb.value(name, Json()) != value)
      text += fmt::format("differs: {} is {} in a and {} in b\n", name, value.dump(), sb.value(name, Json()).dump());
  const Json fa = a.value("figures", Json::object()), fb = b.value("figures", Json::object());
  text += fmt::format("\n{:<24} {:>12} {:>12} {:>9}\n", "", "a", "b", "b / a");
  const auto row = [&](const std::string& name, const Json& x, const Json& y) {
    const bool both = x.is_number() && y.is_number() && x.get<double>() != 0;
    text += fmt::format("{:<24} {:>12} {:>12} {:>9}\n", name, number(x, 2), number(y, 2),
                        both ? fmt::format("x{:.3f}", y.get<double>() / x.get<double>()) : "-");
  };
  for (const char* name :
       {"request_s", "input_tok_s", "output_tok_s", "total_tok_s", "peak_output_tok_s", "goodput_s", "hit_ratio", "acceptance_length"})
    row(name, fa.value(name, Json()), fb.value(name, Json()));
  for (const char* name : {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"})
    for (const char* p : {"mean", "p50", "p95", "p99"})
      row(fmt::format("{} {}", name, p), fa.value(name, Json::object()).value(p, Json()), fb.value(name, Json::object()).value(p, Json()));
  if (a.contains("knee") && b.contains("knee")) {
    row("knee, requests/s", a["knee"].value("rate", Json()), b["knee"].value("rate", Json()));
    return text;
  }
  // Pairs: the same planned request, measured and answered in both.
  std::map<int64_t, const Json*> in_b;
  const auto counts_as = [](const Json& r) {
    return !r.value("warmup", false) && !r.contains("error") && r.value("first_token_ms", Json()).is_number();
  };
  const Json none = Json::array();
  const Json& ra = a.contains("requests") ? a["requests"] : none;
  const Json& rb = b.contains("requests") ? b["requests"] : none;
  for (const Json& r : rb)
    if (counts_as(r)) in_b.emplace(r.value("index", int64_t{-1}), &r);
  Paired ttft, tpot, e2e;
  int64_t unlike = 0;
  for (const Json& x : ra) {
    const auto found = in_b.find(x.value("index", int64_t{-1}));
    if (!counts_as(x) || found == in_b.end()) continue;
    const Json& y = *found->second;
    if (x.value("planned_input", 0) != y.value("planned_input", 0) || x.value("output_tokens", 0) != y.value("output_tokens", 0)) {
      ++unlike;
      continue;
    }
    const auto span = [](const Json& r, const char* from, const char* to) { return r.value(to, 0.0) - r.value(from, 0.0); };
    const auto add = [&](Paired& pairs, const char* from, const char* to) {
      const double p = span(x, from, to), q = span(y, from, to);
      if (p > 0 && q > 0) pairs.logs.push_back(std::log(q / p));
    };
    add(ttft, "sent_ms", "first_token_ms");
    add(e2e, "sent_ms", "end_ms");
    if (x.value("output_tokens", 0) > 1) add(tpot, "first_token_ms", "last_token_ms");  // as many tokens in both
  }
  text += "\npaired by request, b / a (geometric mean):\n" + ttft.text("TTFT") + tpot.text("TPOT") + e2e.text("E2E");
  if (unlike > 0) text += fmt::format("  {} requests were of other lengths in a and b, and are no pairs\n", unlike);
  if (sa.value("seed", Json()) != sb.value("seed", Json())) text += "  the seeds differ: these pairs are not of equal prompts\n";
  return text;
}

}  // namespace ingot::load
