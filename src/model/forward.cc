#include "model/forward.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/ops.h"
#include "model/collective.h"

namespace ingot::model {
namespace {

using namespace kernels;  // NOLINT: this file is a list of operations

constexpr float kIndexerNormEps = 1e-6f;  // not in config.json; all implementations agree
// Scores of so many (row, position) pairs at once: 32 MB; on a GPU, which has many rows under way, 256 MB.
constexpr int64_t kMaxScoreFloats = int64_t{1} << 23, kMaxDeviceScoreFloats = int64_t{1} << 26;

}  // namespace

float Forward::softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(config_.qk_head_dim())); }

PagedPositions Forward::where(int64_t first_token) const {
  return {step_.page_table, step_.seq_of_token + first_token, step_.positions + first_token, batch_.max_pages, cache_->options().page_size};
}

// The input as the multiplication is to see it: itself, or rounded into scratch memory.
const float* Forward::rounded(const WeightView& w, const float* x, int64_t rows) {
  const bool quantised = w.format == tensor::WeightFormat::mxfp4 || w.format == tensor::WeightFormat::fp8_block;
  if (!quantised || options_.activations == tensor::ActivationFormat::f32) return x;
  float* copy = work_.rounded.ensure(rows * w.cols);
  std::copy_n(x, rows * w.cols, copy);
  tensor::round_activations(copy, rows, w.cols, options_.activations);
  return copy;
}

Forward::Input Forward::input(const WeightView& w, const float* x, int64_t rows, StepArray<uint16_t>& to) {
  if (!is_wide(stream_, w, rows)) return {x};
  const int64_t stride = wide_cols(w.cols);
  const std::string_view before = stream_.role;
  role("round_rows");
  uint16_t* wide = to.ensure(rows * stride);
  round_rows(stream_, wide, x, w.cols, rows, w.cols);
  role(before);
  return {x, wide, stride};
}

void Forward::project(const WeightView& w, const Input& x, float* y, int64_t rows, bool accumulate) {
  if (probe_) probe_->before_linear(w, x.x, rows);
  matmul(stream_, {y, w.rows, rounded(w, x.x, rows), w.cols, w, rows, accumulate, x.wide, x.wide_stride});
}

void Forward::project_all(std::initializer_list<Linear> linears, const Input& x, int64_t rows) {
  std::vector<MatmulParams> products;
  for (const Linear& linear : linears) {
    if (probe_) probe_->before_linear(linear.w, x.x, rows);
    // Those whose input is rounded share the rounded copy: it is made of the same numbers each time.
    products.push_back(
        {linear.y, linear.w.rows, rounded(linear.w, x.x, rows), linear.w.cols, linear.w, rows, false, x.wide, x.wide_stride});
  }
  matmul(stream_, products);
}

void Forward::norm(const VectorView& weight, const float* x, int64_t x_stride, float* y, int64_t rows, int64_t dim, float eps) {
  rms_norm(stream_, {y, y == x ? x_stride : dim, x, x_stride, weight.data, weight.dtype, rows, dim, eps});
}

void Forward::begin() {
  last_position_ = *std::max_element(batch_.positions.begin(), batch_.positions.end());
  role("rope_table");
  work_.hidden.ensure(tokens() * config_.hidden_size);
  work_.normed.ensure(tokens() * config_.hidden_size);
  kernels::rope_table(stream_, {work_.rope_table.ensure(tokens() * config_.qk_rope_head_dim), step_.positions, inv_freq_, tokens(),
                                config_.qk_rope_head_dim});
}

void Forward::decoder_layer(const LayerWeights& layer, int64_t index) {
  const int64_t hidden = config_.hidden_size;
  role("norm");
  norm(layer.input_norm, work_.hidden.get(), hidden, work_.normed.get(), tokens(), hidden, layer_eps());
  attention(layer, index);
  role("norm");
  norm(layer.post_attention_norm, work_.hidden.get(), hidden, work_.normed.get(), tokens(), hidden, layer_eps());
  if (layer.dense)
    dense_mlp(*layer.dense);
  else
    moe(*layer.moe, index);
  reduce_residual();
  if (probe_) probe_->after_layer(index, {work_.hidden.get(), static_cast<size_t>(tokens() * hidden)});
}

bool Forward::keeps_residual() const { return options_.collective == nullptr || options_.collective->rank() == 0; }

