#include "apps/bench_speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>

#include "apps/eval_set.h"
#include "exec/glm_runner.h"
#include "sched/scheduler.h"
#include "serve/model_service.h"

namespace ingot::apps {
namespace {

constexpr int64_t kPageSize = 64;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// One way of decoding.
struct Mode {
  const char* name;
  exec::GlmRunner* runner;
  sched::DraftPolicy policy;
};

struct Figures {
  int64_t tokens = 0;  // drawn in steps without prompt rows
  double seconds = 0;  // of those steps
  sched::SchedulerStats stats;
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double mean_length() const {
    return 1 + static_cast<double>(stats.accepted_tokens) / static_cast<double>(std::max<int64_t>(1, stats.drafts));
  }
};

struct Setup {
  BenchSpeculationOptions options;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int32_t> eos_token_ids;
  int64_t longest = 0;  // prompt and answer
  int64_t num_pages = 0;
  sched::RequestId next_id = 0;
};

// All prompts, in waves of `batch` that begin together.
Result<Figures> answer_all(Setup& setup, const Mode& mode, int batch) {
  Figures figures;
  for (size_t first = 0; first < setup.prompts.size(); first += static_cast<size_t>(batch)) {
    sched::SchedulerOptions options;
    options.num_pages = setup.num_pages;
    options.page_size = kPageSize;
    options.max_running_requests = batch;
    options.context_length = setup.longest + 1;
    options.prefix_cache = false;
    options.draft = mode.policy;
    sched::Scheduler scheduler(options);
    for (size_t i = first; i < std::min(setup.prompts.size(), first + static_cast<size_t>(batch)); ++i) {
      sched::Request request;
      request.id = ++setup.next_id;
      request.prompt = setup.prompts[i];
      request.sampling.temperature = static_cast<float>(setup.options.temperature);
      request.sampling.seed = i;
      request.sampling.max_tokens = static_cast<int32_t>(setup.options.max_tokens);
      request.sampling.stop_token_ids = setup.eos_token_ids;
      request.sink = [](const sched::TokenEvent&) {};
      scheduler.submit(std::move(request));
    }
    while (scheduler.has_work()) {
      const double start = now();
      const sched::BatchPlan plan = scheduler.plan(1);
      INGOT_ASSIGN(const sched::BatchResult result, mode.runner->run(plan));
      const bool decodes = std::all_of(plan.items.begin(), plan.items.end(), [](const auto& item) { return item.num_generated > 0; });
      const int64_t before = scheduler.stats().completion_tokens;
      scheduler.commit(plan, result);
      if (!decodes) continue;
      figures.seconds += now() - start;
      figures.tokens += scheduler.stats().completion_tokens - before;
    }
    const sched::SchedulerStats stats = scheduler.stats();
    figures.stats.drafts += stats.drafts;
    figures.stats.draft_tokens += stats.draft_tokens;
    figures.stats.accepted_tokens += stats.accepted_tokens;
    for (size_t i = 0; i < stats.drafted_at.size(); ++i) {
      figures.stats.drafted_at[i] += stats.drafted_at[i];
      figures.stats.accepted_at[i] += stats.accepted_at[i];
    }
  }
  return figures;
}

Result<Setup> read_tasks(const BenchSpeculationOptions& options) {
  Setup setup{options, {}, {}, 0, 0, 0};
  serve::ServiceOptions service;
  service.model = options.model;
  INGOT_ASSIGN(const auto served, serve::load_served_model(service));
  INGOT_ASSIGN(const spec::ModelConfig config, spec::load_model_config(options.model));
  served->defaults.context_length = config.max_position_embeddings;
  setup.eos_token_ids = served->defaults.eos_token_ids;
  INGOT_ASSIGN(const std::vector<Json> lines, read_json_lines(options.data, options.limit));
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto request = chat_request_of(lines[i], *served);
    if (!request) return fail("{}, task {}: {}", options.data.string(), i + 1, request.error().message);
    auto prompt = serve::make_chat_prompt(*served, *request);
    if (!prompt) return fail("{}, task {}: {}", options.data.string(), i + 1, prompt.error().message);
    setup.longest = std::max(setup.longest, static_cast<int64_t>(prompt->tokens.size()) + options.max_tokens);
    setup.prompts.push_back(std::move(prompt->tokens));
  }
  if (setup.prompts.empty()) return fail("{} has no task", options.data.string());
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  setup.num_pages = most * ((setup.longest + sched::kMaxDraftTokens + kPageSize) / kPageSize);
  return setup;
}

struct Report {
  sched::StepCost cost;
  std::vector<double> conditional;  // acceptance at each position, given that all before it held
  double mean_length = 0;
  struct Row {
    int batch;
    std::vector<std::vector<double>> tokens_per_second;  // [mode][run]
    std::vector<double> mean_length;                     // [mode]
  };
  std::vector<Row> rows;
  std::string device;  // empty: the CPU
  model::Glm::DeviceCounts counts;
  size_t device_bytes = 0;

