#include "apps/bench_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "apps/bench_step_load.h"
#include "apps/bench_step_times.h"
#include "base/log.h"
#include "serve/model_service.h"

namespace ingot::apps {
namespace {

// Resident memory of this process now, in bytes.
int64_t resident_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

// Adds up what operations must move and compute.
struct CostSum final : gpu::OpObserver {
  gpu::OpCost sum;
  void before(std::string_view, std::string_view, const gpu::OpCost& cost) override {
    sum.bytes += cost.bytes;
    sum.flop += cost.flop;
  }
  void after() override {}
};

Result<> check_counts(const char* flag, const std::vector<int64_t>& values) {
  for (const int64_t value : values)
    if (value < 1) return fail("{} {}: at least 1", flag, value);
  return {};
}

StepShape decode_shape(int64_t batch, int64_t context) { return {"decode", batch, 1, context, false, true, StepGives::tokens}; }

// The steps of a prompt; the last one draws the first token.
std::vector<StepShape> prefill_shapes(int64_t length, int64_t chunk) {
  std::vector<StepShape> shapes;
  for (int64_t at = 0; at < length; at += chunk) {
    const int64_t rows = std::min(chunk, length - at);
    const bool last = at + rows == length;
    shapes.push_back({"prefill", 1, rows, at + rows, false, false, last ? StepGives::tokens : StepGives::nothing});
  }
  return shapes;
}

class Bench {
 public:
  Bench(const BenchStepOptions& options, BenchModel& model, BenchCache& cache, StepReport& report)
      : options_(options), model_(model), cache_(cache), report_(report) {}

  Result<> measure(StepLine line, const std::vector<StepShape>& shapes) {
    log_info("{}", line.name());
    INGOT_TRY(model_.roofs().measure());
    ExpertHits hits;
    {
      INGOT_ASSIGN(const auto glm, model_.glm(model_.options().graphs));
      std::vector<BenchSteps> steps = steps_of(*glm, shapes);
      const bool counts_hits = line.kind == StepLine::Kind::decode && model_.has_experts();
      std::vector<double> ms;
      gpu::Stream stream{&model_.pool()};
      const auto run = [&]() -> Result<> {
        for (BenchSteps& step : steps) INGOT_TRY(step.run(stream));
        return {};
      };
      const auto after = [&](double took) -> Result<> {
        ms.push_back(took);
        return counts_hits ? hits.count(*glm) : Result<>();
      };
      INGOT_ASSIGN(line.runs, repeat(options_.runs, options_.time_limit_s, run, after));
      line.ms = spread_of(ms);
      line.hit_experts = hits.mean();
    }
    INGOT_TRY(count_costs(line, shapes));
    report_.lines.push_back(line);
    return {};
  }

 private:
  std::vector<BenchSteps> steps_of(model::Glm& glm, const std::vector<StepShape>& shapes) {
    std::vector<BenchSteps> steps;
    for (const StepShape& shape : shapes) steps.emplace_back(glm, cache_, shape, model_.config().vocab_size, 11);
    return steps;
  }

  // By steps of their own, that nobody times and no graph hides.
  Result<> count_costs(StepLine& line, const std::vector<StepShape>& shapes) {
    INGOT_ASSIGN(const auto glm, model_.glm(false));
    CostSum costs;
    gpu::Stream stream{&model_.pool()};
    stream.observer = &costs;
    std::vector<BenchSteps> steps = steps_of(*glm, shapes);
    for (size_t i = 0; i < shapes.size(); ++i) {
      costs.hints = shapes[i].hints(line.hit_experts);
      INGOT_TRY(steps[i].run(stream));
    }
    line.bytes = costs.sum.bytes;
    line.flop = costs.sum.flop;
    return {};
  }

  const BenchStepOptions& options_;
  BenchModel& model_;
  BenchCache& cache_;
  StepReport& report_;
};

Result<> check(const BenchStepOptions& options, int64_t most_positions) {
  INGOT_TRY(check_counts("--batch", options.batch));
  INGOT_TRY(check_counts("--context", options.context));
  INGOT_TRY(check_counts("--prefill", options.prefill));
  INGOT_TRY(check_counts("--chunk", {options.chunk}));
  INGOT_TRY(check_counts("--runs", {options.runs}));
  for (const auto& [flag, values] : {std::pair{"--context", &options.context}, std::pair{"--prefill", &options.prefill}})
    for (const int64_t value : *values)
      if (value > most_positions) return fail("{} {}: the model has {} positions", flag, value, most_positions);
  return {};
}

}  // namespace

Result<StepReport> bench_step(const BenchStepOptions& options, std::shared_ptr<gpu::Accelerator> device) {
  INGOT_ASSIGN(const auto model, BenchModel::open(options.model, std::move(device)));
  INGOT_TRY(check(options, model->config().max_position_embeddings));
  StepReport report;
  report.model = model->told();
  report.machine = model->machine();
  report.load_seconds = model->load_seconds();
  report.notes.push_back(
      "random tokens over random keys, new ones in each step; a step is timed from its tokens to those drawn from its logits. bytes and "
      "flop are what its operations must move and compute, experts as many as were sent a row in the last MoE layer");
  std::vector<StepShape> all;
  for (const int64_t context : options.context)
    for (const int64_t batch : options.batch) all.push_back(decode_shape(batch, context));
  for (const int64_t length : options.prefill)
    for (StepShape& shape : prefill_shapes(length, options.chunk)) all.push_back(std::move(shape));
  if (all.empty()) return fail("no --batch with a --context, and no --prefill: there is nothing to time");
  INGOT_ASSIGN(BenchCache cache, model->cache(all, report.notes));
  report.cache_bytes = cache.bytes();
  Bench bench(options, *model, cache, report);
  for (const int64_t length : options.prefill) {
    StepLine line;
    line.kind = StepLine::Kind::prefill;
    line.context = length;
    line.chunk = options.chunk;
    INGOT_TRY(bench.measure(line, prefill_shapes(length, options.chunk)));
  }
  for (const int64_t context : options.context) {
    for (const int64_t batch : options.batch) {
      StepLine line;
      line.batch = batch;
      line.context = context;
      INGOT_TRY(bench.measure(line, {decode_shape(batch, context)}));
    }
  }
  INGOT_TRY(model->roofs().measure());
  report.roofs = model->roofs().roofs();
  report.resident_bytes = resident_bytes();
  return report;
}

int run_bench_step(const BenchStepOptions& options) {
  serve::ServiceOptions service;
  service.device = options.model.device;
  auto device = serve::open_device(service);
  Result<StepReport> report = device ? bench_step(options, std::move(*device)) : forward_error(std::move(device).error());
  if (!report) {
    fmt::print(stderr, "bench step: {}\n", report.error().text());
    return 1;
  }
  return put_report("bench step", to_json(*report), report_text(*report), options.json);
}

}  // namespace ingot::apps
