// One decoder layer in the pieces that calibration needs: what goes into each linear, from what the piece before left. The same operations
// as model/forward.h in its expanded form, on one whole document at a time and without a cache, so that a layer's linears can be
// exchanged one after the other and nothing is computed twice. One owner, one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/stream.h"
#include "model/weights.h"
#include "spec/model_config.h"

namespace ingot::quant {

using tensor::WeightView;

// T: tokens of the document.
struct AttentionInputs {
  std::vector<float> normed;    // (T, hidden): into q_a, kv_a, wk, weights_proj
  std::vector<float> q_latent;  // (T, q_lora_rank): into q_b, wq_b
  std::vector<float> latent;    // (T, kv_lora_rank): into kv_b
  std::vector<float> k_pe;      // (T, rope), before RoPE
};

struct MlpInputs {
  std::vector<float> normed;  // (T, hidden): into gate and up
  // MoE layers; pairs are (token, slot), permuted row i is pair order[i], and belongs to expert e when offsets[e] <= i < offsets[e + 1].
  std::vector<float> weights;  // (T, k)
  std::vector<int32_t> order;  // (T * k)
  std::vector<int32_t> inverse;
  std::vector<int32_t> offsets;  // (experts + 1)
};

class LayerPass {
 public:
  LayerPass(const spec::ModelConfig& config, gpu::Stream& stream);

  // x: (T, hidden), the residual stream at the layer's start.
  void attention_inputs(const model::LayerWeights& layer, const float* x, int64_t tokens, AttentionInputs& out);

  // attended: (T, heads * v), into o. indices: (T, index_topk), the list of the nearest full layer: replaced by a full one, empty while
  // no row has more than index_topk positions.
  void attend(const model::LayerWeights& layer, const AttentionInputs& in, int64_t tokens, std::vector<int32_t>& indices,
              std::vector<float>& attended);

  // x: (T, hidden), the residual stream after attention.
  void mlp_inputs(const model::LayerWeights& layer, const float* x, int64_t tokens, MlpInputs& out);
  // (T, intermediate), into the down projection of a dense MLP or the shared expert.
  void gated(const model::MlpWeights& mlp, const MlpInputs& in, int64_t tokens, std::vector<float>& out);
  // (T * k, moe_intermediate_size), permuted rows, into the routed experts' down projections.
  void gated_experts(const model::MoeWeights& moe, const MlpInputs& in, int64_t tokens, std::vector<float>& out);

  // x += W y: y (T, w.cols), x (T, w.rows).
  void add_product(const WeightView& w, const std::vector<float>& y, int64_t tokens, float* x);
  // x += the routed experts' outputs, of gated_experts()' rows.
  void add_experts(const model::MoeWeights& moe, const MlpInputs& in, const std::vector<float>& gated, int64_t tokens, float* x);

  // to (rows, dim) = RMS norm of from; eps of the config.
  void norm(const model::VectorView& weight, const float* from, int64_t from_stride, float* to, int64_t rows, int64_t dim);

 private:
  void choose(const model::IndexerWeights& indexer, const AttentionInputs& in, int64_t tokens, std::vector<int32_t>& indices);
  void product(const WeightView& w, const float* x, float* y, int64_t rows);
  void set_positions(int64_t tokens);

  const spec::ModelConfig& config_;
  gpu::Stream& stream_;
  std::vector<float> inv_freq_;     // (rope / 2)
  std::vector<int32_t> positions_;  // 0, 1, 2, ...
  std::vector<int32_t> sequence_;   // as many zeros
  std::vector<float> rope_table_;   // (positions_.size(), rope / 2, 2)
  std::vector<float> q_, kv_, keys_, scores_, head_weights_, gate_, up_;
};

}  // namespace ingot::quant
