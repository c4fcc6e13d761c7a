// The weight table: every parameter of a GLM-5-class model bound once by meaning, as views into the mapped checkpoint. After
// loading nobody looks up a name. Called by Glm::load and by tools that explain a checkpoint; never copies a weight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/model_config.h"
#include "tensor/checkpoint.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace ingot::model {

using tensor::WeightView;

// A norm's weight or bias.
struct VectorView {
  const void* data = nullptr;                 // (size)
  tensor::DType dtype = tensor::DType::bf16;  // bf16 or f32
};

struct IndexerWeights {
  WeightView wq_b;                        // (index_n_heads * index_head_dim, q_lora_rank); within a head the RoPE part comes first
  WeightView wk;                          // (index_head_dim, hidden)
  WeightView weights_proj;                // (index_n_heads, hidden)
  VectorView k_norm_weight, k_norm_bias;  // (index_head_dim)
};

struct MlpWeights {
  WeightView gate, up;  // (intermediate, hidden)
  WeightView down;      // (hidden, intermediate)
};

// Where a GPU has the arrays of an MoE layer that its kernels read through a pointer.
struct ExpertArrays {
  const float* router_bias = nullptr;
  const WeightView *gate = nullptr, *up = nullptr, *down = nullptr;
};

struct MoeWeights {
  WeightView router;                       // (n_routed_experts, hidden), bf16 or f32
  std::vector<float> router_bias;          // (n_routed_experts), for selection only
  std::vector<WeightView> gate, up, down;  // (n_routed_experts) each
  std::optional<MlpWeights> shared;        // absent when n_shared_experts is 0
  ExpertArrays on_device;                  // nulls on the CPU, which reads the vectors above
};

struct LayerWeights {
  VectorView input_norm, post_attention_norm;  // (hidden)
  WeightView q_a;                              // (q_lora_rank, hidden)
  VectorView q_a_norm;                         // (q_lora_rank)
  WeightView q_b;                              // (heads * (nope + rope), q_lora_rank); within a head the nope part comes first
  WeightView kv_a;                             // (kv_lora_rank + rope, hidden)
  VectorView kv_a_norm;                        // (kv_lora_rank)
  WeightView kv_b;                             // (heads * (nope + v), kv_lora_rank): within a head the nope rows come first
  WeightView o;                                // (hidden, heads * v)
  std::optional<IndexerWeights> indexer;       // full layers only
  std::optional<MlpWeights> dense;             // exactly one of these two
  std::optional<MoeWeights> moe;
};

struct MtpWeights {
  VectorView enorm, hnorm, final_norm;  // (hidden)
  WeightView eh_proj;                   // (hidden, 2 * hidden): the embedding half first
  WeightView embed, head;               // the layer's own when the checkpoint has them, else the main model's
  LayerWeights layer;
};

struct UnusedTensor {
  std::string name;
  std::string reason;
};

struct Weights {
  WeightView embed;       // (vocab, hidden)
  VectorView final_norm;  // (hidden)
  WeightView lm_head;     // (vocab, hidden)
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;     // absent when config.json names none, or the checkpoint has no tensor of it
  std::vector<UnusedTensor> unused;  // in the checkpoint, not in the model; sorted by name
};

// Errors: one message that lists every missing tensor, every tensor of a wrong format or shape (expected and found), a router
// bias that is not F32, and the NaN scales of MXFP4 tensors.
Result<Weights> bind_weights(const tensor::Checkpoint& checkpoint, const spec::ModelConfig& config);

}  // namespace ingot::model