  double step(int64_t rows_of_step) const { return cost.step.seconds(rows_of_step); }
  // Of one sequence that drafts `depth` tokens: the first pass runs the rows of the last step, the others one each.
  double round(int depth) const { return step(1 + depth) + cost.pass.seconds(1 + depth) + (depth - 1) * cost.pass.seconds(1); }
};

void print_text(const BenchSpeculationOptions& o, const std::vector<Mode>& modes, const Report& r) {
  if (!r.device.empty())
    fmt::print("{}: {} steps, {} of them replayed from {} graphs; {} launches in the last one captured; {:.1f} MB on the device\n",
               r.device, r.counts.steps, r.counts.replayed, r.counts.graphs, r.counts.launches, static_cast<double>(r.device_bytes) / 1e6);
  fmt::print("{}, {}: depth {}, temperature {}\n", o.model.string(), o.data.filename().string(), o.num_steps, o.temperature);
  fmt::print("acceptance by position (given those before):");
  for (const double p : r.conditional) fmt::print(" {:.3f}", p);
  fmt::print("   mean acceptance length {:.2f}\n", r.mean_length);
  fmt::print("steps beside one of a single row ({:.3f} ms):", 1e3 * r.step(1));
  for (const int64_t rows : {2, 4, 6, 8, 16, 32}) fmt::print("  {} rows {:.2f}", rows, r.step(rows) / r.step(1));
  fmt::print("\nMTP pass: 1 row {:.3f} ms ({:.2f} steps), {} rows {:.3f} ms\n", 1e3 * r.cost.pass.seconds(1),
             r.cost.pass.seconds(1) / r.step(1), o.num_steps + 1, 1e3 * r.cost.pass.seconds(o.num_steps + 1));
  fmt::print("one round of depth {}: {:.3f} ms, {:.2f} steps: it pays above a mean acceptance length of that many tokens\n", o.num_steps,
             1e3 * r.round(o.num_steps), r.round(o.num_steps) / r.step(1));
  fmt::print("{:<8}", "batch");
  for (const Mode& mode : modes) fmt::print("{:>28}", fmt::format("{}, tok/s (least, most)", mode.name));
  for (size_t m = 1; m < modes.size(); ++m) fmt::print("{:>22}", fmt::format("{} / off", modes[m].name));
  fmt::print("\n");
  for (const Report::Row& row : r.rows) {
    fmt::print("{:<8}", row.batch);
    for (const auto& runs : row.tokens_per_second)
      fmt::print("{:>28}", fmt::format("{:.0f} ({:.0f}, {:.0f})", median(runs), *std::min_element(runs.begin(), runs.end()),
                                       *std::max_element(runs.begin(), runs.end())));
    for (size_t m = 1; m < modes.size(); ++m) {
      std::vector<double> ratios;  // of runs that followed each other
      for (size_t i = 0; i < row.tokens_per_second[m].size(); ++i)
        ratios.push_back(row.tokens_per_second[m][i] / row.tokens_per_second[0][i]);
      fmt::print("{:>22}", fmt::format("{:.2f}x, length {:.2f}", median(ratios), row.mean_length[m]));
    }
    fmt::print("\n");
  }
}

void print_json(const BenchSpeculationOptions& o, const std::vector<Mode>& modes, const Report& r) {
  Json out = {{"model", o.model.string()},    {"data", o.data.string()},       {"num_steps", o.num_steps},
              {"temperature", o.temperature}, {"acceptance", r.conditional},   {"mean_acceptance_length", r.mean_length},
              {"results", Json::array()},     {"step_seconds", Json::array()}, {"mtp_pass_seconds", Json::array()}};
  if (!r.device.empty())
    out["device"] = {{"name", r.device},          {"steps", r.counts.steps},       {"replayed", r.counts.replayed},
                     {"graphs", r.counts.graphs}, {"launches", r.counts.launches}, {"bytes", r.device_bytes}};
  for (const auto& p : r.cost.step.points) out["step_seconds"].push_back({p.count, p.seconds});
  for (const auto& p : r.cost.pass.points) out["mtp_pass_seconds"].push_back({p.count, p.seconds});
  for (const Report::Row& row : r.rows)
    for (size_t m = 0; m < modes.size(); ++m)
      out["results"].push_back({{"batch", row.batch},
                                {"mode", modes[m].name},
                                {"tokens_per_second", row.tokens_per_second[m]},
                                {"mean_acceptance_length", row.mean_length[m]}});
  fmt::print("{}\n", out.dump(1));
}

Result<> bench(const BenchSpeculationOptions& options) {
  INGOT_ASSIGN(const tensor::LatentFormat format, serve::parse_cache_format(options.kv_cache_dtype));
  INGOT_ASSIGN(Setup setup, read_tasks(options));
  serve::ServiceOptions service;
  service.device = options.device;
  INGOT_ASSIGN(const auto device, serve::open_device(service));
  model::GlmOptions glm_options;
  INGOT_ASSIGN(glm_options.device_matmul, serve::parse_device_matmul(options.device_matmul));
  glm_options.graphs = !options.no_graphs;
  INGOT_ASSIGN(auto loaded, model::Glm::load(options.model, glm_options, device));
  const std::shared_ptr<model::Glm> glm = std::move(loaded);
  if (!glm->has_mtp()) return fail("{} has no MTP layer: there is nothing to speculate with", options.model.string());
  if (setup.longest > glm->config().max_position_embeddings)
    return fail_hint("ask for less --max-tokens", "prompt and answer have up to {} tokens, the model's positions are {}", setup.longest,
                     glm->config().max_position_embeddings);
  const auto pool = std::make_shared<ThreadPool>(options.threads);
  const auto make_cache = [&] { return model::KvCache::create(glm->config(), {format, setup.num_pages, kPageSize}, device); };
  Report report;
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  INGOT_ASSIGN(auto cache, make_cache());
  INGOT_ASSIGN(report.cost, exec::measure_step_cost(*glm, cache, *pool, std::max(32, most * (1 + options.num_steps))));
  INGOT_ASSIGN(auto plain_cache, make_cache());
  exec::GlmRunner plain(glm, std::move(plain_cache), pool);
  exec::GlmRunner drafting(glm, std::move(cache), pool, {.speculate = true, .verify = {.rejection_sampling = options.rejection_sampling}});
  const std::vector<Mode> modes = {{"off", &plain, {}},
                                   {"fixed", &drafting, {.num_steps = options.num_steps, .adaptive = false, .cost = {}}},
                                   {"adaptive", &drafting, {.num_steps = options.num_steps, .adaptive = true, .cost = report.cost}}};
  for (const int batch : options.batches) {
    Report::Row row{batch, std::vector<std::vector<double>>(modes.size()), std::vector<double>(modes.size(), 1.0)};
    for (int run = 0; run < options.runs; ++run) {
      for (size_t m = 0; m < modes.size(); ++m) {
        INGOT_ASSIGN(const Figures figures, answer_all(setup, modes[m], batch));
        row.tokens_per_second[m].push_back(figures.tokens_per_second());
        row.mean_length[m] = figures.mean_length();
        if (m != 1 || !report.conditional.empty()) continue;
        report.mean_length = figures.mean_length();
        int64_t held_before = figures.stats.drafts;
        for (int i = 0; i < options.num_steps && held_before > 0; ++i) {
          const int64_t held = figures.stats.accepted_at[static_cast<size_t>(i)];
          report.conditional.push_back(static_cast<double>(held) / static_cast<double>(held_before));
          held_before = held;
        }
      }
    }
    report.rows.push_back(std::move(row));
  }
  if (device) {
    report.device = device->info().text();
    report.counts = glm->device_counts();
    report.device_bytes = device->allocated_bytes();
  }
  options.json ? print_json(options, modes, report) : print_text(options, modes, report);
  return {};
}

}  // namespace

int run_bench_speculation(const BenchSpeculationOptions& options) {
  const bool bad = options.limit < 1 || options.max_tokens < 2 || options.runs < 1 || options.batches.empty() || options.num_steps < 1 ||
                   options.num_steps > sched::kMaxDraftTokens || *std::min_element(options.batches.begin(), options.batches.end()) < 1;
  if (bad) {
    fmt::print(stderr, "ingot bench speculation: limit, runs and batches must be positive, max-tokens at least 2, num-steps 1 to {}\n",
               sched::kMaxDraftTokens);
    return 2;
  }
  if (const auto done = bench(options); !done) {
    fmt::print(stderr, "ingot bench speculation: {}\n", done.error().text());
    return 1;
  }
  return 0;
}

}  // namespace ingot::apps
