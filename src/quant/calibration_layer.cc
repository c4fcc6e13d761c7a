#include "quant/calibration_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops.h"

namespace ingot::quant {
namespace {

constexpr float kIndexerNormEps = 1e-6f;               // not in config.json; all implementations agree
constexpr int64_t kMaxScoreFloats = int64_t{1} << 23;  // scores of so many (row, position) pairs at once: 32 MB

float* sized(std::vector<float>& v, int64_t count) {
  v.resize(static_cast<size_t>(count));
  return v.data();
}

}  // namespace

LayerPass::LayerPass(const spec::ModelConfig& config, gpu::Stream& stream) : config_(config), stream_(stream) {
  const int64_t rope = config.qk_rope_head_dim;
  for (int64_t j = 0; j < rope / 2; ++j)
    inv_freq_.push_back(static_cast<float>(std::pow(config.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(rope))));
}

void LayerPass::norm(const model::VectorView& weight, const float* from, int64_t from_stride, float* to, int64_t rows, int64_t dim) {
  kernels::rms_norm(stream_, {to, dim, from, from_stride, weight.data, weight.dtype, rows, dim, static_cast<float>(config_.rms_norm_eps)});
}

void LayerPass::product(const WeightView& w, const float* x, float* y, int64_t rows) {
  kernels::matmul(stream_, {y, w.rows, x, w.cols, w, rows, false});
}

void LayerPass::add_product(const WeightView& w, const std::vector<float>& y, int64_t tokens, float* x) {
  kernels::matmul(stream_, {x, w.rows, y.data(), w.cols, w, tokens, true});
}

void LayerPass::set_positions(int64_t tokens) {
  if (static_cast<int64_t>(positions_.size()) >= tokens) return;
  positions_.resize(static_cast<size_t>(tokens));
  std::iota(positions_.begin(), positions_.end(), 0);
  sequence_.assign(static_cast<size_t>(tokens), 0);
  kernels::rope_table(stream_, {sized(rope_table_, tokens * config_.qk_rope_head_dim), positions_.data(), inv_freq_.data(), tokens,
                                config_.qk_rope_head_dim});
}

void LayerPass::attention_inputs(const model::LayerWeights& layer, const float* x, int64_t tokens, AttentionInputs& out) {
  const int64_t hidden = config_.hidden_size, q_rank = config_.q_lora_rank, rank = config_.kv_lora_rank, rope = config_.qk_rope_head_dim;
  norm(layer.input_norm, x, hidden, sized(out.normed, tokens * hidden), tokens, hidden);
  float* q_latent = sized(out.q_latent, tokens * q_rank);
  product(layer.q_a, out.normed.data(), q_latent, tokens);
  norm(layer.q_a_norm, q_latent, q_rank, q_latent, tokens, q_rank);
  float* kv = sized(kv_, tokens * (rank + rope));
  product(layer.kv_a, out.normed.data(), kv, tokens);
  norm(layer.kv_a_norm, kv, rank + rope, sized(out.latent, tokens * rank), tokens, rank);
  kernels::copy_rows(stream_, {sized(out.k_pe, tokens * rope), rope, kv + rank, rank + rope, tokens, rope});
}

void LayerPass::attend(const model::LayerWeights& layer, const AttentionInputs& in, int64_t tokens, std::vector<int32_t>& indices,
                       std::vector<float>& attended) {
  set_positions(tokens);
  const int64_t heads = config_.num_attention_heads, head_dim = config_.qk_head_dim(), nope = config_.qk_nope_head_dim;
  const int64_t rope = config_.qk_rope_head_dim, v_dim = config_.v_head_dim;
  if (layer.indexer) {
    indices.clear();
    if (tokens > config_.index_topk) choose(*layer.indexer, in, tokens, indices);
  }
  float* q = sized(q_, tokens * heads * head_dim);
  product(layer.q_b, in.q_latent.data(), q, tokens);
  kernels::rope(stream_, {q, heads * head_dim, head_dim, nope, rope_table_.data(), tokens, heads, rope, config_.rope_interleave});
  std::vector<float> k_pe = in.k_pe;
  kernels::rope(stream_, {k_pe.data(), rope, rope, 0, rope_table_.data(), tokens, 1, rope, config_.rope_interleave});
  float* kv = sized(kv_, tokens * layer.kv_b.rows);
  product(layer.kv_b, in.latent.data(), kv, tokens);
  kernels::expanded_mla(stream_, {sized(attended, tokens * heads * v_dim), q, kv, k_pe.data(), rope, positions_.data(),
                                  indices.empty() ? nullptr : indices.data(), config_.index_topk, tokens, heads, nope, rope, v_dim,
                                  1.0f / std::sqrt(static_cast<float>(head_dim))});
}

void LayerPass::choose(const model::IndexerWeights& indexer, const AttentionInputs& in, int64_t tokens, std::vector<int32_t>& indices) {
  const int64_t dim = config_.index_head_dim, heads = config_.index_n_heads, k = config_.index_topk, rope = config_.qk_rope_head_dim;
  float* keys = sized(keys_, tokens * dim);
  product(indexer.wk, in.normed.data(), keys, tokens);
  kernels::layer_norm(stream_, {keys, dim, keys, dim, indexer.k_norm_weight.data, indexer.k_norm_bias.data, indexer.k_norm_weight.dtype,
                                tokens, dim, kIndexerNormEps});
  kernels::rope(stream_, {keys, dim, dim, 0, rope_table_.data(), tokens, 1, rope, config_.indexer_rope_interleave});
  float* q = sized(q_, tokens * heads * dim);
  product(indexer.wq_b, in.q_latent.data(), q, tokens);
  kernels::rope(stream_, {q, heads * dim, dim, 0, rope_table_.data(), tokens, heads, rope, config_.indexer_rope_interleave});
  float* weights = sized(head_weights_, tokens * heads);
  product(indexer.weights_proj, in.normed.data(), weights, tokens);
  // The keys as one page of a paged cache.
  const int32_t page = 0;
  const int64_t stride = (tokens + 15) / 16 * 16, chunk = std::clamp<int64_t>(kMaxScoreFloats / stride, 1, tokens);
  const float scale = 1.0f / std::sqrt(static_cast<float>(heads * dim));
  float* scores = sized(scores_, chunk * stride);
  indices.resize(static_cast<size_t>(tokens * k));
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t count = std::min(chunk, tokens - first);
    kernels::index_scores(stream_, {scores,
                                    stride,
                                    q + first * heads * dim,
                                    weights + first * heads,
                                    heads,
                                    keys,
                                    tensor::DType::f32,
                                    {&page, sequence_.data() + first, positions_.data() + first, 1, tokens},
                                    count,
                                    heads,
                                    dim,
                                    scale});
    kernels::top_k(stream_, {indices.data() + first * k, scores, stride, positions_.data() + first, count, k});
  }
}

