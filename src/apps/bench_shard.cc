#include "apps/bench_shard.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "apps/bench_shard_check.h"
#include "apps/bench_step_load.h"
#include "apps/bench_step_roofs.h"
#include "apps/bench_step_times.h"
#include "base/log.h"
#include "kernels/device/device_kernels.h"
#include "model/random_weights.h"
#include "model/shard.h"
#include "spec/known_models.h"

namespace ingot::apps {
namespace {

using gpu::DeviceMatmul;
using model::Glm;
using tensor::WeightFormat;

// Rank r of the experts' order is -kZipfSkew * ln(r) less likely in the scores that the router compares: with scores that deviate by 0.21
// (a sigmoid of normal logits) that is about the popularity 1 / r.
constexpr double kZipfSkew = 0.164;
constexpr int64_t kRowsToVerify = 6;

Result<DeviceMatmul> matmul_of(const std::string& name) {
  if (name == "f32") return DeviceMatmul::lanes;
  if (name == "bf16") return DeviceMatmul::tiles;
  if (name == "fast") return DeviceMatmul::fast;
  return fail_hint("use f32, bf16 or fast", "--device-matmul {} is unknown", name);
}

// The steps to time, in the order of the report. A speculation round needs the MTP layer over what is verified ("mtp"), and over one row
// a sequence ("draft").
std::vector<StepShape> shapes_of(const BenchShardOptions& options, bool mtp) {
  std::vector<StepShape> shapes;
  const auto add = [&](const char* kind, int64_t sequences, int64_t each, bool of_mtp) {
    const std::string name = fmt::format("{} {}", kind, sequences * each);
    if (std::any_of(shapes.begin(), shapes.end(), [&](const StepShape& s) { return s.name == name; })) return;
    shapes.push_back({name, sequences, each, options.context, of_mtp, !of_mtp});
  };
  const auto each_of = [](int64_t rows) { return rows % kRowsToVerify == 0 ? kRowsToVerify : 1; };
  for (const int64_t rows : options.tokens) add("decode", rows / each_of(rows), each_of(rows), false);
  for (const int64_t rows : options.tokens) {
    if (!mtp) break;
    if (each_of(rows) > 1) add("mtp", rows / each_of(rows), each_of(rows), true);
    add("draft", rows / each_of(rows), 1, true);
  }
  if (options.prefill > 0)
    shapes.push_back({fmt::format("prefill {}", options.prefill), 1, options.prefill, options.cached + options.prefill, false, false});
  return shapes;
}

class Bench {
 public:
  Bench(const BenchShardOptions& options, std::shared_ptr<gpu::Accelerator> device)
      : options_(options), device_(std::move(device)), pool_(0) {}

  Result<ShardReport> run() {
    INGOT_TRY(prepare());
    if (options_.check && !device_)
      return fail_hint("leave --check out", "--check compares a GPU's kernels with plain ones, and this is the CPU");
    if (options_.check) {
      log_info("checking layers of the rank against plain kernels");
      const ShardCheck check{whole_, options_.tp, weight_options_, format_, options_.context, matmul_};
      INGOT_ASSIGN(report_.checks, check_shard(check, device_, pool_));
    }
    RoofMeter meter(device_, pool_, matmul_, options_.roofs);
    INGOT_TRY(meter.measure());
    report_.roofs = meter.roofs();
    const std::vector<StepShape> shapes = shapes_of(options_, config_.num_nextn_predict_layers > 0);
    if (shapes.empty()) return std::move(report_);
    const double start = seconds_now();
    INGOT_ASSIGN(const auto weights, model::RandomWeights::make(whole_, options_.tp, weight_options_, device_, pool_));
    report_.fill_seconds = seconds_now() - start;
    report_.weight_bytes = static_cast<int64_t>(weights.bytes());
    log_info("{:.2f} GB of weights", static_cast<double>(weights.bytes()) / 1e9);
    INGOT_ASSIGN(const int64_t for_cache, BenchCache::affordable_bytes(device_.get()));
    INGOT_ASSIGN(BenchCache cache, BenchCache::make(config_, format_, shapes, for_cache, device_, pool_));
    report_.cache_bytes = cache.bytes();
    if (cache.pages_are_shared())
      report_.notes.push_back(
          "memory does not hold a cache of its own for every sequence: they share all pages but their last, out of one pool");
    for (const StepShape& shape : shapes) {
      log_info("{}", shape.name);
      INGOT_ASSIGN(ShardMode mode, measure(weights.weights(), cache, shape));
      report_.modes.push_back(std::move(mode));
    }
    return std::move(report_);
  }

