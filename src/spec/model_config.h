// The facts of a GLM-5-class checkpoint, read from config.json. Values only; any thread.
// Field names are those of config.json. Sources and defaults: shared spec of GLM-5.2, sections 1.1 to 1.3.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace ingot::spec {

enum class IndexerType : uint8_t { full, shared };  // owns an indexer, or reuses the list of the nearest earlier full layer
enum class MlpType : uint8_t { dense, sparse };

// What quantization_config says. Decides nothing by itself: the format of each tensor is read from the tensors.
struct QuantConfig {
  enum class Method : uint8_t { none, fp8_block, quark_mxfp4 };
  Method method = Method::none;
  int weight_block_rows = 0;          // FP8: 128
  int weight_block_cols = 0;          // FP8: 128; MXFP4: group_size 32
  std::vector<std::string> excludes;  // module names, globs or "re:" patterns, in checkpoint names
};

struct ModelConfig {
  std::string architecture;  // "GlmMoeDsaForCausalLM"
  std::string dtype;         // "bfloat16"
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;         // main layers; the MTP layer has this index
  int64_t num_nextn_predict_layers = 0;  // 0 or 1
  int64_t intermediate_size = 0;         // dense MLP
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  float routed_scaling_factor = 1.0f;
  bool norm_topk_prob = true;
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // the width of RoPE; head_dim is not used
  int64_t v_head_dim = 0;
  bool rope_interleave = true;
  double rope_theta = 1e6;
  int64_t index_head_dim = 0;
  int64_t index_n_heads = 0;
  int64_t index_topk = 0;
  bool indexer_rope_interleave = true;
  bool index_share_for_mtp_iteration = false;
  std::vector<IndexerType> indexer_types;  // (num_hidden_layers)
  std::vector<MlpType> mlp_layer_types;    // (num_hidden_layers)
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  int64_t vocab_size = 0;
  bool tie_word_embeddings = false;
  std::vector<int32_t> eos_token_ids;  // config.json; generation_config.json may replace it
  QuantConfig quant;

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }  // numbers a token in the KV cache of a layer
  int64_t total_layers() const { return num_hidden_layers + num_nextn_predict_layers; }
  // The MTP layer (index num_hidden_layers) is always full and sparse.
  bool has_indexer(int64_t layer) const {
    return layer >= num_hidden_layers || indexer_types[static_cast<size_t>(layer)] == IndexerType::full;
  }
  bool is_moe(int64_t layer) const { return layer >= num_hidden_layers || mlp_layer_types[static_cast<size_t>(layer)] == MlpType::sparse; }
};

// Errors name the field, what was found and what would be right: unknown architecture, rope type, scoring function,
// topk_method, activation; missing or out-of-range sizes; lists of the wrong length; layer 0 not full.
Result<ModelConfig> parse_model_config(const Json& config);
Result<ModelConfig> load_model_config(const std::filesystem::path& model_dir);

// generation_config.json, when there is one. Absent fields stay empty.
struct GenerationConfig {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int64_t> top_k;
  std::vector<int32_t> eos_token_ids;
};
Result<GenerationConfig> load_generation_config(const std::filesystem::path& model_dir);

}  // namespace ingot::spec
