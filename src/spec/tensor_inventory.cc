#include "spec/tensor_inventory.h"

#include <fmt/core.h>

namespace ingot::spec {
namespace {

class Inventory {
 public:
  explicit Inventory(const ModelConfig& config) : c_(config) {}

  std::vector<ExpectedTensor> build() {
    linear("model.embed_tokens", c_.vocab_size, c_.hidden_size, TensorKind::embedding);
    vector("model.norm.weight", c_.hidden_size, TensorKind::norm);
    linear("lm_head", c_.vocab_size, c_.hidden_size, TensorKind::head);
    out_.back().optional = c_.tie_word_embeddings;
    for (int64_t i = 0; i < c_.total_layers(); ++i) layer(i);
    return std::move(out_);
  }

 private:
  void add(std::string name, std::vector<int64_t> shape, TensorKind kind, bool is_linear) {
    out_.push_back({std::move(name), std::move(shape), kind, layer_, is_linear, false});
  }
  void linear(const std::string& module, int64_t rows, int64_t cols, TensorKind kind) { add(module + ".weight", {rows, cols}, kind, true); }
  void vector(const std::string& name, int64_t size, TensorKind kind) { add(name, {size}, kind, false); }
  void mlp(const std::string& prefix, int64_t inner, TensorKind kind) {
    linear(prefix + "gate_proj", inner, c_.hidden_size, kind);
    linear(prefix + "up_proj", inner, c_.hidden_size, kind);
    linear(prefix + "down_proj", c_.hidden_size, inner, kind);
  }

  void layer(int64_t i) {
    layer_ = i;
    const std::string p = fmt::format("model.layers.{}.", i);
    const std::string a = p + "self_attn.";
    vector(p + "input_layernorm.weight", c_.hidden_size, TensorKind::norm);
    vector(p + "post_attention_layernorm.weight", c_.hidden_size, TensorKind::norm);
    linear(a + "q_a_proj", c_.q_lora_rank, c_.hidden_size, TensorKind::attention);
    vector(a + "q_a_layernorm.weight", c_.q_lora_rank, TensorKind::norm);
    linear(a + "q_b_proj", c_.num_attention_heads * c_.qk_head_dim(), c_.q_lora_rank, TensorKind::attention);
    linear(a + "kv_a_proj_with_mqa", c_.latent_dim(), c_.hidden_size, TensorKind::attention);
    vector(a + "kv_a_layernorm.weight", c_.kv_lora_rank, TensorKind::norm);
    linear(a + "kv_b_proj", c_.num_attention_heads * (c_.qk_nope_head_dim + c_.v_head_dim), c_.kv_lora_rank, TensorKind::attention);
    linear(a + "o_proj", c_.hidden_size, c_.num_attention_heads * c_.v_head_dim, TensorKind::attention);
    if (c_.has_indexer(i)) {
      const std::string x = a + "indexer.";
      linear(x + "wq_b", c_.index_n_heads * c_.index_head_dim, c_.q_lora_rank, TensorKind::indexer);
      linear(x + "wk", c_.index_head_dim, c_.hidden_size, TensorKind::indexer);
      vector(x + "k_norm.weight", c_.index_head_dim, TensorKind::indexer);
      vector(x + "k_norm.bias", c_.index_head_dim, TensorKind::indexer);
      linear(x + "weights_proj", c_.index_n_heads, c_.hidden_size, TensorKind::indexer);
    }
    if (c_.is_moe(i)) {
      linear(p + "mlp.gate", c_.n_routed_experts, c_.hidden_size, TensorKind::router);
      vector(p + "mlp.gate.e_score_correction_bias", c_.n_routed_experts, TensorKind::router_bias);
      for (int64_t e = 0; e < c_.n_routed_experts; ++e)
        mlp(fmt::format("{}mlp.experts.{}.", p, e), c_.moe_intermediate_size, TensorKind::routed_expert);
      if (c_.n_shared_experts > 0)
        mlp(p + "mlp.shared_experts.", c_.moe_intermediate_size * c_.n_shared_experts, TensorKind::shared_expert);
    } else {
      mlp(p + "mlp.", c_.intermediate_size, TensorKind::dense_mlp);
    }
    if (i >= c_.num_hidden_layers) {
      vector(p + "enorm.weight", c_.hidden_size, TensorKind::norm);
      vector(p + "hnorm.weight", c_.hidden_size, TensorKind::norm);
      linear(p + "eh_proj", c_.hidden_size, 2 * c_.hidden_size, TensorKind::mtp_projection);
      vector(p + "shared_head.norm.weight", c_.hidden_size, TensorKind::norm);
      linear(p + "embed_tokens", c_.vocab_size, c_.hidden_size, TensorKind::embedding);
      out_.back().optional = true;
      linear(p + "shared_head.head", c_.vocab_size, c_.hidden_size, TensorKind::head);
      out_.back().optional = true;
    }
  }

  const ModelConfig& c_;
  int64_t layer_ = -1;
  std::vector<ExpectedTensor> out_;
};

}  // namespace

std::string_view tensor_kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::embedding: return "embedding";
    case TensorKind::head: return "lm_head";
    case TensorKind::norm: return "norms";
    case TensorKind::attention: return "attention";
    case TensorKind::indexer: return "indexer";
    case TensorKind::dense_mlp: return "dense MLP";
    case TensorKind::router: return "router";
    case TensorKind::router_bias: return "router bias";
    case TensorKind::routed_expert: return "routed experts";
    case TensorKind::shared_expert: return "shared experts";
    case TensorKind::mtp_projection: return "MTP projection";
  }
  return "?";
}

int64_t ExpectedTensor::elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string_view ExpectedTensor::module() const { return std::string_view(name).substr(0, name.rfind(".weight")); }

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) { return Inventory(config).build(); }

int64_t active_parameters(const ModelConfig& config) {
  int64_t active = 0;
  for (const ExpectedTensor& t : expected_tensors(config)) {
    if (t.layer >= config.num_hidden_layers || t.kind == TensorKind::embedding) continue;
    // Of the routed experts a token runs num_experts_per_tok out of n_routed_experts, all of one size.
    active += t.kind == TensorKind::routed_expert ? t.elements() * config.num_experts_per_tok / config.n_routed_experts : t.elements();
  }
  return active;
}

std::string canonical_name(std::string_view name) {
  for (const std::string_view prefix : {kModelPrefixes[1], kModelPrefixes[2]}) {
    if (name.starts_with(prefix)) return std::string(kModelPrefixes[0]) + std::string(name.substr(prefix.size()));
  }
  constexpr std::string_view kTop = "language_model.";  // of lm_head
  return std::string(name.starts_with(kTop) ? name.substr(kTop.size()) : name);
}

}  // namespace ingot::spec