void Forward::reduce_residual() {
  if (options_.collective == nullptr) return;
  role("all_reduce");
  options_.collective->all_reduce(stream_, work_.hidden.get(), tokens() * config_.hidden_size);
}

// The rows of (T, hidden) whose logits are wanted.
float* Forward::gather(const float* stream, float* to) {
  const int64_t hidden = config_.hidden_size;
  copy_rows(stream_, {to, hidden, stream, hidden, static_cast<int64_t>(batch_.logit_rows.size()), hidden, step_.logit_rows});
  return to;
}

void Forward::run() {
  const int64_t hidden = config_.hidden_size;
  begin();
  float* h = work_.hidden.get();
  role("embed");
  kernels::embed(stream_, {h, step_.token_ids, weights_.embed, tokens()});
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) decoder_layer(weights_.layers[static_cast<size_t>(i)], i);
  role("final_norm");
  const auto rows = static_cast<int64_t>(batch_.logit_rows.size());
  float* last = work_.logit_hidden.ensure(rows * hidden);
  if (step_.out_hidden != nullptr) {
    norm(weights_.final_norm, h, hidden, step_.out_hidden, tokens(), hidden, layer_eps());
    if (rows == 0) return;
    gather(step_.out_hidden, last);
  } else {
    if (rows == 0) return;
    gather(h, last);
    norm(weights_.final_norm, last, hidden, last, rows, hidden, layer_eps());
  }
  run_head(last, rows);
}

void Forward::run_head(const float* hidden, int64_t rows) {
  role("lm_head");
  project(weights_.lm_head, input(weights_.lm_head, hidden, rows, work_.wide_other), step_.logits, rows);
}

void Forward::attention(const LayerWeights& layer, int64_t index_of_layer) {
  const int64_t T = tokens();
  const int64_t heads = config_.num_attention_heads, rope_dim = config_.qk_rope_head_dim, nope = config_.qk_nope_head_dim;
  const int64_t latent_dim = config_.kv_lora_rank, kv_dim = config_.latent_dim(), head_dim = config_.qk_head_dim();
  const Input x = store_keys(layer, index_of_layer);
  const float* q_latent = work_.q_latent.get();
  float* q = work_.q.ensure(T * heads * head_dim);
  role("q_b");
  const Input latent_input = input(layer.q_b, q_latent, T, work_.wide_latent);
  project(layer.q_b, latent_input, q, T);
  role("rope");
  RopeParams turn{q, heads * head_dim, head_dim, nope, work_.rope_table.get(), T, heads, rope_dim, config_.rope_interleave};
  if (options_.mla_form == MlaForm::absorbed) {  // the absorbed query ends with it
    turn.copy = work_.q_absorbed.ensure(T * heads * kv_dim) + latent_dim;
    turn.copy_token_stride = heads * kv_dim;
    turn.copy_head_stride = kv_dim;
  }
  kernels::rope(stream_, turn);

  if (layer.indexer) index(*layer.indexer, index_of_layer, x, latent_input);
  if (options_.mla_form == MlaForm::absorbed)
    absorbed_attention(layer, index_of_layer);
  else
    expanded_attention(layer, index_of_layer);
  role("o");
  project(layer.o, input(layer.o, work_.attention_out.get(), T, work_.wide_other), work_.hidden.get(), T, keeps_residual());
  reduce_residual();
}

Forward::Input Forward::store_keys(const LayerWeights& layer, int64_t index_of_layer) {
  const int64_t T = tokens();
  const Input x = input(layer.q_a, work_.normed.get(), T, work_.wide_normed);
  float* q_latent = work_.q_latent.ensure(T * config_.q_lora_rank);
  float* kv = work_.kv.ensure(T * config_.latent_dim());
  float* index_key = work_.index_key.ensure(T * config_.index_head_dim);
  role("qkv_a");
  if (layer.indexer) {
    project_all({{layer.q_a, q_latent}, {layer.kv_a, kv}, {layer.indexer->wk, index_key}}, x, T);
  } else {
    project_all({{layer.q_a, q_latent}, {layer.kv_a, kv}}, x, T);
  }
  role("qkv_prepare");
  prepare(layer, index_of_layer, q_latent, kv, index_key);
  return x;
}

