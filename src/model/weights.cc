#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "spec/tensor_inventory.h"
#include "tensor/linear.h"

namespace ingot::model {
namespace {

using tensor::Checkpoint;
using tensor::DType;
using tensor::WeightFormat;

// Looks tensors up by name, remembers which were taken, and collects what is wrong, so that one message tells all of it.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const spec::ModelConfig& config) : checkpoint_(checkpoint), config_(config) {}

  Result<Weights> bind();

 private:
  const tensor::TensorInfo* take(const std::string& name) {
    const tensor::TensorInfo* t = checkpoint_.find(name);
    if (t != nullptr)
      used_.insert(t->name);
    else
      missing_.push_back(name);
    return t;
  }
  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  // Any tensor of it: a layer that is there in part is to be complained of, one that was left out is not.
  bool has_layer(int64_t index) const {
    const std::string base = fmt::format("{}layers.{}.", prefix_, index);
    return std::any_of(checkpoint_.tensors().begin(), checkpoint_.tensors().end(), [&](const auto& t) { return t.name.starts_with(base); });
  }

  const uint8_t* bytes(const tensor::TensorInfo& t) const { return reinterpret_cast<const uint8_t*>(checkpoint_.data(t).data()); }

  bool shape_is(const tensor::TensorInfo& t, const std::vector<int64_t>& expected) {
    if (t.shape == expected) return true;
    wrong_.push_back(fmt::format("{}: expected shape {}, found {}", t.name, tensor::shape_text(expected), tensor::shape_text(t.shape)));
    return false;
  }

  WeightView linear(const std::string& module, int64_t rows, int64_t cols);
  WeightView table(const std::string& name, int64_t rows, int64_t cols);
  VectorView vector(const std::string& name, int64_t size);
  std::vector<float> router_bias(const std::string& name);
  MlpWeights mlp(const std::string& module, int64_t intermediate);
  MoeWeights moe(const std::string& module);
  IndexerWeights indexer(const std::string& module);
  LayerWeights layer(int64_t index);
  MtpWeights mtp(const Weights& main);
  void list_unused(Weights& weights) const;
  std::string unused_reason(const std::string& name) const;

