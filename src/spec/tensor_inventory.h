// Which tensors a GLM-5-class checkpoint must hold, as values: name, shape, what it is. Source: spec section 2.
// Used to explain a checkpoint (inspect), to name what is missing, and to write synthetic ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_config.h"

namespace ingot::spec {

enum class TensorKind : uint8_t {
  embedding,
  head,
  norm,
  attention,
  indexer,
  dense_mlp,
  router,
  router_bias,
  routed_expert,
  shared_expert,
  mtp_projection
};
inline constexpr int kNumTensorKinds = 11;
std::string_view tensor_kind_name(TensorKind kind);

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;  // of the unquantised weight
  TensorKind kind;
  int64_t layer = -1;      // -1: not in a layer
  bool is_linear = false;  // a matrix that quantisation may pack: bf16, f32, FP8 block or MXFP4
  bool optional = false;   // may be absent: the main model's tensor serves

  int64_t elements() const;
  // The module's name for a linear: without ".weight".
  std::string_view module() const;
};

// The layers of the main model and of MTP are named under one of these; multimodal re-exports have the later ones.
inline constexpr std::string_view kModelPrefixes[] = {"model.", "model.language_model.", "language_model.model."};
// The name below for what a checkpoint calls by another prefix: "language_model.model.norm.weight" is "model.norm.weight".
std::string canonical_name(std::string_view name);

// In a fixed order: top level, then by layer. The MTP layer is last.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Parameters that one token's forward pass reads, MTP and the embedding table left out.
int64_t active_parameters(const ModelConfig& config);

}  // namespace ingot::spec