// What has been projected is normed, and latents and keys are in their caches.
void Forward::prepare(const LayerWeights& layer, int64_t index_of_layer, float* q_latent, float* kv, float* index_key) {
  const int64_t T = tokens(), q_dim = config_.q_lora_rank, rope_dim = config_.qk_rope_head_dim;
  const int64_t latent_dim = config_.kv_lora_rank, kv_dim = config_.latent_dim(), dim = config_.index_head_dim;
  const float* table = work_.rope_table.get();
  const VectorView &q_norm = layer.q_a_norm, &kv_norm = layer.kv_a_norm;
  QkvPrepareParams p = {};
  p.q_norm = {q_latent, q_dim, q_latent, q_dim, q_norm.data, q_norm.dtype, T, q_dim, qkv_eps()};
  p.kv_norm = {kv, kv_dim, kv, kv_dim, kv_norm.data, kv_norm.dtype, T, latent_dim, qkv_eps()};
  p.k_rope = {kv, kv_dim, kv_dim, latent_dim, table, T, 1, rope_dim, config_.rope_interleave};
  p.latent_store = {
      cache_->latents(index_of_layer), cache_->options().format, kv, kv_dim, kv + latent_dim, kv_dim, step_.slots, T, latent_dim, rope_dim};
  if (layer.indexer) {
    // The key is stored however short the context is: later tokens will score against it.
    const VectorView &weight = layer.indexer->k_norm_weight, &bias = layer.indexer->k_norm_bias;
    p.index_norm = {index_key, dim, index_key, dim, weight.data, bias.data, weight.dtype, T, dim, kIndexerNormEps};
    p.index_rope = {index_key, dim, dim, 0, table, T, 1, rope_dim, config_.indexer_rope_interleave};
    p.index_store = {
        cache_->index_keys(index_of_layer), KvCache::index_dtype(cache_->options().format), index_key, dim, step_.slots, T, dim};
  }
  qkv_prepare(stream_, p);
}

void Forward::index(const IndexerWeights& indexer, int64_t layer, const Input& normed, const Input& q_latent) {
  // A row of at most index_topk positions takes them all; when all rows do, the layer is plain causal attention.
  if (last_position_ < config_.index_topk || lists_given_) return;
  choose_positions(indexer, layer, normed, q_latent);
  if (probe_) probe_->after_index(layer, {indices_, static_cast<size_t>(tokens() * config_.index_topk)});
}

void Forward::choose_positions(const IndexerWeights& indexer, int64_t layer, const Input& normed, const Input& q_latent) {
  const int64_t T = tokens(), dim = config_.index_head_dim, heads = config_.index_n_heads, k = config_.index_topk;
  int32_t* indices = work_.indices.ensure(T * k);
  indices_ = indices;
  index_width_ = k;
  const int32_t* positions = step_.positions;
  const auto needs_scores = [&](int64_t t) { return step_.score_stride > 0 || batch_.positions[static_cast<size_t>(t)] >= k; };
  int64_t first = 0, end = T;
  while (!needs_scores(first)) ++first;
  while (!needs_scores(end - 1)) --end;
  role("top_k");
  // Rows before and after need no scores: top_k lists all positions of a short row without looking at them.
  kernels::top_k(stream_, {indices, nullptr, 0, positions, first, k});
  kernels::top_k(stream_, {indices + end * k, nullptr, 0, positions + end, T - end, k});

  const int64_t rows = end - first;
  float* q = work_.index_q.ensure(rows * heads * dim);
  role("index_q");
  project(indexer.wq_b, q_latent.from_row(first, config_.q_lora_rank), q, rows);
  kernels::rope(stream_, {q, heads * dim, dim, 0, work_.rope_table.get() + first * config_.qk_rope_head_dim, rows, heads,
                          config_.qk_rope_head_dim, config_.indexer_rope_interleave});
  float* weights = work_.index_weights.ensure(rows * heads);
  role("index_weights");
  project(indexer.weights_proj, normed.from_row(first, config_.hidden_size), weights, rows);
  const int64_t stride = step_.score_stride > 0 ? step_.score_stride : (last_position_ + 16) / 16 * 16;
  const int64_t most = stream_.device != nullptr ? kMaxDeviceScoreFloats : kMaxScoreFloats;
  const int64_t chunk = std::clamp<int64_t>(most / stride, 1, rows);
  float* scores = work_.index_scores.ensure(std::max(most, stride));  // of one size, so that it never moves
  const float scale = 1.0f / std::sqrt(static_cast<float>(heads * dim));
  for (int64_t r = 0; r < rows; r += chunk) {
    const int64_t count = std::min(chunk, rows - r);
    role("index_scores");
    kernels::index_scores(stream_, {scores, stride, q + r * heads * dim, weights + r * heads, heads, cache_->index_keys(layer),
                                    KvCache::index_dtype(cache_->options().format), where(first + r), count, heads, dim, scale});
    role("top_k");
    kernels::top_k(stream_, {indices + (first + r) * k, scores, stride, positions + first + r, count, k});
  }
}