 private:
  Result<> prepare() {
    INGOT_ASSIGN(const spec::ModelConfig whole, spec::known_model(options_.spec));
    if (options_.layers < 0 || options_.layers > whole.num_hidden_layers)
      return fail("--layers {}: {} has {}", options_.layers, options_.spec, whole.num_hidden_layers);
    whole_ = with_layers(whole, options_.layers);
    INGOT_ASSIGN(config_, model::shard_config(whole_, options_.tp));
    const std::string attention = !options_.attention_weights.empty() ? options_.attention_weights
                                  : options_.weights == "fp8"         ? "fp8"
                                                                      : "bf16";
    const std::string mtp = !options_.mtp_weights.empty() ? options_.mtp_weights : options_.weights == "mxfp4" ? "bf16" : options_.weights;
    INGOT_ASSIGN(weight_options_.experts, weight_format_of(options_.weights));
    INGOT_ASSIGN(weight_options_.attention, weight_format_of(attention));
    INGOT_ASSIGN(weight_options_.mtp, weight_format_of(mtp));
    if (weight_options_.attention == WeightFormat::mxfp4) return fail_hint("use bf16 or fp8", "--attention-weights mxfp4 is not supported");
    if (options_.routing != "uniform" && options_.routing != "zipf")
      return fail_hint("use uniform or zipf", "--routing {} is unknown", options_.routing);
    weight_options_.routing_skew = options_.routing == "zipf" ? kZipfSkew : 0;
    const auto format = tensor::latent_format_of(options_.kv_dtype);
    if (!format) return fail_hint("use bf16, fp8_e4m3, fp8_ds_mla or f32", "--kv-dtype {} is unknown", options_.kv_dtype);
    format_ = *format;
    INGOT_ASSIGN(matmul_, matmul_of(options_.device_matmul));
    for (const int64_t rows : options_.tokens)
      if (rows < 1) return fail("--tokens {}: at least 1", rows);
    if (options_.context < kRowsToVerify || options_.runs < 1 || options_.prefill < 0 || options_.cached < 0)
      return fail("--context {}, --runs {}, --prefill {}, --cached {}: too small", options_.context, options_.runs, options_.prefill,
                  options_.cached);
    const int64_t longest = std::max(options_.context, options_.cached + options_.prefill);
    if (longest > config_.max_position_embeddings)
      return fail("{} positions: {} has {}", longest, options_.spec, config_.max_position_embeddings);
    report_.spec = options_.spec;
    report_.weights = options_.weights;
    report_.attention_weights = attention;
    report_.mtp_weights = mtp;
    report_.kv_dtype = options_.kv_dtype;
    report_.routing = options_.routing;
    report_.device_matmul = device_ ? options_.device_matmul : "cpu";
    report_.tp = options_.tp;
    report_.layers = config_.num_hidden_layers;
    report_.model_layers = whole.num_hidden_layers;
    report_.hidden_size = config_.hidden_size;
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) report_.moe_layers += config_.is_moe(i) ? 1 : 0;
    report_.device = device_ ? device_->info().text() : fmt::format("cpu, {} threads", pool_.num_threads());
    report_.l2_bytes = device_ ? device_->info().l2_bytes : 0;
    report_.notes.push_back(
        "random weights and keys; every step has new random tokens, so new experts. Weights are cold: a step reads each "
        "once and all of them are many times the L2; activations, and what rows of a sequence share, are warm");
    if (report_.layers < report_.model_layers)
      report_.notes.push_back("fewer layers than the model has: lines are of these alone, and no step of the model is told");
    return {};
  }

  double expected_experts(const StepShape& shape) const {
    return model::expected_distinct_experts(config_.n_routed_experts, config_.num_experts_per_tok, static_cast<double>(shape.rows()),
                                            weight_options_.routing_skew);
  }

  Result<ShardMode> measure(const model::Weights& weights, BenchCache& cache, const StepShape& shape) {
    ShardMode mode;
    mode.name = shape.name;
    mode.rows = shape.rows();
    mode.sequences = shape.sequences;
    mode.context = shape.context;
    mode.expected_experts = expected_experts(shape);
    const model::GlmOptions options{.device_matmul = matmul_, .graphs = options_.graphs};
    {
      INGOT_ASSIGN(const auto glm, Glm::over(weights, config_, options, device_));
      BenchSteps steps(*glm, cache, shape, whole_.vocab_size, 11);
      std::optional<StepTimes> times;
      gpu::Stream stream{&pool_};
      if (device_) stream.observer = &times.emplace(device_, StepTimes::Detail::whole);
      std::vector<double> step_ms, wall_ms;
      const auto run = [&]() -> Result<> {
        if (times) times->begin_step();
        INGOT_TRY(steps.run(stream));
        if (times) times->end_step();
        return {};
      };
      const auto after = [&](double ms) -> Result<> {
        wall_ms.push_back(ms);
        double step = ms;
        if (times) {
          INGOT_ASSIGN(step, times->whole_ms());
        }
        step_ms.push_back(step);
        return {};
      };
      INGOT_ASSIGN(mode.runs, repeat(options_.runs, options_.time_limit_s, run, after));
      mode.step_ms = spread_of(step_ms);
      mode.wall_ms = spread_of(wall_ms);
      mode.graph = glm->device_counts().replayed > 0;
      mode.launches = glm->device_counts().launches;
      if (report_.moe_layers > 0 || shape.mtp) {
        INGOT_ASSIGN(const auto offsets, glm->last_expert_offsets());
        for (size_t e = 0; e + 1 < offsets.size(); ++e) mode.hit_experts += offsets[e + 1] > offsets[e] ? 1 : 0;
      }
    }
    INGOT_TRY(measure_ops(weights, cache, shape, mode));
    return mode;
  }

