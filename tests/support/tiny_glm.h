// Makes tiny GlmMoeDsa checkpoints: 6 layers of width 64 with every structural feature of the full model (full and shared indexer
// layers, dense and sparse MLPs, a shared expert, one MTP layer), in any mix of weight formats, with a Quark-style or FP8 config.
// The same numbers, widened, are kept by name for a plain reference.
#pragma once

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "support/checkpoint_writer.h"
#include "tensor/quantize.h"

namespace ingot::test_support {

// The format of linear `module` ("model.layers.3.mlp.experts.0.gate_proj").
using FormatOf = std::function<tensor::WeightFormat(const std::string& module)>;

struct TinyGlm {
  Json config;
  std::vector<TensorToWrite> tensors;
  std::map<std::string, std::vector<float>> values;  // by tensor name, as a reader sees them: dequantised

  void write(const std::filesystem::path& dir) const {
    std::filesystem::create_directories(dir);
    std::ofstream(dir / "config.json") << config.dump(1);
    write_checkpoint(dir, tensors, 100'000);
  }
  TensorToWrite& tensor(const std::string& name) {
    for (auto& t : tensors)
      if (t.name == name) return t;
    INGOT_CHECK(false, "no tensor {}", name);
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const TensorToWrite& t) { return t.name == name; });
  }
};

inline Json tiny_config() {
  return Json::parse(R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16", "attention_bias": false,
    "hidden_size": 64, "num_hidden_layers": 6, "num_nextn_predict_layers": 1, "intermediate_size": 96, "moe_intermediate_size": 32,
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_attention_heads": 4, "num_key_value_heads": 4,
    "head_dim": 192, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "qk_head_dim": 32,
    "v_head_dim": 16, "rope_interleave": true, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "index_head_dim": 16, "index_n_heads": 4, "index_topk": 8, "indexer_rope_interleave": true, "index_share_for_mtp_iteration": true,
    "indexer_types": ["full", "full", "shared", "shared", "full", "shared"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse", "sparse"], "first_k_dense_replace": 1,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "hidden_act": "silu", "vocab_size": 160, "tie_word_embeddings": false,
    "eos_token_id": [0]})");
}

class TinyGlmBuilder {
 public:
  TinyGlmBuilder(uint64_t seed, FormatOf format) : rng_(seed), format_(std::move(format)) { model_.config = tiny_config(); }

  Json& config() { return model_.config; }
  // Extra tensors of a full layer's indexer on layer i, whatever the config says of it.
  void indexer(int64_t i) {
    const std::string base = fmt::format("model.layers.{}.self_attn.indexer.", i);
    linear(base + "wq_b", n("index_n_heads") * n("index_head_dim"), n("q_lora_rank"));
    linear(base + "wk", n("index_head_dim"), n("hidden_size"));
    linear(base + "weights_proj", n("index_n_heads"), n("hidden_size"), tensor::WeightFormat::bf16);
    vector(base + "k_norm.weight", n("index_head_dim"), 1.0f, 0.3f);
    vector(base + "k_norm.bias", n("index_head_dim"), 0.0f, 0.3f);
  }
  void table(const std::string& name, int64_t rows, int64_t cols, float scale) {
    std::vector<float> v(static_cast<size_t>(rows * cols));
    for (auto& x : v) x = rng_.uniform_float(-scale, scale);
    add(name.substr(0, name.size() - 7), v, rows, cols, tensor::WeightFormat::bf16);
  }

  TinyGlm build() {
    const int64_t hidden = n("hidden_size"), layers = n("num_hidden_layers");
    table("model.embed_tokens.weight", n("vocab_size"), hidden, 1.0f);
    table("lm_head.weight", n("vocab_size"), hidden, 0.2f);
    vector("model.norm.weight", hidden, 1.0f, 0.3f);
    for (int64_t i = 0; i < layers + n("num_nextn_predict_layers"); ++i) layer(i, i == layers);
    return std::move(model_);
  }

 private:
  int64_t n(const char* field) const { return model_.config[field].get<int64_t>(); }