void Forward::absorbed_attention(const LayerWeights& layer, int64_t index_of_layer) {
  const int64_t T = tokens();
  const int64_t heads = config_.num_attention_heads, nope = config_.qk_nope_head_dim, head_dim = config_.qk_head_dim();
  const int64_t latent_dim = config_.kv_lora_rank, key_dim = config_.latent_dim(), v_dim = config_.v_head_dim;
  const float* q = work_.q.get();
  float* absorbed = work_.q_absorbed.get();  // which has its rotated part already
  role("absorb");
  head_matmul(stream_,
              {absorbed, heads * key_dim, key_dim, q, heads * head_dim, head_dim, layer.kv_b, T, heads, nope + v_dim, 0, nope, true});
  float* attended = work_.attended.ensure(T * heads * latent_dim);
  role("sparse_mla");
  kernels::sparse_mla(stream_, {attended, absorbed, cache_->latents(index_of_layer), cache_->options().format, indices_, index_width_,
                                where(0), T, heads, latent_dim, config_.qk_rope_head_dim, softmax_scale()});
  float* out = work_.attention_out.ensure(T * heads * v_dim);
  role("v_up");
  head_matmul(stream_, {out, heads * v_dim, v_dim, attended, heads * latent_dim, latent_dim, layer.kv_b, T, heads, nope + v_dim, nope,
                        v_dim, false});
}

void Forward::expanded_attention(const LayerWeights& layer, int64_t index_of_layer) {
  const int64_t heads = config_.num_attention_heads, nope = config_.qk_nope_head_dim, rope_dim = config_.qk_rope_head_dim;
  const int64_t latent_dim = config_.kv_lora_rank, v_dim = config_.v_head_dim, head_dim = config_.qk_head_dim();
  float* out = work_.attention_out.ensure(tokens() * heads * v_dim);
  for (int64_t begin = 0; begin < tokens();) {
    const int32_t seq = batch_.seq_of_token[static_cast<size_t>(begin)];
    int64_t end = begin;
    int64_t num_keys = 0;
    for (; end < tokens() && batch_.seq_of_token[static_cast<size_t>(end)] == seq; ++end)
      num_keys = std::max<int64_t>(num_keys, batch_.positions[static_cast<size_t>(end)] + 1);
    float* latent = work_.key_latent.ensure(num_keys * latent_dim);
    float* k_pe = work_.key_pe.ensure(num_keys * rope_dim);
    kernels::latent_gather(
        stream_, {latent, k_pe, cache_->latents(index_of_layer), cache_->options().format, step_.page_table + seq * batch_.max_pages,
                  cache_->options().page_size, num_keys, latent_dim, rope_dim});
    float* kv = work_.key_values.ensure(num_keys * layer.kv_b.rows);
    project(layer.kv_b, {latent}, kv, num_keys);
    kernels::expanded_mla(stream_, {out + begin * heads * v_dim, work_.q.get() + begin * heads * head_dim, kv, k_pe, rope_dim,
                                    step_.positions + begin, indices_ ? indices_ + begin * index_width_ : nullptr, index_width_,
                                    end - begin, heads, nope, rope_dim, v_dim, softmax_scale()});
    begin = end;
  }
}

void Forward::dense_mlp(const MlpWeights& mlp) {
  const int64_t dim = mlp.gate.rows;
  role("dense.gate_up");
  float* gate = work_.gate.ensure(tokens() * dim);
  float* up = work_.up.ensure(tokens() * dim);
  project_all({{mlp.gate, gate}, {mlp.up, up}}, input(mlp.gate, work_.normed.get(), tokens(), work_.wide_normed), tokens());
  role("dense.swiglu");
  kernels::swiglu(stream_, {gate, dim, gate, up, dim, tokens(), dim});
  role("dense.down");
  project(mlp.down, input(mlp.down, gate, tokens(), work_.wide_other), work_.hidden.get(), tokens(), keeps_residual());
}