  const Checkpoint& checkpoint_;
  const spec::ModelConfig& config_;
  std::string prefix_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> missing_, wrong_;
};

// The format is read from the tensors alone, one weight at a time, whatever a quantization config or its exclude list says of names.
WeightView Binder::linear(const std::string& module, int64_t rows, int64_t cols) {
  const std::string name = module + ".weight";
  if (take(name) == nullptr) return {};
  auto view = tensor::linear_view(checkpoint_, module, rows, cols);
  if (!view) {
    wrong_.push_back(view.error().text());
    return {};
  }
  const std::string scale = tensor::scale_tensor_name(module, view->format);
  if (!scale.empty()) used_.insert(scale);
  if (auto finite = tensor::check_scales(*view, module); !finite) wrong_.push_back(finite.error().text());
  return *view;
}

// Embedding, router and other matrices that no published checkpoint quantises.
WeightView Binder::table(const std::string& name, int64_t rows, int64_t cols) {
  const tensor::TensorInfo* t = take(name);
  if (t == nullptr) return {};
  if (t->dtype != DType::bf16 && t->dtype != DType::f32)
    wrong_.push_back(fmt::format("{}: expected BF16 or F32, found {}", name, tensor::dtype_name(t->dtype)));
  shape_is(*t, {rows, cols});
  return {bytes(*t), nullptr, rows, cols, 0, t->dtype == DType::f32 ? WeightFormat::f32 : WeightFormat::bf16};
}

VectorView Binder::vector(const std::string& name, int64_t size) {
  const tensor::TensorInfo* t = take(name);
  if (t == nullptr) return {};
  if (t->dtype != DType::bf16 && t->dtype != DType::f32)
    wrong_.push_back(fmt::format("{}: expected BF16 or F32, found {}", name, tensor::dtype_name(t->dtype)));
  shape_is(*t, {size});
  return {bytes(*t), t->dtype};
}

std::vector<float> Binder::router_bias(const std::string& name) {
  const tensor::TensorInfo* t = take(name);
  if (t == nullptr) return {};
  const int64_t experts = config_.n_routed_experts;
  if (t->dtype != DType::f32) {
    wrong_.push_back(
        fmt::format("{}: expected F32, found {}: values are near 34, where bf16 steps by 0.25, so the bias has lost what routing needs",
                    name, tensor::dtype_name(t->dtype)));
    return {};
  }
  if (!shape_is(*t, {experts})) return {};
  std::vector<float> bias(static_cast<size_t>(experts));
  std::memcpy(bias.data(), bytes(*t), bias.size() * sizeof(float));
  return bias;
}

MlpWeights Binder::mlp(const std::string& module, int64_t intermediate) {
  const int64_t hidden = config_.hidden_size;
  return {linear(module + ".gate_proj", intermediate, hidden), linear(module + ".up_proj", intermediate, hidden),
          linear(module + ".down_proj", hidden, intermediate)};
}

MoeWeights Binder::moe(const std::string& module) {
  MoeWeights m;
  m.router = table(module + ".gate.weight", config_.n_routed_experts, config_.hidden_size);
  m.router_bias = router_bias(module + ".gate.e_score_correction_bias");
  for (int64_t e = 0; e < config_.n_routed_experts; ++e) {
    const MlpWeights expert = mlp(fmt::format("{}.experts.{}", module, e), config_.moe_intermediate_size);
    m.gate.push_back(expert.gate);
    m.up.push_back(expert.up);
    m.down.push_back(expert.down);
  }
  // Never joined with the routed experts: its format is its own (bf16 beside MXFP4 in published checkpoints).
  if (config_.n_shared_experts > 0) m.shared = mlp(module + ".shared_experts", config_.n_shared_experts * config_.moe_intermediate_size);
  return m;
}

IndexerWeights Binder::indexer(const std::string& module) {
  IndexerWeights w;
  w.wq_b = linear(module + ".wq_b", config_.index_n_heads * config_.index_head_dim, config_.q_lora_rank);
  w.wk = linear(module + ".wk", config_.index_head_dim, config_.hidden_size);
  w.weights_proj = linear(module + ".weights_proj", config_.index_n_heads, config_.hidden_size);
  w.k_norm_weight = vector(module + ".k_norm.weight", config_.index_head_dim);
  w.k_norm_bias = vector(module + ".k_norm.bias", config_.index_head_dim);
  if (w.k_norm_weight.data != nullptr && w.k_norm_bias.data != nullptr && w.k_norm_weight.dtype != w.k_norm_bias.dtype)
    wrong_.push_back(module + ".k_norm: weight and bias differ in type");
  return w;
}

LayerWeights Binder::layer(int64_t index) {
  const std::string base = fmt::format("{}layers.{}", prefix_, index);
  const std::string attention = base + ".self_attn";
  const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;
  LayerWeights w;
  w.input_norm = vector(base + ".input_layernorm.weight", hidden);
  w.post_attention_norm = vector(base + ".post_attention_layernorm.weight", hidden);
  w.q_a = linear(attention + ".q_a_proj", config_.q_lora_rank, hidden);
  w.q_a_norm = vector(attention + ".q_a_layernorm.weight", config_.q_lora_rank);
  w.q_b = linear(attention + ".q_b_proj", heads * config_.qk_head_dim(), config_.q_lora_rank);
  w.kv_a = linear(attention + ".kv_a_proj_with_mqa", config_.latent_dim(), hidden);
  w.kv_a_norm = vector(attention + ".kv_a_layernorm.weight", config_.kv_lora_rank);
  w.kv_b = linear(attention + ".kv_b_proj", heads * (config_.qk_nope_head_dim + config_.v_head_dim), config_.kv_lora_rank);
  w.o = linear(attention + ".o_proj", hidden, heads * config_.v_head_dim);
  if (config_.has_indexer(index)) w.indexer = indexer(attention + ".indexer");
  if (config_.is_moe(index))
    w.moe = moe(base + ".mlp");
  else
    w.dense = mlp(base + ".mlp", config_.intermediate_size);
  return w;
}

MtpWeights Binder::mtp(const Weights& main) {
  const int64_t index = config_.num_hidden_layers, hidden = config_.hidden_size;
  const std::string base = fmt::format("{}layers.{}", prefix_, index);
  MtpWeights w;
  w.enorm = vector(base + ".enorm.weight", hidden);
  w.hnorm = vector(base + ".hnorm.weight", hidden);
  w.final_norm = vector(base + ".shared_head.norm.weight", hidden);
  w.eh_proj = linear(base + ".eh_proj", hidden, 2 * hidden);
  w.embed = has(base + ".embed_tokens.weight") ? table(base + ".embed_tokens.weight", config_.vocab_size, hidden) : main.embed;
  w.head = has(base + ".shared_head.head.weight") ? linear(base + ".shared_head.head", config_.vocab_size, hidden) : main.lm_head;
  w.layer = layer(index);
  return w;
}

std::string Binder::unused_reason(const std::string& name) const {
  const std::string layers = prefix_ + "layers.";
  if (name.compare(0, layers.size(), layers) == 0) {
    const int64_t index = std::strtoll(name.c_str() + layers.size(), nullptr, 10);
    if (index >= config_.total_layers())
      return fmt::format("layer {} is beyond the model's {} layers and {} MTP layers", index, config_.num_hidden_layers,
                         config_.num_nextn_predict_layers);
    if (name.find(".indexer.") != std::string::npos && !config_.has_indexer(index))
      return fmt::format("layer {} is a shared layer: it reuses the index list of the nearest earlier full layer", index);
    if (name.find(".mlp.") != std::string::npos)
      return fmt::format("layer {} has a {} MLP by config.json", index, config_.is_moe(index) ? "sparse" : "dense");
  }
  if (name == "lm_head.weight") return "tie_word_embeddings is set: the embedding table is the head";
  return "no parameter of this architecture has this name";
}

void Binder::list_unused(Weights& weights) const {
  for (const tensor::TensorInfo& t : checkpoint_.tensors())
    if (!used_.contains(t.name)) weights.unused.push_back({t.name, unused_reason(t.name)});
}

Result<Weights> Binder::bind() {
  prefix_ = spec::kModelPrefixes[0];
  for (const std::string_view prefix : spec::kModelPrefixes)
    if (has(fmt::format("{}embed_tokens.weight", prefix))) prefix_ = prefix;
  Weights w;
  w.embed = table(prefix_ + "embed_tokens.weight", config_.vocab_size, config_.hidden_size);
  w.final_norm = vector(prefix_ + "norm.weight", config_.hidden_size);
  if (config_.tie_word_embeddings)
    w.lm_head = w.embed;
  else
    w.lm_head = linear(has("lm_head.weight") || !has("language_model.lm_head.weight") ? "lm_head" : "language_model.lm_head",
                       config_.vocab_size, config_.hidden_size);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) w.layers.push_back(layer(i));
  if (config_.num_nextn_predict_layers > 0 && has_layer(config_.num_hidden_layers)) w.mtp = mtp(w);
  list_unused(w);
  if (!missing_.empty() || !wrong_.empty()) {
    std::string message;
    if (!missing_.empty()) message = fmt::format("{} tensors are missing: {}", missing_.size(), fmt::join(missing_, ", "));
    if (!wrong_.empty())
      message += fmt::format("{}{} tensors do not fit: {}", message.empty() ? "" : "; ", wrong_.size(), fmt::join(wrong_, "; "));
    return fail("{}", message);
  }
  return w;
}

}  // namespace

Result<Weights> bind_weights(const Checkpoint& checkpoint, const spec::ModelConfig& config) { return Binder(checkpoint, config).bind(); }

}  // namespace ingot::model
