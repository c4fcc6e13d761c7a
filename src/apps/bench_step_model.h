// The model that a local benchmark runs: a checkpoint's weights, or random ones of a known model's shapes, where the steps read them. Used
// by `ingot bench step` and `ingot bench kernels` on one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench_step_figures.h"
#include "apps/bench_step_load.h"
#include "apps/bench_step_roofs.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "gpu/accelerator.h"
#include "model/device_weights.h"
#include "model/glm.h"
#include "model/random_weights.h"
#include "model/weights.h"
#include "tensor/checkpoint.h"

namespace ingot::apps {

struct BenchModelOptions {
  std::string model;  // checkpoint folder; or
  std::string spec;   // glm-5.2 or tiny, with random weights
  // Of a spec.
  int64_t layers = 0;             // 0: all; fewer: as with_layers() has it
  std::string weights = "mxfp4";  // of the experts: mxfp4, fp8 or bf16
  // As of `ingot serve`.
  std::string device = "auto";
  std::string device_matmul = "f32";
  std::string kv_cache_dtype = "auto";
  bool graphs = true;
  int threads = 0;
  RoofSizes roofs;
};

class BenchModel {
 public:
  // device: null on the CPU. Errors: a flag by name; what the checkpoint lacks; no memory.
  static Result<std::unique_ptr<BenchModel>> open(const BenchModelOptions& options, std::shared_ptr<gpu::Accelerator> device);
  BenchModel(const BenchModel&) = delete;
  BenchModel& operator=(const BenchModel&) = delete;

  // The model with memory and graphs of its own: what observes a graph when it is made belongs to it. Must not outlive this object.
  Result<std::unique_ptr<model::Glm>> glm(bool graphs) const;
  // A cache full of random keys. Sequences share pages when memory does not hold all: then a note says so. Errors: no memory.
  Result<BenchCache> cache(const std::vector<StepShape>& shapes, std::vector<std::string>& notes);

  const BenchModelOptions& options() const { return options_; }
  const spec::ModelConfig& config() const { return config_; }
  const std::shared_ptr<gpu::Accelerator>& device() const { return device_; }
  ThreadPool& pool() { return pool_; }
  RoofMeter& roofs() { return roofs_; }
  const Machine& machine() const { return machine_; }
  const BenchedModel& told() const { return told_; }
  double load_seconds() const { return load_seconds_; }
  bool has_experts() const;

 private:
  BenchModel(const BenchModelOptions& options, std::shared_ptr<gpu::Accelerator> device, gpu::DeviceMatmul matmul,
             tensor::LatentFormat format);
  Result<> load_checkpoint();
  Result<> make_weights();
  const model::Weights& weights() const;

  BenchModelOptions options_;
  std::shared_ptr<gpu::Accelerator> device_;
  gpu::DeviceMatmul matmul_;
  tensor::LatentFormat format_;
  ThreadPool pool_;
  RoofMeter roofs_;
  Machine machine_;
  BenchedModel told_;
  double load_seconds_ = 0;
  spec::ModelConfig config_;
  // Of a checkpoint.
  tensor::Checkpoint checkpoint_;  // keeps the mapped bytes that bound_ points into
  model::Weights bound_;
  model::DeviceWeights on_device_;
  // Of a spec.
  std::unique_ptr<model::RandomWeights> random_;
};

// How many experts are sent a row, in the mean over the steps that were counted: of the MoE layer that ran last, which stands for all.
class ExpertHits {
 public:
  // After a step of `glm`, which has experts. Errors: those of a GPU.
  Result<> count(const model::Glm& glm);
  double mean() const { return steps_ > 0 ? sum_ / steps_ : 0; }

 private:
  double sum_ = 0, steps_ = 0;
};

}  // namespace ingot::apps
