// Whether the kernels that `ingot bench shard` times give what the plain ones give, at the same shapes: so that a fast wrong answer is
// not reported.
#pragma once

#include <memory>
#include <vector>

#include "apps/bench_shard_report.h"
#include "base/result.h"
#include "gpu/accelerator.h"
#include "model/glm.h"
#include "model/random_weights.h"
#include "spec/model_config.h"

namespace ingot::apps {

struct ShardCheck {
  spec::ModelConfig whole;  // whose rank of `tp` is checked
  int tp = 1;
  model::RandomWeightOptions weights;
  tensor::LatentFormat kv_format = tensor::LatentFormat::bf16;
  int64_t context = 20480;
  gpu::DeviceMatmul production = gpu::DeviceMatmul::fast;
};

// A layer of experts, attention that chooses its positions, and attention by another layer's list, each alone (the rest of its layer has
// weights of zero, and the embedding is small), against the lane kernels in f32. Errors: no memory, those of the device.
Result<std::vector<CheckLine>> check_shard(const ShardCheck& check, std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool);

// Of each row of `a` against `b` (rows, width): |a - b| / |b|. A NaN stays one.
std::vector<double> row_errors(const std::vector<float>& a, const std::vector<float>& b, int64_t width);

}  // namespace ingot::apps
