#include "apps/bench_serve.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/bench_serve_target.h"
#include "load/knee.h"
#include "load/report.h"
#include "plan/workload.h"

namespace ingot::apps {

namespace {
using load::Figures;
using plan::Workload;

// What is sent when, decided once from the flags.
struct Setup {
  Workload workload;
  plan::PlanOptions plan;
  load::RunOptions run;
  std::vector<load::Objective> knee;  // empty: no search
  std::vector<std::pair<std::string, std::string>> facts;
};

Result<Workload> workload_of(const BenchServeOptions& o) {
  INGOT_ASSIGN(Workload w, plan::workload_named(o.workload));
  const bool is_recorded = !w.file.empty();
  if (is_recorded && (o.input_len || o.prefix_len || o.num_groups || o.range_ratio || o.turns))
    return fail("workload {} has lengths of its own: --input-len, --prefix-len, --prefix-groups, --range-ratio and --turns do not apply",
                w.name);
  if (is_recorded && o.output_len && w.kind != Workload::Kind::jsonl)
    return fail("workload {} has lengths of its own: --output-len does not apply", w.name);
  if (o.time_scale != 1 && !is_recorded) return fail("--time-scale is for recorded loads; workload {} has a --rate", w.name);
  // The shared part keeps its share of the input, unless it is given.
  if (o.input_len && !o.prefix_len) w.prefix_len = w.prefix_len * *o.input_len / w.input_len;
  w.input_len = o.input_len.value_or(w.input_len);
  w.output_len = o.output_len.value_or(w.output_len);
  w.range_ratio = o.range_ratio.value_or(w.range_ratio);
  if (o.turns && w.kind != Workload::Kind::agent) return fail("--turns is for the agent workload");
  w.turns = o.turns.value_or(w.turns);
  if ((o.prefix_len || o.num_groups) && w.kind != Workload::Kind::shared_prefix)
    return fail("--prefix-len and --prefix-groups are for workloads with a shared prefix: article, shared-prefix");
  w.prefix_len = o.prefix_len.value_or(w.prefix_len);
  if (w.prefix_len >= w.input_len && w.kind == Workload::Kind::shared_prefix)
    return fail("--prefix-len {} leaves nothing of --input-len {}", w.prefix_len, w.input_len);
  w.num_groups = o.num_groups.value_or(w.num_groups);
  w.time_scale = o.time_scale;
  w.length_scale = o.scale;
  return w;
}

Result<Setup> setup_of(const BenchServeOptions& o) {
  Setup s;
  INGOT_ASSIGN(s.workload, workload_of(o));
  const Workload& w = s.workload;
  s.plan.seed = o.seed;
  s.plan.rate = o.rate;
  if (!o.arrival.empty()) {
    INGOT_ASSIGN(s.plan.arrival, plan::arrival_named(o.arrival));
  }
  const plan::Arrival arrival = s.plan.arrival.value_or(o.rate ? plan::Arrival::poisson : w.arrival);
  s.plan.arrival = arrival;
  if (o.concurrency && o.rate) return fail("--concurrency is a closed loop and --rate an open one: give one of them");
  if (o.concurrency && !o.arrival.empty()) return fail("--arrival is of an open loop: it does not go with --concurrency");
  if (!o.find_knee.empty() && o.concurrency) return fail("--find-knee searches a rate: it does not go with --concurrency");
  if (!o.find_knee.empty() && arrival == plan::Arrival::trace) return fail("--find-knee sets the rate: use --arrival poisson or constant");
  const bool is_open = o.rate || !o.find_knee.empty() || arrival == plan::Arrival::trace || !o.arrival.empty();
  s.run.concurrency = o.concurrency.value_or(is_open ? 0 : w.concurrency);
  if (s.run.concurrency > 0) s.plan.arrival = plan::Arrival::constant;
  if (s.run.concurrency == 0 && o.find_knee.empty() && arrival != plan::Arrival::trace && !o.rate)
    return fail_hint("--rate for an open loop, --concurrency for a closed one", "workload {} does not say how fast requests come", w.name);
  const int64_t groups = w.kind == Workload::Kind::shared_prefix ? w.num_groups : 1;
  s.run.warmup_requests = o.warmup_requests.value_or(s.run.concurrency > 0 ? s.run.concurrency : groups);
  s.run.warmup_s = o.warmup_s;
  s.run.duration_s = o.duration_s;
  if (o.num_requests || w.num_requests > 0) {
    const int64_t measured = o.num_requests.value_or(w.num_requests);
    s.plan.num_requests = measured + (w.kind == Workload::Kind::agent ? 0 : s.run.warmup_requests);
  }
  if (!o.find_knee.empty()) {
    INGOT_ASSIGN(s.knee, load::parse_objectives(o.find_knee, true));
  }
  if (!o.goodput.empty()) {
    INGOT_ASSIGN(s.run.goodput, load::parse_objectives(o.goodput, false));
  }
  std::string lengths;
  if (w.file.empty()) {
    const auto scaled = [&](int64_t n) { return plan::scaled(n, o.scale); };
    lengths = fmt::format("; here {} in, {} out", scaled(w.input_len), scaled(w.output_len));
    if (w.prefix_len > 0)
      lengths += fmt::format(", {} of a prefix shared by {} group{}", scaled(w.prefix_len), w.num_groups, w.num_groups == 1 ? "" : "s");
    if (w.range_ratio != 1) lengths += fmt::format(", down to {:g} of these", w.range_ratio);
    if (w.kind == Workload::Kind::agent) lengths += fmt::format(", {} turns", w.turns);
  }
  s.facts.emplace_back("workload", w.about + lengths);
  if (o.scale != 1)
    s.facts.emplace_back(
        "scale", fmt::format("{:g}: every length of the workload is multiplied by it; figures are not the workload's own", o.scale));
  if (o.time_scale != 1) s.facts.emplace_back("time scale", fmt::format("{:g}: recorded gaps are so many times as long", o.time_scale));
  return s;
}

std::string loop_text(const Setup& s, std::optional<double> rate) {
  const std::string warmup = fmt::format("warm-up {} requests{}", s.run.warmup_requests,
                                         s.run.warmup_s > 0 ? fmt::format(" and {:g} s", s.run.warmup_s) : std::string());
  if (s.run.concurrency > 0) return fmt::format("closed loop, {} at a time; {}", s.run.concurrency, warmup);
  return fmt::format("open loop, {} arrivals{}; {}", plan::name_of(*s.plan.arrival), rate ? fmt::format(", {:g}/s", *rate) : std::string(),
                     warmup);
}

load::RunResult run_once(OpenTarget& target, const std::vector<plan::PlannedRequest>& requests, load::RunOptions run, bool quiet) {
  if (!quiet && ::isatty(STDERR_FILENO) != 0)
    run.progress = [](int64_t ended, int64_t planned) {
      std::fprintf(stderr, "\r%ld of %ld requests", static_cast<long>(ended), static_cast<long>(planned));
    };
  load::RunResult result = target.runner->run(requests, run);
  if (run.progress) std::fprintf(stderr, "\r%40s\r", "");
  return result;
}

// Requests a second that arrive on their own in a plan.
double rate_of(const std::vector<plan::PlannedRequest>& requests) {
  double last = 0, count = 0;
  for (const auto& r : requests)
    if (r.turn == 0) last = r.arrival_s, ++count;
  return last > 0 ? (count - 1) / last : 0;
}

// A rate to begin at: what one request alone takes says what the server does at least.
Result<double> first_rate(OpenTarget& target, const Setup& s, bool quiet) {
  plan::PlanOptions options = s.plan;
  options.num_requests = 3;
  options.seed = s.plan.seed + 1'000'003;
  options.arrival = plan::Arrival::constant;
  INGOT_ASSIGN(const auto requests, plan::plan_requests(s.workload, options));
  load::RunOptions run;
  run.concurrency = 1;
  run.warmup_requests = 1;
  const auto result = run_once(target, requests, run, quiet);
  const Figures f = load::figures_of(result.samples, result.facts);
  if (f.e2e_ms.empty()) return fail("no request was answered: {}", f.error_examples.empty() ? "" : f.error_examples.begin()->second);
  return 1e3 / f.e2e_ms.percentile(50);
}

Result<> measure(const BenchServeOptions& o, const Setup& s, OpenTarget& target, const std::vector<plan::PlannedRequest>& planned,
                 load::Report& report) {
  if (o.find_knee.empty()) {
    load::RunOptions run = s.run;
    run.offered_rate = o.rate.value_or(rate_of(planned));
    auto result = run_once(target, planned, run, o.quiet);
    report.figures = load::figures_of(result.samples, result.facts);
    report.samples = std::move(result.samples);
    return {};
  }
  load::KneeOptions options;
  options.objectives = s.knee;
  options.repeats = o.knee_repeats;
  options.tolerance = o.knee_tolerance;
  if (o.rate) {
    options.start_rate = *o.rate;
  } else {
    INGOT_ASSIGN(options.start_rate, first_rate(target, s, o.quiet));
  }
  uint64_t serial = 0;
  const auto run_at = [&](double rate, int) -> Result<Figures> {
    plan::PlanOptions plan = s.plan;
    plan.rate = rate;
    // Prompts of an earlier run would be in the server's cache.
    plan.seed = s.plan.seed + ++serial;
    INGOT_ASSIGN(auto requests, plan::plan_requests(s.workload, plan));
    // A short draw may have come out a tenth faster: stretched to the rate it stands for, it is a Poisson process of that many arrivals.
    const double drawn = rate_of(requests);
    for (auto& request : requests)
      if (drawn > 0) request.arrival_s *= drawn / rate;
    load::RunOptions run = s.run;
    run.offered_rate = rate;
    auto result = run_once(target, requests, run, o.quiet);
    Figures figures = load::figures_of(result.samples, result.facts);
    if (!o.quiet)
      std::fprintf(
          stderr, "%s\n",
          fmt::format("{:.3f}/s: TTFT p95 {:.1f} ms, {} of {} answered", rate, figures.ttft_ms.percentile(95), figures.ok, figures.requests)
              .c_str());
    const bool holds = load::worst_share(options, figures) <= 1;
    if (holds || report.samples.empty()) report.figures = figures, report.samples = std::move(result.samples);
    return figures;
  };
  INGOT_ASSIGN(load::Knee knee, load::find_knee(options, run_at));
  report.knee.emplace(std::move(knee), std::move(options));
  return {};
}

Result<load::Report> bench(const BenchServeOptions& o) {
  INGOT_TRY(check_target(o.target));
  INGOT_ASSIGN(const Setup setup, setup_of(o));
  // Before a server is started: a file that is not there must not take minutes to be told.
  INGOT_ASSIGN(const auto planned, plan::plan_requests(setup.workload, setup.plan));
  INGOT_ASSIGN(OpenTarget target, open_target(o.target, setup.workload.kind == Workload::Kind::jsonl));
  load::Report report;
  report.title = fmt::format("ingot bench serve: {}{}, seed {}", setup.workload.name,
                             o.scale != 1 ? fmt::format(" at scale {:g}", o.scale) : std::string(), o.seed);
  report.facts = setup.facts;
  report.facts.emplace_back("load", loop_text(setup, o.rate));
  report.facts.insert(report.facts.end(), target.facts.begin(), target.facts.end());
  report.setup = {{"workload", setup.workload.name}, {"scale", o.scale}, {"time_scale", o.time_scale}, {"seed", o.seed}};
  report.setup["input_len"] = setup.workload.input_len;
  report.setup["output_len"] = setup.workload.output_len;
  report.setup["prefix_len"] = setup.workload.prefix_len;
  report.setup["prefix_groups"] = setup.workload.num_groups;
  report.setup["range_ratio"] = setup.workload.range_ratio;
  report.setup["arrival"] = setup.run.concurrency > 0 ? "closed" : std::string(plan::name_of(*setup.plan.arrival));
  report.setup["rate"] = o.rate ? Json(*o.rate) : Json();
  report.setup["concurrency"] = setup.run.concurrency;
  report.setup["planned_requests"] = planned.size();
  report.setup["warmup_requests"] = setup.run.warmup_requests;
  report.setup["warmup_s"] = setup.run.warmup_s;
  report.setup["duration_s"] = setup.run.duration_s;
  report.setup["goodput"] = o.goodput;
  for (const auto& [name, value] : target.setup.items()) report.setup[name] = value;
  INGOT_TRY(measure(o, setup, target, planned, report));
  if (report.figures.requests == 0)
    return fail_hint("fewer --warmup-requests, a shorter --warmup, or more requests", "nothing was measured: all {} requests were warm-up",
                     report.figures.warmup);
  report.figures.warnings.insert(report.figures.warnings.end(), target.warnings.begin(), target.warnings.end());
  return report;
}
}  // namespace

int run_bench_serve(const BenchServeOptions& options) {
  const auto report = bench(options);
  if (!report) {
    std::fprintf(stderr, "bench serve: %s\n", report.error().text().c_str());
    return 1;
  }
  if (options.json != "-") std::fputs(load::report_text(*report).c_str(), stdout);
  for (const auto& [path, is_html] : {std::pair{options.json, false}, std::pair{options.html, true}}) {
    if (path.empty()) continue;
    const auto written = write_report(
        path, is_html ? load::report_html(*report) : load::to_json(*report).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (written) continue;
    std::fprintf(stderr, "bench serve: %s\n", written.error().text().c_str());
    return 1;
  }
  return report->figures.ok == report->figures.requests ? 0 : 3;
}

}  // namespace ingot::apps