void LayerPass::mlp_inputs(const model::LayerWeights& layer, const float* x, int64_t tokens, MlpInputs& out) {
  const int64_t hidden = config_.hidden_size;
  norm(layer.post_attention_norm, x, hidden, sized(out.normed, tokens * hidden), tokens, hidden);
  if (!layer.moe) return;
  const int64_t experts = config_.n_routed_experts, k = config_.num_experts_per_tok;
  float* logits = sized(scores_, tokens * experts);
  product(layer.moe->router, out.normed.data(), logits, tokens);
  std::vector<int32_t> chosen(static_cast<size_t>(tokens * k));
  kernels::router(stream_, {chosen.data(), sized(out.weights, tokens * k), logits, layer.moe->router_bias.data(), tokens, experts, k,
                            config_.norm_topk_prob, config_.routed_scaling_factor});
  out.order.resize(chosen.size());
  out.inverse.resize(chosen.size());
  out.offsets.resize(static_cast<size_t>(experts + 1));
  kernels::permute(stream_, {out.order.data(), out.inverse.data(), out.offsets.data(), chosen.data(), tokens, experts, k});
}

void LayerPass::gated(const model::MlpWeights& mlp, const MlpInputs& in, int64_t tokens, std::vector<float>& out) {
  const int64_t dim = mlp.gate.rows;
  float* gate = sized(gate_, tokens * dim);
  float* up = sized(up_, tokens * dim);
  product(mlp.gate, in.normed.data(), gate, tokens);
  product(mlp.up, in.normed.data(), up, tokens);
  kernels::swiglu(stream_, {sized(out, tokens * dim), dim, gate, up, dim, tokens, dim});
}

void LayerPass::gated_experts(const model::MoeWeights& moe, const MlpInputs& in, int64_t tokens, std::vector<float>& out) {
  const int64_t k = config_.num_experts_per_tok, pairs = tokens * k, dim = config_.moe_intermediate_size, hidden = config_.hidden_size;
  float* gate = sized(gate_, pairs * dim);
  float* up = sized(up_, pairs * dim);
  const auto experts = static_cast<int64_t>(moe.gate.size());
  kernels::grouped_matmul(
      stream_, {gate, dim, in.normed.data(), hidden, in.order.data(), k, in.offsets.data(), moe.gate.data(), pairs, experts, dim});
  kernels::grouped_matmul(stream_,
                          {up, dim, in.normed.data(), hidden, in.order.data(), k, in.offsets.data(), moe.up.data(), pairs, experts, dim});
  kernels::swiglu(stream_, {sized(out, pairs * dim), dim, gate, up, dim, pairs, dim});
}

void LayerPass::add_experts(const model::MoeWeights& moe, const MlpInputs& in, const std::vector<float>& gated, int64_t tokens, float* x) {
  const int64_t k = config_.num_experts_per_tok, pairs = tokens * k, dim = config_.moe_intermediate_size, hidden = config_.hidden_size;
  std::vector<float> out(static_cast<size_t>(pairs * hidden));
  kernels::grouped_matmul(stream_, {out.data(), hidden, gated.data(), dim, nullptr, 1, in.offsets.data(), moe.down.data(), pairs,
                                    static_cast<int64_t>(moe.down.size()), hidden});
  kernels::combine(stream_, {x, hidden, out.data(), hidden, in.inverse.data(), in.weights.data(), tokens, k, hidden, true});
}

}  // namespace ingot::quant
