#include "apps/bench_kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "apps/bench_step_load.h"
#include "apps/bench_step_times.h"
#include "base/log.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fill_random.kernel.h"
#include "kernels/ops.h"
#include "serve/model_service.h"

namespace ingot::apps {
namespace {

// On the CPU the host draws a token from each row of logits, as part of the step. On a GPU that is an operation behind the step's graph,
// timed by itself.
StepShape shape_of(int64_t rows, int64_t context, bool on_device) {
  const bool decodes = rows <= BenchKernelsOptions::kMostSequences;
  const StepGives gives = on_device ? StepGives::logits : StepGives::tokens;
  return {fmt::format("{} rows", rows), decodes ? rows : 1, decodes ? 1 : rows, context, false, decodes, gives};
}

std::string text_of(const gpu::OpShape& shape) {
  std::string text = fmt::format("{}", shape.rows);
  for (const int64_t size : {shape.n, shape.k})
    if (size > 0) text += fmt::format(" x {}", size);
  return text;
}

class Bench {
 public:
  Bench(const BenchKernelsOptions& options, BenchModel& model, BenchCache& cache) : options_(options), model_(model), cache_(cache) {}

  Result<KernelsStep> measure(const StepShape& shape) {
    log_info("{}", shape.name);
    INGOT_TRY(model_.roofs().measure());
    KernelsStep step;
    step.rows = shape.rows();
    step.sequences = shape.sequences;
    step.context = shape.context;
    StepTimes times(model_.device(), StepTimes::Detail::every_op);  // outlives the graph that marks its events
    OpTotals totals(OpTotals::Alike::kernel_and_shape);
    std::vector<double> whole;
    INGOT_TRY(time_step(shape, times, totals, whole, step));
    if (model_.device()) INGOT_TRY(time_draws(shape, step.runs, totals, whole));
    step.ms = spread_of(whole);
    const double all = std::accumulate(whole.begin(), whole.end(), 0.0);
    for (const OpTotals::Total& total : totals.totals()) {
      const double sum = std::accumulate(total.ms.begin(), total.ms.end(), 0.0);
      step.ops.push_back({std::string(total.op), std::string(total.kernel), text_of(total.shape), total.calls, spread_of(total.ms),
                          sum / all, total.bytes, total.flop});
    }
    return step;
  }

 private:
  Result<> time_step(const StepShape& shape, StepTimes& times, OpTotals& totals, std::vector<double>& whole, KernelsStep& step) {
    INGOT_ASSIGN(const auto glm, model_.glm(model_.options().graphs));
    BenchSteps steps(*glm, cache_, shape, model_.config().vocab_size, 11);
    gpu::Stream stream{&model_.pool()};
    stream.observer = &times;
    ExpertHits hits;
    const auto run = [&]() -> Result<> {
      times.hints = shape.hints(hits.mean());
      times.begin_step();
      INGOT_TRY(steps.run(stream));
      times.end_step();
      return model_.has_experts() ? hits.count(*glm) : Result<>();
    };
    const auto after = [&](double) -> Result<> {
      INGOT_ASSIGN(const double ms, times.whole_ms());
      whole.push_back(ms);
      return totals.add(times);
    };
    INGOT_ASSIGN(step.runs, repeat(options_.runs, options_.time_limit_s, run, after));
    step.hit_experts = hits.mean();
    return {};
  }

