// Weights that nobody trained: every tensor of a model (or of one rank's part of it) in the formats a checkpoint would have, filled with
// random numbers where they are to be read. For benchmarks and checks at true shapes, which no checkpoint on this machine has. One
// allocation, filled at the speed of the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "gpu/accelerator.h"
#include "model/weights.h"
#include "spec/model_config.h"

namespace ingot::model {

// What a linear or table is for.
enum class WeightPart : uint8_t { embed, head, attention_in, attention_out, indexer, router, mlp_in, mlp_out, mtp_projection };

struct RandomWeightOptions {
  tensor::WeightFormat experts = tensor::WeightFormat::mxfp4;   // routed and shared
  tensor::WeightFormat attention = tensor::WeightFormat::bf16;  // of its linears, the indexer's wq_b and wk, and dense MLPs
  tensor::WeightFormat mtp = tensor::WeightFormat::bf16;        // the experts of the MTP layer (amd/GLM-5.2-MXFP4 keeps it in bf16)
  uint64_t seed = 1;
  // Added to the router's choice: expert r of a random order has -routing_skew * ln(r + 1). 0: all experts are as likely.
  double routing_skew = 0;
  // Multiplies the deviation 1 / sqrt(cols) that keeps rows of size 1 at that (a table's: 1); 0 makes zeros. Null: 1 everywhere.
  std::function<float(WeightPart part, int64_t layer)> gain;
};

class RandomWeights {
 public:
  // The part of one of `tp` ranks of `whole`, which shard_config can cut. In the memory of `device`, or the host's when it is null.
  // Embedding, head, router, norms, weights_proj and eh_proj are bf16, the router's bias f32.
  // Errors: no memory, with the bytes; what shard_config refuses; a width that is no multiple of 32 for MXFP4.
  static Result<RandomWeights> make(const spec::ModelConfig& whole, int tp, const RandomWeightOptions& options,
                                    std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool);

  // What make() would allocate on a device.
  static Result<size_t> bytes_of(const spec::ModelConfig& whole, int tp, const RandomWeightOptions& options);

  const Weights& weights() const { return weights_; }  // in place for Glm::over
  size_t bytes() const { return bytes_; }

 private:
  Weights weights_;
  gpu::DeviceMemory device_;
  std::unique_ptr<uint8_t, void (*)(void*)> host_{nullptr, nullptr};
  size_t bytes_ = 0;
};

// How many of `experts` are sent a row when `rows` rows choose `k` each, on an average of RandomWeights' routers with this skew, whose
// logits have deviation 1. Exact for skew 0 and independent rows; else from 4096 draws (seeded).
double expected_distinct_experts(int64_t experts, int64_t k, double rows, double skew);

}  // namespace ingot::model
