// `ingot bench single`: what one user alone sees. One request at a time, every prompt unique (no cache hits), as Artificial Analysis
// measures.
#include <cmath>
#include <cstdio>

#include "apps/bench_serve_target.h"
#include "load/report.h"
#include "plan/workload.h"

namespace ingot::apps {

namespace {
constexpr int kVersion = 1;

struct Kind {
  std::string name;                 // "as asked", "speculation off", "speculation on"
  std::optional<bool> speculation;  // sent
  std::vector<load::Sample> samples;
  load::Figures figures;
  load::Distribution tok_s;  // after the first token, of each answer
};

struct Single {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;
  Json setup;
  std::vector<Kind> kinds;
};

// Behind the kind's earlier requests, as if each had been sent when the one before ended: every run has a clock of its own, and rates are
// of one stream.
void append(Kind& kind, load::Sample s) {
  const int64_t by = kind.samples.empty() ? 0 : kind.samples.back().end_ns;
  s.sent_ns += by, s.end_ns += by;
  for (int64_t* time : {&s.first_token_ns, &s.first_content_ns})
    if (*time >= 0) *time += by;
  for (load::Arrived& a : s.arrived) a.at_ns += by;
  kind.samples.push_back(std::move(s));
}

Result<Single> measure(const BenchSingleOptions& o) {
  INGOT_TRY(check_target(o.target));
  INGOT_ASSIGN(plan::Workload w, plan::workload_named(o.workload));
  const bool is_recorded = w.kind == plan::Workload::Kind::jsonl;
  if (w.concurrency != 1 && !is_recorded)
    return fail("--workload {}: expected aa-single, aa-short, or jsonl:FILE for prompts of your own", o.workload);
  if (o.compare_speculation && !o.target.speculation.empty())
    return fail("--compare-speculation does both: it does not go with --speculation");
  w.length_scale = o.scale;
  Single single;
  if (o.compare_speculation) {
    single.kinds.push_back({"speculation off", false, {}, {}, {}});
    single.kinds.push_back({"speculation on", true, {}, {}, {}});
  } else {
    single.kinds.push_back({"as asked", {}, {}, {}, {}});
  }
  const auto num_kinds = static_cast<int64_t>(single.kinds.size());
  plan::PlanOptions options;
  options.seed = o.seed;
  // Of a file every kind gets the same prompts; made-up ones are never sent twice.
  options.num_requests = is_recorded ? o.runs + 1 : (o.runs + 1) * num_kinds;
  options.arrival = plan::Arrival::constant;
  INGOT_ASSIGN(const auto requests, plan::plan_requests(w, options));
  if (requests.size() < 2) return fail("{} has one request, which is the warm-up: nothing is left to measure", w.name);
  INGOT_ASSIGN(OpenTarget target, open_target(o.target, is_recorded));
  single.title = fmt::format("ingot bench single: {}{}, seed {}", w.name,
                             o.scale != 1 ? fmt::format(" at scale {:g}", o.scale) : std::string(), o.seed);
  single.facts.emplace_back("workload", is_recorded ? fmt::format("{}, the first {}, one at a time", w.about, requests.size()) : w.about);
  if (is_recorded && o.compare_speculation)
    single.facts.emplace_back(
        "note", "each prompt is sent twice, so that both kinds answer the same: the TTFT of the second is of a cached prompt");
  if (o.scale != 1)
    single.facts.emplace_back("scale", fmt::format("{:g}: every length is multiplied by it; figures are not the workload's own", o.scale));
  single.facts.insert(single.facts.end(), target.facts.begin(), target.facts.end());
  single.setup = {{"workload", w.name}, {"scale", o.scale}, {"seed", o.seed}, {"runs", o.runs}};
  for (const auto& [name, value] : target.setup.items()) single.setup[name] = value;
  const std::optional<bool> asked = target.runner->target().speculation;
  load::RunOptions run;
  run.concurrency = 1;
  // In turns, so that a machine that slows down slows down both.
  const size_t rounds = is_recorded ? requests.size() : static_cast<size_t>(o.runs + 1);
  std::vector<load::RunFacts> facts(single.kinds.size());
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t k = 0; k < single.kinds.size(); ++k) {
      Kind& kind = single.kinds[k];
      target.runner->set_speculation(o.compare_speculation ? kind.speculation : asked);
      plan::PlannedRequest request = requests[is_recorded ? round : round * single.kinds.size() + k];
      request.session = 0;
      auto result = target.runner->run({request}, run);
      result.samples.front().is_warmup = round == 0;
      facts[k].lags_ns.insert(facts[k].lags_ns.end(), result.facts.lags_ns.begin(), result.facts.lags_ns.end());
      facts[k].ignore_eos = result.facts.ignore_eos;
      append(kind, std::move(result.samples.front()));
      if (!o.quiet)
        std::fprintf(
            stderr, "%s\n",
            fmt::format("{} {} of {}: {}", kind.name, round + 1, rounds, kind.samples.back().ok() ? "answered" : kind.samples.back().detail)
                .c_str());
    }
  }
  for (size_t k = 0; k < single.kinds.size(); ++k) {
    Kind& kind = single.kinds[k];
    std::vector<double> tok_s;
    for (const load::Sample& s : kind.samples) {
      const double tpot = s.ok() && !s.is_warmup ? load::tpot_ms(s) : 0;
      if (tpot > 0) tok_s.push_back(1e3 / tpot);
    }
    kind.tok_s = load::Distribution(std::move(tok_s));
    kind.figures = load::figures_of(kind.samples, facts[k]);
    kind.figures.warnings.insert(kind.figures.warnings.end(), target.warnings.begin(), target.warnings.end());
  }
  return single;
}