  // Adds a draw from each row of logits to the `runs` steps.
  Result<> time_draws(const StepShape& shape, int runs, OpTotals& totals, std::vector<double>& whole) {
    const auto& device = model_.device();
    const int64_t rows = shape.all_logits ? shape.rows() : shape.sequences, vocab = model_.config().vocab_size;
    const auto count = static_cast<size_t>(rows);
    INGOT_ASSIGN(const auto logits, gpu::DeviceMemory::allocate(device, count * static_cast<size_t>(vocab) * sizeof(float)));
    INGOT_ASSIGN(const auto draws, gpu::DeviceMemory::allocate(device, count * sizeof(kernels::DrawRow)));
    INGOT_ASSIGN(const auto drawn, gpu::DeviceMemory::allocate(device, count * sizeof(kernels::SampledRow)));
    INGOT_ASSIGN(const auto staged, gpu::HostMemory::allocate(device, draws.bytes()));
    kernels::DrawRow greedy;
    greedy.kind = kernels::DrawKind::greedy;
    std::fill_n(reinterpret_cast<kernels::DrawRow*>(staged.data()), count, greedy);
    device->copy(draws.data(), staged.data(), draws.bytes());
    kernels::launch<kernels::FillRandom>(*device,
                                         {logits.data(), static_cast<int64_t>(logits.bytes()), kernels::RandomKind::f32, 1, 0.0f, 1.0f});
    kernels::SampleRowsParams p{};
    p.results = reinterpret_cast<kernels::SampledRow*>(drawn.data());
    p.logits = reinterpret_cast<const float*>(logits.data());
    p.rows = reinterpret_cast<const kernels::DrawRow*>(draws.data());
    p.num_rows = rows;
    p.vocab_size = vocab;
    StepTimes times(device, StepTimes::Detail::every_op);
    gpu::Stream stream{nullptr, device.get(), gpu::DeviceMatmul::lanes, &times};
    OpTotals draw(OpTotals::Alike::kernel_and_shape);
    const auto run = [&]() -> Result<> {
      times.begin_step();
      kernels::sample_rows(stream, p);
      times.end_step();
      return device->finish();
    };
    size_t at = 0;
    const auto after = [&](double) -> Result<> {
      INGOT_ASSIGN(const double ms, times.whole_ms());
      whole[at++] += ms;
      return draw.add(times);
    };
    INGOT_TRY(repeat(runs, 1e9, run, after));
    totals.join(draw);
    return {};
  }

  const BenchKernelsOptions& options_;
  BenchModel& model_;
  BenchCache& cache_;
};

Result<> check(const BenchKernelsOptions& options, int64_t most_positions) {
  if (options.rows.empty()) return fail("--rows: at least one");
  if (options.context < 1) return fail("--context {}: at least 1", options.context);
  if (options.context > most_positions) return fail("--context {}: the model has {} positions", options.context, most_positions);
  if (options.runs < 1) return fail("--runs {}: at least 1", options.runs);
  for (const int64_t rows : options.rows) {
    if (rows < 1) return fail("--rows {}: at least 1", rows);
    if (rows > BenchKernelsOptions::kMostSequences && rows > options.context)
      return fail_hint("more --context", "--rows {}: more than {} are of one sequence, and --context {} has no room for them", rows,
                       BenchKernelsOptions::kMostSequences, options.context);
  }
  return {};
}

}  // namespace

Result<KernelsReport> bench_kernels(const BenchKernelsOptions& options, std::shared_ptr<gpu::Accelerator> device) {
  INGOT_ASSIGN(const auto model, BenchModel::open(options.model, std::move(device)));
  INGOT_TRY(check(options, model->config().max_position_embeddings));
  KernelsReport report;
  report.model = model->told();
  report.machine = model->machine();
  report.notes.push_back(
      "real steps of random tokens over random keys; an operation's time is from the end of the one before it, gap included, and of all "
      "its "
      "calls in a step; bytes and flop are what it must move and compute, experts as many as were sent a row in the last MoE layer");
  report.notes.push_back(
      "faster than memory: in cache, beside that roof. Shapes: rows x n x k of products, rows x heads x positions of attention and the "
      "indexer, rows x numbers of others");
  std::vector<StepShape> shapes;
  for (const int64_t rows : options.rows) shapes.push_back(shape_of(rows, options.context, model->device() != nullptr));
  INGOT_ASSIGN(BenchCache cache, model->cache(shapes, report.notes));
  Bench bench(options, *model, cache);
  for (const StepShape& shape : shapes) {
    INGOT_ASSIGN(KernelsStep step, bench.measure(shape));
    report.steps.push_back(std::move(step));
  }
  INGOT_TRY(model->roofs().measure());
  report.roofs = model->roofs().roofs();
  return report;
}

int run_bench_kernels(const BenchKernelsOptions& options) {
  serve::ServiceOptions service;
  service.device = options.model.device;
  auto device = serve::open_device(service);
  Result<KernelsReport> report = device ? bench_kernels(options, std::move(*device)) : forward_error(std::move(device).error());
  if (!report) {
    fmt::print(stderr, "bench kernels: {}\n", report.error().text());
    return 1;
  }
  return put_report("bench kernels", to_json(*report), report_text(*report), options.json);
}

}  // namespace ingot::apps