  Result<> measure_ops(const model::Weights& weights, BenchCache& cache, const StepShape& shape, ShardMode& mode) {
    INGOT_ASSIGN(const auto glm, Glm::over(weights, config_, {.device_matmul = matmul_, .graphs = options_.graphs}, device_));
    BenchSteps steps(*glm, cache, shape, whole_.vocab_size, 11);
    StepTimes times(device_, StepTimes::Detail::every_op);
    times.hints = shape.hints(expected_experts(shape));
    gpu::Stream stream{&pool_};
    stream.observer = &times;
    OpTotals totals(OpTotals::Alike::kernel);
    std::vector<double> whole;
    const auto run = [&]() -> Result<> {
      times.begin_step();
      INGOT_TRY(steps.run(stream));
      times.end_step();
      return {};
    };
    const auto after = [&](double) -> Result<> {
      INGOT_ASSIGN(const double all, times.whole_ms());
      whole.push_back(all);
      return totals.add(times);
    };
    INGOT_TRY(repeat(options_.runs, options_.time_limit_s, run, after));
    mode.ops_ms = spread_of(whole).median;
    for (const OpTotals::Total& total : totals.totals())
      mode.ops.push_back(
          {std::string(total.op), std::string(total.kernel), total.calls, spread_of(total.ms).median, total.bytes, total.flop});
    return {};
  }

  const BenchShardOptions& options_;
  std::shared_ptr<gpu::Accelerator> device_;
  ThreadPool pool_;
  spec::ModelConfig whole_, config_;  // of the model with the layers that were asked for, and of the rank
  model::RandomWeightOptions weight_options_;
  tensor::LatentFormat format_ = tensor::LatentFormat::bf16;
  DeviceMatmul matmul_ = DeviceMatmul::fast;
  ShardReport report_;
};

Result<std::shared_ptr<gpu::Accelerator>> open_device(const std::string& kind) {
  std::shared_ptr<gpu::Accelerator> device;
  if (kind == "cpu") return device;
  auto opened = kernels::open_accelerator(kind);
  if (opened) return std::move(*opened);
  if (kind != "auto") return fail("--device {}: {}", kind, opened.error().text());
  log_info("device: cpu ({})", opened.error().text());
  return device;
}

}  // namespace

spec::ModelConfig with_layers(spec::ModelConfig config, int64_t layers) {
  if (layers == 0 || layers >= config.num_hidden_layers) return config;
  config.num_hidden_layers = layers;
  config.indexer_types.clear();
  config.mlp_layer_types.clear();
  for (int64_t i = 0; i < layers; ++i) {
    config.indexer_types.push_back(i == 0 || i % 4 == 1 ? spec::IndexerType::full : spec::IndexerType::shared);
    config.mlp_layer_types.push_back(i == 0 ? spec::MlpType::dense : spec::MlpType::sparse);
  }
  return config;
}

Result<ShardReport> bench_shard(const BenchShardOptions& options, std::shared_ptr<gpu::Accelerator> device) {
  return Bench(options, std::move(device)).run();
}

int run_bench_shard(const BenchShardOptions& options) {
  auto device = open_device(options.device);
  Result<ShardReport> report = device ? bench_shard(options, std::move(*device)) : forward_error(std::move(device).error());
  if (!report) {
    fmt::print(stderr, "bench shard: {}\n", report.error().text());
    return 1;
  }
  Json json = to_json(*report);
  std::string text = report_text(*report);
  if (options.project) {
    plan::RankMeasurements rank;
    if (report->layers == report->model_layers) rank = rank_measurements(*report);
    rank.tp = report->tp;
    const plan::NodeProjection projection = plan::project_node(rank);
    json["projection"] = to_json(projection);
    text += projection_text(projection);
  }
  if (const int failed = put_report("bench shard", json, text, options.json)) return failed;
  const bool passed = std::all_of(report->checks.begin(), report->checks.end(), [](const CheckLine& c) { return c.passed(); });
  return passed ? 0 : 3;
}

}  // namespace ingot::apps