std::string text_of(const Single& single) {
  std::string text = single.title + "\n";
  for (const auto& [name, value] : single.facts) text += fmt::format("  {:<11} {}\n", name, value);
  text += fmt::format("\n{:<16} {:>8} {:>12} {:>12} {:>14} {:>10} {:>11} {:>11} {:>10}\n", "", "answers", "TTFT p50 ms", "TTFT max ms",
                      "tok/s after p50", "tok/s min", "E2E p50 ms", "acceptance", "out tok");
  for (const Kind& k : single.kinds) {
    const load::Figures& f = k.figures;
    if (f.ok == 0 || k.tok_s.empty()) {
      text += fmt::format("{:<16} no answer: {}\n", k.name,
                          f.error_examples.empty() ? "answers of one token" : f.error_examples.begin()->second);
      continue;
    }
    text +=
        fmt::format("{:<16} {:>8} {:>12.2f} {:>12.2f} {:>14.2f} {:>11.2f} {:>11.2f} {:>11} {:>10.1f}\n", k.name,
                    fmt::format("{}/{}", f.ok, f.requests), f.ttft_ms.percentile(50), f.ttft_ms.percentile(100), k.tok_s.percentile(50),
                    k.tok_s.percentile(0), f.e2e_ms.percentile(50), f.acceptance_length ? fmt::format("{:.3f}", *f.acceptance_length) : "-",
                    static_cast<double>(f.output_tokens) / static_cast<double>(f.ok));
  }
  if (single.kinds.size() == 2 && !single.kinds[0].tok_s.empty() && !single.kinds[1].tok_s.empty())
    text += fmt::format("speculation: x{:.3f} tok/s after the first token (medians)\n",
                        single.kinds[1].tok_s.percentile(50) / single.kinds[0].tok_s.percentile(50));
  for (const Kind& k : single.kinds)
    for (const auto* warnings : {&k.figures.warnings, &k.figures.client.warnings})
      for (const std::string& w : *warnings) text += fmt::format("warning ({}): {}\n", k.name, w);
  return text +
         "\nOne request at a time behind one of warm-up. TTFT: from the client's begin of a request to the first text of any kind. tok/s "
         "after:\n"
         "(tokens - 1) / (last token - first), of each answer. Acceptance: tokens a verification put out, from usage.speculative.\n";
}

Json json_of(const Single& single) {
  Json json{{"kind", "ingot bench single"}, {"version", kVersion}, {"title", single.title}, {"setup", single.setup}};
  json["kinds"] = Json::array();
  for (const Kind& k : single.kinds) {
    Json requests = Json::array();
    for (const load::Sample& s : k.samples) requests.push_back(load::to_json(s));
    json["kinds"].push_back({{"name", k.name},
                             {"tok_s_after_first", k.tok_s.json()},
                             {"figures", load::to_json(k.figures)},
                             {"requests", std::move(requests)}});
  }
  json["definitions"] = load::definitions();
  json["definitions"]["tok_s_after_first"] = "(output tokens - 1) / (last token - first token), of each answer";
  return json;
}
}  // namespace

int run_bench_single(const BenchSingleOptions& options) {
  const auto single = measure(options);
  if (!single) {
    std::fprintf(stderr, "bench single: %s\n", single.error().text().c_str());
    return 1;
  }
  if (options.json != "-") std::fputs(text_of(*single).c_str(), stdout);
  if (!options.json.empty()) {
    const auto written = write_report(options.json, json_of(*single).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (!written) {
      std::fprintf(stderr, "bench single: %s\n", written.error().text().c_str());
      return 1;
    }
  }
  for (const Kind& k : single->kinds)
    if (k.figures.ok < k.figures.requests) return 3;
  return 0;
}

}  // namespace ingot::apps
