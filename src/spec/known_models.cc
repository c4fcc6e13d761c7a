#include "spec/known_models.h"

#include <fmt/ranges.h>

#include "base/json.h"

namespace ingot::spec {
namespace {

struct KnownModel {
  std::string_view name;
  std::string_view config;
  int dense_layers;
  // Layers below `full_layers` own an indexer, and of those from `first` every `period`-th.
  int full_layers, first, period;
};

// Source: spec section 1.1, config.json of zai-org/GLM-5.2; indexer_types and mlp_layer_types are written out by known_model().
constexpr std::string_view kGlm52 = R"({
  "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16", "attention_bias": false,
  "hidden_size": 6144, "num_hidden_layers": 78, "num_nextn_predict_layers": 1, "intermediate_size": 12288,
  "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
  "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
  "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 192, "q_lora_rank": 2048, "kv_lora_rank": 512,
  "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256, "rope_interleave": true,
  "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "index_head_dim": 128, "index_n_heads": 32,
  "index_topk": 2048, "indexer_rope_interleave": true, "index_share_for_mtp_iteration": true, "first_k_dense_replace": 3,
  "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05, "hidden_act": "silu", "vocab_size": 154880,
  "tie_word_embeddings": false, "eos_token_id": [154820, 154827, 154829]})";

constexpr std::string_view kTiny = R"({
  "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16", "attention_bias": false,
  "hidden_size": 128, "num_hidden_layers": 6, "num_nextn_predict_layers": 1, "intermediate_size": 1024,
  "moe_intermediate_size": 256, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1,
  "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
  "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "q_lora_rank": 64, "kv_lora_rank": 64,
  "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "qk_head_dim": 64, "v_head_dim": 32, "rope_interleave": true,
  "rope_parameters": {"rope_theta": 10000, "rope_type": "default"}, "index_head_dim": 32, "index_n_heads": 4,
  "index_topk": 64, "indexer_rope_interleave": true, "index_share_for_mtp_iteration": true, "first_k_dense_replace": 1,
  "max_position_embeddings": 65536, "rms_norm_eps": 1e-05, "hidden_act": "silu", "vocab_size": 512,
  "tie_word_embeddings": false, "eos_token_id": [0]})";

constexpr KnownModel kModels[] = {{"glm-5.2", kGlm52, 3, 3, 6, 4}, {"tiny", kTiny, 1, 2, 4, 4}};

}  // namespace

std::vector<std::string> known_models() {
  std::vector<std::string> names;
  for (const KnownModel& model : kModels) names.emplace_back(model.name);
  return names;
}

Result<ModelConfig> known_model(std::string_view name) {
  for (const KnownModel& model : kModels) {
    if (model.name != name) continue;
    INGOT_ASSIGN(Json config, parse_json(model.config, name));
    for (int layer = 0; layer < config["num_hidden_layers"].get<int>(); ++layer) {
      const bool full = layer < model.full_layers || (layer >= model.first && (layer - model.first) % model.period == 0);
      config["indexer_types"].push_back(full ? "full" : "shared");
      config["mlp_layer_types"].push_back(layer < model.dense_layers ? "dense" : "sparse");
    }
    return parse_model_config(config);
  }
  return fail_hint(fmt::format("one of {}", fmt::join(known_models(), ", ")), "no model is known as {}", name);
}

}  // namespace ingot::spec
