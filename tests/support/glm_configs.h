// config.json of the published GLM-5 family, written out as values. Source: spec sections 1.1, 1.3, 5 and 6.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace ingot::test_support {

inline Json glm_52_config() {
  Json c = Json::parse(R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
    "hidden_size": 6144, "num_hidden_layers": 78, "intermediate_size": 12288, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 192, "attention_bias": false,
    "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "rope_interleave": true,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_rope_interleave": true,
    "index_topk_pattern": null, "index_topk_freq": 4, "index_skip_topk_offset": 3, "index_share_for_mtp_iteration": true,
    "num_nextn_predict_layers": 1, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "moe_router_dtype": "float32", "vocab_size": 154880,
    "tie_word_embeddings": false, "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820, "hidden_act": "silu",
    "dtype": "bfloat16", "attention_dropout": 0.0, "initializer_range": 0.02, "ep_size": 1, "pretraining_tp": 1, "use_cache": true,
    "transformers_version": "5.12.0"})");
  for (int i = 0; i < 78; ++i) {
    // The list of spec section 1.2: 0, 1, 2, then every fourth layer from 6.
    c["indexer_types"].push_back(i <= 2 || (i >= 6 && (i - 6) % 4 == 0) ? "full" : "shared");
    c["mlp_layer_types"].push_back(i < 3 ? "dense" : "sparse");
  }
  return c;
}

// GLM-5.1; GLM-5 differs in transformers_version alone.
inline Json glm_51_config() {
  Json c = glm_52_config();
  for (const char* absent : {"index_topk_freq", "index_skip_topk_offset", "index_topk_pattern", "indexer_types",
                             "index_share_for_mtp_iteration", "mlp_layer_types", "moe_router_dtype"}) {
    c.erase(absent);
  }
  c["head_dim"] = 64;
  c["max_position_embeddings"] = 202752;
  c["rope_parameters"]["rope_theta"] = 1000000;
  c["transformers_version"] = "5.4.0";
  return c;
}

inline Json quark_config(const std::vector<std::string>& excludes) {
  Json q = Json::parse(R"({
    "quant_method": "quark",
    "global_quant_config": {
      "weight": {"dtype": "fp4", "is_dynamic": false, "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "block_size": null,
                 "symmetric": null, "round_method": "half_even", "scale_type": "float", "scale_format": "e8m0",
                 "scale_calculation_mode": "even", "mx_element_dtype": null, "observer_cls": "PerBlockMXObserver", "is_scale_quant": false},
      "input_tensors": null, "output_tensors": null, "bias": null, "target_device": null},
    "layer_quant_config": {}, "layer_type_quant_config": {}, "quant_mode": "eager_mode",
    "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder", "weight_format": "real_quantized",
               "weight_merge_groups": null}})");
  q["exclude"] = excludes;
  return q;
}

}  // namespace ingot::test_support
