#include "apps/bench_shard.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "apps/bench_shard_check.h"
#include "apps/bench_shard_load.h"
#include "apps/bench_shard_times.h"
#include "base/log.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fill_random.kernel.h"
#include "kernels/ops.h"
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
constexpr int64_t kScratchBytes = int64_t{8} << 30;  // left for the steps' own arrays: experts' rows of a long prefill, scores, logits

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Result<WeightFormat> format_of(const std::string& name) {
  if (name == "mxfp4") return WeightFormat::mxfp4;
  if (name == "fp8") return WeightFormat::fp8_block;
  if (name == "bf16") return WeightFormat::bf16;
  return fail_hint("use mxfp4, fp8 or bf16", "weights of format {} are unknown", name);
}

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
    if (device_) INGOT_TRY(measure_roofs());
    const std::vector<StepShape> shapes = shapes_of(options_, config_.num_nextn_predict_layers > 0);
    if (shapes.empty()) return std::move(report_);
    const double start = seconds();
    INGOT_ASSIGN(const auto weights, model::RandomWeights::make(whole_, options_.tp, weight_options_, device_, pool_));
    report_.fill_seconds = seconds() - start;
    report_.weight_bytes = static_cast<int64_t>(weights.bytes());
    log_info("{:.2f} GB of weights", static_cast<double>(weights.bytes()) / 1e9);
    int64_t for_cache = int64_t{1} << 40;
    if (device_) {
      INGOT_ASSIGN(const gpu::MemoryInfo memory, device_->driver().memory());
      for_cache = memory.free_bytes - std::min(kScratchBytes, memory.free_bytes / 2);
    }
    INGOT_ASSIGN(ShardCache cache, ShardCache::make(config_, format_, shapes, for_cache, device_, pool_));
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
    INGOT_ASSIGN(weight_options_.experts, format_of(options_.weights));
    INGOT_ASSIGN(weight_options_.attention, format_of(attention));
    INGOT_ASSIGN(weight_options_.mtp, format_of(mtp));
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

  // Milliseconds that `work` takes on the device, the median of some runs after one.
  template <class Work>
  Result<double> time_ms(Work work) {
    gpu::Driver& driver = device_->driver();
    INGOT_ASSIGN(const gpu::Event from, driver.create_event(true));
    INGOT_ASSIGN(const gpu::Event to, driver.create_event(true));
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
      device_->record(from);
      work();
      device_->record(to);
      INGOT_TRY(device_->finish());
      INGOT_ASSIGN(const float ms, driver.elapsed_ms(from, to));
      if (i > 0) times.push_back(static_cast<double>(ms));
    }
    driver.destroy(from);
    driver.destroy(to);
    return spread_of(times).median;
  }

  Result<> measure_roofs() {
    device_->enter();
    const auto bytes = static_cast<size_t>(options_.roof_mb) << 20;
    {
      INGOT_ASSIGN(const auto from, gpu::DeviceMemory::allocate(device_, bytes));
      INGOT_ASSIGN(const auto to, gpu::DeviceMemory::allocate(device_, bytes));
      device_->fill(from.data(), 1, bytes);
      INGOT_ASSIGN(const double ms, time_ms([&] { device_->copy(to.data(), from.data(), bytes); }));
      report_.roofs.bytes_per_second = 2 * static_cast<double>(bytes) / ms * 1000;
      report_.roofs.memory_how = fmt::format("the driver's copy of {} MB, bytes read and written", options_.roof_mb);
    }
    const int64_t dim = options_.roof_dim;
    const auto count = static_cast<size_t>(dim * dim);
    INGOT_ASSIGN(const auto x, gpu::DeviceMemory::allocate(device_, count * sizeof(float)));
    INGOT_ASSIGN(const auto y, gpu::DeviceMemory::allocate(device_, count * sizeof(float)));
    INGOT_ASSIGN(const auto w, gpu::DeviceMemory::allocate(device_, count * 2));
    kernels::launch<kernels::FillRandom>(*device_, {x.data(), static_cast<int64_t>(x.bytes()), kernels::RandomKind::f32, 1, 0.0f, 1.0f});
    kernels::launch<kernels::FillRandom>(*device_, {w.data(), static_cast<int64_t>(w.bytes()), kernels::RandomKind::bf16, 2, 0.0f, 0.01f});
    const tensor::WeightView weight{reinterpret_cast<const uint8_t*>(w.data()), nullptr, dim, dim, 0, WeightFormat::bf16};
    StepTimes which(device_, StepTimes::Detail::whole);
    gpu::Stream stream{nullptr, device_.get(), matmul_, &which};
    const auto product = [&] {
      which.begin_step();
      kernels::matmul(stream, {reinterpret_cast<float*>(y.data()), dim, reinterpret_cast<const float*>(x.data()), dim, weight, dim, false});
      which.end_step();
    };
    INGOT_ASSIGN(const double ms, time_ms(product));
    report_.roofs.flop_per_second = 2 * static_cast<double>(dim) * static_cast<double>(dim) * static_cast<double>(dim) / ms * 1000;
    report_.roofs.flop_how =
        fmt::format("our {} product of {}^3, bf16 weights", which.ops().empty() ? "" : which.ops().front().kernel, dim);
    // shared/design/kernels.md: 782 TFLOP/s with cuBLAS, 8192^3, random data, on one of our H200s.
    if (device_->info().name.find("H200") != std::string::npos) report_.roofs.reference_flop_per_second = 782e12;
    return {};
  }

  gpu::OpHints hints_of(const StepShape& shape) const {
    gpu::OpHints hints;
    hints.distinct_experts = expected_experts(shape);
    hints.positions = static_cast<double>(shape.context) - static_cast<double>(shape.rows_each - 1) / 2;
    hints.rows_per_sequence = static_cast<double>(shape.rows_each);
    return hints;
  }
  double expected_experts(const StepShape& shape) const {
    return model::expected_distinct_experts(config_.n_routed_experts, config_.num_experts_per_tok, static_cast<double>(shape.rows()),
                                            weight_options_.routing_skew);
  }

  // Calls after(ms of the call) for every timed run: `runs` of them, fewer when time is up. Two runs before are not told: the first gets
  // the memory, the second makes the graph.
  template <class Run, class After>
  Result<int> repeat(Run run, After after) {
    const double start = seconds();
    int told = 0;
    for (int i = 0; i < options_.runs + 2; ++i) {
      const double before = seconds();
      INGOT_TRY(run());
      const double now = seconds();
      if (i < 2) continue;
      INGOT_TRY(after(1000 * (now - before)));
      ++told;
      if (now - start > options_.time_limit_s) break;
    }
    return told;
  }

  Result<ShardMode> measure(const model::Weights& weights, ShardCache& cache, const StepShape& shape) {
    ShardMode mode;
    mode.name = shape.name;
    mode.rows = shape.rows();
    mode.sequences = shape.sequences;
    mode.context = shape.context;
    mode.expected_experts = expected_experts(shape);
    const model::GlmOptions options{.device_matmul = matmul_, .graphs = options_.graphs};
    {
      INGOT_ASSIGN(const auto glm, Glm::over(weights, config_, options, device_));
      ShardSteps steps(*glm, cache, shape, whole_.vocab_size, 11);
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
      INGOT_ASSIGN(mode.runs, repeat(run, after));
      mode.step_ms = spread_of(step_ms);
      mode.wall_ms = spread_of(wall_ms);
      mode.graph = glm->device_counts().replayed > 0;
      mode.launches = glm->device_counts().launches;
      if (report_.moe_layers > 0 || shape.mtp) {
        INGOT_ASSIGN(const auto offsets, glm->last_expert_offsets());
        for (size_t e = 0; e + 1 < offsets.size(); ++e) mode.hit_experts += offsets[e + 1] > offsets[e] ? 1 : 0;
      }
    }
    if (device_) INGOT_TRY(measure_ops(weights, cache, shape, mode));
    return mode;
  }

  Result<> measure_ops(const model::Weights& weights, ShardCache& cache, const StepShape& shape, ShardMode& mode) {
    INGOT_ASSIGN(const auto glm, Glm::over(weights, config_, {.device_matmul = matmul_, .graphs = options_.graphs}, device_));
    ShardSteps steps(*glm, cache, shape, whole_.vocab_size, 11);
    StepTimes times(device_, StepTimes::Detail::every_op);
    times.hints = hints_of(shape);
    gpu::Stream stream{&pool_};
    stream.observer = &times;
    using Key = std::pair<std::string_view, std::string_view>;
    std::map<Key, std::vector<double>> of_runs;  // ms of each run
    std::vector<double> whole;
    const auto run = [&]() -> Result<> {
      times.begin_step();
      INGOT_TRY(steps.run(stream));
      times.end_step();
      return {};
    };
    const auto after = [&](double) -> Result<> {
      INGOT_ASSIGN(const std::vector<double> ms, times.op_ms());
      INGOT_ASSIGN(const double all, times.whole_ms());
      whole.push_back(all);
      for (size_t i = 0; i < ms.size(); ++i) {
        std::vector<double>& runs = of_runs[{times.ops()[i].op, times.ops()[i].kernel}];
        runs.resize(whole.size());
        runs.back() += ms[i];
      }
      return {};
    };
    INGOT_TRY(repeat(run, after));
    mode.ops_ms = spread_of(whole).median;
    for (const auto& [key, runs] : of_runs) {
      OpLine line{std::string(key.first), std::string(key.second), 0, spread_of(runs).median, 0, 0};
      for (const StepTimes::Op& op : times.ops()) {
        if (op.op != key.first || op.kernel != key.second) continue;
        ++line.calls;
        line.bytes += op.cost.bytes;
        line.flop += op.cost.flop;
      }
      mode.ops.push_back(std::move(line));
    }
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
  if (options.json == "-") {
    fmt::print("{}\n", json.dump(1));
  } else {
    fmt::print("{}", text);
    if (!options.json.empty()) {
      std::ofstream file(options.json);
      file << json.dump(1) << "\n";
      if (!file.flush()) {
        fmt::print(stderr, "bench shard: {} cannot be written\n", options.json);
        return 1;
      }
    }
  }
  const bool passed = std::all_of(report->checks.begin(), report->checks.end(), [](const CheckLine& c) { return c.passed(); });
  return passed ? 0 : 3;
}

}  // namespace ingot::apps
