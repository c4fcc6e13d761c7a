#include "apps/bench_step_model.h"

#include <fstream>
#include <utility>

#include "apps/bench_shard.h"
#include "apps/bench_step_times.h"
#include "base/log.h"
#include "serve/model_service.h"
#include "spec/known_models.h"

namespace ingot::apps {
namespace {

// The name that the system has for it.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t at = line.find(": ");
    if (at != std::string::npos) return line.substr(at + 2);
  }
  return "a processor without a name";
}

double load_average() {
  std::ifstream file("/proc/loadavg");
  double minute = 0;
  file >> minute;
  return minute;
}

}  // namespace

BenchModel::BenchModel(const BenchModelOptions& options, std::shared_ptr<gpu::Accelerator> device, gpu::DeviceMatmul matmul,
                       tensor::LatentFormat format)
    : options_(options),
      device_(std::move(device)),
      matmul_(matmul),
      format_(format),
      pool_(options.threads),
      roofs_(device_, pool_, matmul, options.roofs) {
  machine_ = {device_ ? device_->info().text() : "cpu", processor_name(), ThreadPool::threads_of(0), pool_.num_threads(), load_average()};
  told_.kv_cache_dtype = tensor::latent_format_name(format);
  told_.device_matmul = device_ ? options.device_matmul : "f32";
}

Result<std::unique_ptr<BenchModel>> BenchModel::open(const BenchModelOptions& options, std::shared_ptr<gpu::Accelerator> device) {
  if (options.model.empty() == options.spec.empty())
    return fail_hint("a checkpoint folder, or --spec glm-5.2 or tiny", "it takes one model");
  if (options.threads < 0) return fail("--threads {}: 0 is one per processor", options.threads);
  INGOT_ASSIGN(const gpu::DeviceMatmul matmul, serve::parse_device_matmul(options.device_matmul));
  INGOT_ASSIGN(const tensor::LatentFormat format, serve::parse_cache_format(options.kv_cache_dtype));
  std::unique_ptr<BenchModel> made(new BenchModel(options, std::move(device), matmul, format));
  const double start = seconds_now();
  INGOT_TRY(options.spec.empty() ? made->load_checkpoint() : made->make_weights());
  made->load_seconds_ = seconds_now() - start;
  made->told_.layers = made->config_.num_hidden_layers;
  return made;
}

Result<> BenchModel::load_checkpoint() {
  INGOT_ASSIGN(config_, spec::load_model_config(options_.model));
  INGOT_ASSIGN(checkpoint_, tensor::Checkpoint::open(options_.model));
  auto bound = model::bind_weights(checkpoint_, config_);
  if (!bound) return fail("{}: {}", options_.model, bound.error().message);
  bound_ = std::move(*bound);
  if (device_) {
    INGOT_ASSIGN(on_device_, model::DeviceWeights::upload(bound_, device_));
  }
  told_.name = options_.model;
  told_.weights = "checkpoint";
  for (const tensor::TensorInfo& t : checkpoint_.tensors()) told_.weight_bytes += static_cast<int64_t>(t.bytes);
  return {};
}

Result<> BenchModel::make_weights() {
  INGOT_ASSIGN(const spec::ModelConfig whole, spec::known_model(options_.spec));
  if (options_.layers < 0 || options_.layers > whole.num_hidden_layers)
    return fail("--layers {}: {} has {}", options_.layers, options_.spec, whole.num_hidden_layers);
  config_ = with_layers(whole, options_.layers);
  model::RandomWeightOptions random;
  INGOT_ASSIGN(random.experts, weight_format_of(options_.weights));
  INGOT_ASSIGN(auto made, model::RandomWeights::make(config_, 1, random, device_, pool_));
  random_ = std::make_unique<model::RandomWeights>(std::move(made));
  told_.name = options_.spec;
  told_.weights = "random, experts " + options_.weights;
  told_.weight_bytes = static_cast<int64_t>(random_->bytes());
  return {};
}

const model::Weights& BenchModel::weights() const {
  if (random_) return random_->weights();
  return device_ ? on_device_.weights() : bound_;
}

Result<std::unique_ptr<model::Glm>> BenchModel::glm(bool graphs) const {
  return model::Glm::over(weights(), config_, {.device_matmul = matmul_, .graphs = graphs}, device_);
}

Result<BenchCache> BenchModel::cache(const std::vector<StepShape>& shapes, std::vector<std::string>& notes) {
  INGOT_ASSIGN(const int64_t most, BenchCache::affordable_bytes(device_.get()));
  INGOT_ASSIGN(BenchCache made, BenchCache::make(config_, format_, shapes, most, device_, pool_));
  if (made.pages_are_shared())
    notes.push_back("memory does not hold a cache of its own for every sequence: they share all pages but their last, out of one pool");
  return made;
}

bool BenchModel::has_experts() const {
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i)
    if (config_.is_moe(i)) return true;
  return false;
}

Result<> ExpertHits::count(const model::Glm& glm) {
  INGOT_ASSIGN(const std::vector<int32_t> offsets, glm.last_expert_offsets());
  for (size_t e = 0; e + 1 < offsets.size(); ++e) sum_ += offsets[e + 1] > offsets[e] ? 1 : 0;
  ++steps_;
  return {};
}

}  // namespace ingot::apps