GroupedMatmulParams Forward::expert_product(const std::vector<WeightView>& weights, const WeightView* on_device, const Input& x,
                                            int64_t x_rows, const int32_t* order, int64_t rows_per_source, const int32_t* offsets,
                                            int64_t pairs, float* y) {
  if (probe_) probe_->before_experts(weights, x.x, order, rows_per_source, offsets);
  const WeightView& first = weights.front();
  return {y,
          first.rows,
          rounded(first, x.x, x_rows),
          first.cols,
          order,
          rows_per_source,
          offsets,
          on_device != nullptr ? on_device : weights.data(),
          pairs,
          static_cast<int64_t>(weights.size()),
          first.rows,
          weights.data(),
          x.wide,
          x.wide_stride};
}

void Forward::moe(const MoeWeights& moe, int64_t layer) {
  const int64_t T = tokens(), k = config_.num_experts_per_tok, experts = config_.n_routed_experts;
  const int64_t hidden = config_.hidden_size, dim = config_.moe_intermediate_size, pairs = T * k;
  const Input x = input(moe.up.front(), work_.normed.get(), T, work_.wide_normed);
  float* logits = work_.router_logits.ensure(T * experts);
  const int64_t shared_dim = moe.shared ? moe.shared->gate.rows : 0;
  float* shared_gate = work_.shared_gate.ensure(T * shared_dim);
  float* shared_up = work_.shared_up.ensure(T * shared_dim);
  role("router_shared.gate_up");
  if (moe.shared) {
    project_all({{moe.router, logits}, {moe.shared->gate, shared_gate}, {moe.shared->up, shared_up}}, x, T);
  } else {
    project(moe.router, x, logits, T);
  }
  int32_t* chosen = work_.experts.ensure(pairs);
  float* weights = work_.expert_weights.ensure(pairs);
  const float* bias = moe.on_device.router_bias != nullptr ? moe.on_device.router_bias : moe.router_bias.data();
  int32_t* order = work_.order.ensure(pairs);
  int32_t* inverse = work_.inverse.ensure(pairs);
  int32_t* offsets = work_.offsets.ensure(experts + 1);
  role("route");
  kernels::route(stream_, {chosen, weights, logits, bias, T, experts, k, config_.norm_topk_prob, config_.routed_scaling_factor},
                 {order, inverse, offsets, chosen, T, experts, k});
  if (probe_) probe_->after_router(layer, {chosen, static_cast<size_t>(pairs)}, {weights, static_cast<size_t>(pairs)});
  float* gate = work_.gate.ensure(pairs * dim);
  float* up = work_.up.ensure(pairs * dim);
  if (probe_) probe_->before_experts(moe.gate, x.x, order, k, offsets);
  role("experts.gate_up");
  GatedMatmulParams gated{expert_product(moe.up, moe.on_device.up, x, T, order, k, offsets, pairs, gate),
                          moe.on_device.gate != nullptr ? moe.on_device.gate : moe.gate.data(), moe.gate.data(), up};
  Input activated{gate};
  if (gives_wide(stream_, gated)) {
    const int64_t stride = wide_cols(dim);
    gated.y_wide = work_.wide_gate.ensure(pairs * stride);
    gated.y_wide_stride = stride;
    activated = {gate, gated.y_wide, stride};
  }
  gated_matmul(stream_, gated);
  // Of many rows the sums are not worth the bytes of f32: they are rounded before they are weighted and added, in f32.
  uint16_t* rounded_out = activated.wide != nullptr && hidden % 8 == 0 ? work_.expert_rounded.ensure(pairs * hidden) : nullptr;
  float* out = rounded_out == nullptr ? work_.expert_out.ensure(pairs * hidden) : nullptr;
  role("experts.down");
  GroupedMatmulParams down = expert_product(moe.down, moe.on_device.down, activated, pairs, nullptr, 1, offsets, pairs, out);
  down.y_rounded = rounded_out;
  grouped_matmul(stream_, down);
  role("combine");
  kernels::combine(stream_, {work_.hidden.get(), hidden, out, hidden, inverse, weights, T, k, hidden, keeps_residual(), rounded_out});
  if (!moe.shared) return;
  role("shared.swiglu");
  kernels::swiglu(stream_, {shared_gate, shared_dim, shared_gate, shared_up, shared_dim, T, shared_dim});
  role("shared.down");
  project(moe.shared->down, input(moe.shared->down, shared_gate, T, work_.wide_other), work_.hidden.get(), T, true);
}

}  // namespace ingot::model