  void layer(int64_t i, bool mtp) {
    const std::string base = fmt::format("model.layers.{}.", i), attention = base + "self_attn.";
    const int64_t hidden = n("hidden_size"), heads = n("num_attention_heads"), nope = n("qk_nope_head_dim"), rope = n("qk_rope_head_dim");
    const int64_t v_dim = n("v_head_dim"), q_lora = n("q_lora_rank"), kv_lora = n("kv_lora_rank");
    vector(base + "input_layernorm.weight", hidden, 1.0f, 0.3f);
    vector(base + "post_attention_layernorm.weight", hidden, 1.0f, 0.3f);
    linear(attention + "q_a_proj", q_lora, hidden);
    vector(attention + "q_a_layernorm.weight", q_lora, 1.0f, 0.3f);
    linear(attention + "q_b_proj", heads * (nope + rope), q_lora);
    linear(attention + "kv_a_proj_with_mqa", kv_lora + rope, hidden);
    vector(attention + "kv_a_layernorm.weight", kv_lora, 1.0f, 0.3f);
    linear(attention + "kv_b_proj", heads * (nope + v_dim), kv_lora);
    linear(attention + "o_proj", hidden, heads * v_dim);
    if (mtp || model_.config["indexer_types"][static_cast<size_t>(i)] == "full") indexer(i);
    if (!mtp && model_.config["mlp_layer_types"][static_cast<size_t>(i)] == "dense") {
      mlp(base + "mlp", n("intermediate_size"));
    } else {
      linear(base + "mlp.gate", n("n_routed_experts"), hidden, tensor::WeightFormat::bf16);
      // About 34 with small differences, as in the published model: adding it to a weight would drown the weight.
      std::vector<float> bias(static_cast<size_t>(n("n_routed_experts")));
      for (auto& b : bias) b = 34.0f + rng_.uniform_float(-0.1f, 0.1f);
      f32(base + "mlp.gate.e_score_correction_bias", bias);
      for (int64_t e = 0; e < n("n_routed_experts"); ++e) mlp(fmt::format("{}mlp.experts.{}", base, e), n("moe_intermediate_size"));
      mlp(base + "mlp.shared_experts", n("moe_intermediate_size") * n("n_shared_experts"));
    }
    if (mtp) {
      linear(base + "eh_proj", hidden, 2 * hidden);
      for (const char* name : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) vector(base + name, hidden, 1.0f, 0.3f);
    }
  }
  void mlp(const std::string& module, int64_t intermediate) {
    linear(module + ".gate_proj", intermediate, n("hidden_size"));
    linear(module + ".up_proj", intermediate, n("hidden_size"));
    linear(module + ".down_proj", n("hidden_size"), intermediate);
  }
  void linear(const std::string& module, int64_t rows, int64_t cols) { linear(module, rows, cols, format_(module)); }
  void linear(const std::string& module, int64_t rows, int64_t cols, tensor::WeightFormat format) {
    std::vector<float> v(static_cast<size_t>(rows * cols));
    const float range = std::sqrt(3.0f / static_cast<float>(cols));  // variance 1 / cols: sizes stay about 1 through the layers
    for (auto& x : v) x = rng_.uniform_float(-range, range);
    add(module, v, rows, cols, format);
  }
  void add(const std::string& module, const std::vector<float>& v, int64_t rows, int64_t cols, tensor::WeightFormat format) {
    const tensor::PackedWeight packed = tensor::pack_weight(v, rows, cols, format);
    for (auto& t : linear_tensors(module, packed)) model_.tensors.push_back(std::move(t));
    model_.values[module + ".weight"] = tensor::dequantize(packed.view());
  }
  void vector(const std::string& name, int64_t size, float mean, float spread) {
    std::vector<float> v(static_cast<size_t>(size));
    for (auto& x : v) x = mean + rng_.uniform_float(-spread, spread);
    const tensor::PackedWeight packed = tensor::pack_weight(v, 1, size, tensor::WeightFormat::bf16);
    model_.tensors.push_back({name, tensor::DType::bf16, {size}, packed.data});
    model_.values[name] = tensor::dequantize(packed.view());
  }
  void f32(const std::string& name, const std::vector<float>& v) {
    const tensor::PackedWeight packed = tensor::pack_weight(v, 1, static_cast<int64_t>(v.size()), tensor::WeightFormat::f32);
    model_.tensors.push_back({name, tensor::DType::f32, {static_cast<int64_t>(v.size())}, packed.data});
    model_.values[name] = v;
  }

  Rng rng_;
  FormatOf format_;
  TinyGlm model_;
};

// quantization_config as Quark writes it, with this exclude list.
inline Json quark_config(const std::vector<std::string>& exclude) {
  Json weight = {{"dtype", "fp4"},        {"is_dynamic", false},    {"qscheme", "per_group"},
                 {"ch_axis", -1},         {"group_size", 32},       {"round_method", "half_even"},
                 {"scale_type", "float"}, {"scale_format", "e8m0"}, {"scale_calculation_mode", "even"}};
  return {{"quant_method", "quark"},
          {"global_quant_config", {{"weight", weight}, {"input_tensors", nullptr}}},
          {"layer_quant_config", Json::object()},
          {"exclude", exclude}};
}

}  // namespace ingot::test_support
